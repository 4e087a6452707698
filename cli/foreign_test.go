package cli

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Foreign containers are listed, and adopted by name if only one has it.
func TestForeignContainersAreListedAndAdopted(t *testing.T) {
	t.Parallel()
	db, cache, other := strings.Repeat("a1", 32), strings.Repeat("b2", 32), strings.Repeat("b3", 32)
	one := func(id, name, node string) string {
		return fmt.Sprintf(`{"id":%q,"name":%q,"image":"postgres:17","state":"running","running":true,"created":"2026-01-31T12:00:00Z","ports":[5432],"node":"id-%s","node_name":%q}`, id, name, node, node)
	}
	missing, asked := "", ""
	f := newHello(t, oneWeb).proxy(t)
	f.on("GET /v1/foreign", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"containers":[%s,%s,%s],"missing":[%s]}`, one(db, "db", "n1"), one(cache, "cache", "n1"), one(other, "cache", "n2"), missing)
	})
	for _, path := range []string{"id-n1/foreign/" + db, "id-n2/foreign/" + other, "n2/foreign/cache"} {
		f.on("POST /v1/nodes/"+path+"/adopt", func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			asked = path + " " + string(b)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"id":"i1","name":"db"}`)
		})
	}
	r := (&run{f: f}).do(t, "instance", "list", "--foreign")
	r.expect(exitOK, strings.Contains(r.stdout, "postgres:17"), strings.Contains(r.stdout, db[:12]), strings.Contains(r.stdout, "5432"), !strings.Contains(r.stdout, db))

	r = (&run{f: f}).do(t, "-j", "hello", "instance", "adopt", "db")
	r.expect(exitOK, strings.Contains(r.stdout, "container db is now instance db of project hello"), asked == "id-n1/foreign/"+db+` {"project":"hello"}`)
	r = (&run{f: f}).do(t, "-j", "hello", "instance", "adopt", "b3b3b3", "--name", "store")
	r.expect(exitOK, asked == "id-n2/foreign/"+other+` {"project":"hello","name":"store"}`)
	r = (&run{f: f}).do(t, "-j", "hello", "instance", "adopt", "cache", "--node", "n2")
	r.expect(exitOK, asked == `n2/foreign/cache {"project":"hello"}`)

	asked = ""
	r = (&run{f: f}).do(t, "-j", "hello", "instance", "adopt", "cache")
	r.expect(exitError, strings.Contains(r.stderr, "--node"), strings.Contains(r.stderr, "n2"), asked == "")
	r = (&run{f: f}).do(t, "-j", "hello", "instance", "adopt", "nobody")
	r.expect(exitError, strings.Contains(r.stderr, `no node has a foreign container "nobody"`), asked == "")
	missing = `{"node":"id-n3","node_name":"n3","reason":"it did not answer"}`
	r = (&run{f: f}).do(t, "-j", "hello", "instance", "adopt", "db")
	r.expect(exitError, strings.Contains(r.stderr, "node n3: it did not answer"), asked == "")
	r = (&run{f: f}).do(t, "instance", "list", "--foreign", "--service", "web")
	r.expect(exitUsage, strings.Contains(r.stderr, "--node"))
}

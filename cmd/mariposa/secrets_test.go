package main_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/store"
	"mariposa/store/postgres"
	"mariposa/store/sqlite"
)

// These tests set secrets, use them in every possible way, and then search every byte
// that was stored or shown for them.

// plantedSecret is a secret with a core that is the same in every encoding.
type plantedSecret struct{ name, value, core string }

func newPlantedSecret(name, format string) plantedSecret {
	core := rand.Text()
	return plantedSecret{name, fmt.Sprintf(format, core), core}
}

// forms returns the encodings in which a core can appear in a text or a file.
func (p plantedSecret) forms() [][]byte {
	forms := [][]byte{[]byte(p.core), []byte(hex.EncodeToString([]byte(p.core))), []byte(strings.ToUpper(hex.EncodeToString([]byte(p.core))))}
	for before := range 3 { // base64 depends on the position within a group of three bytes
		coded := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), p.core...))
		forms = append(forms, []byte(coded[4:len(coded)-4]))
	}
	return forms
}

// secretSearch collects all output and files, and where they came from.
type secretSearch struct {
	mu   sync.Mutex
	seen map[string][]byte
}

func (w *secretSearch) add(where string, what []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seen = map[string][]byte{}
	}
	w.seen[where] = append(w.seen[where], what...)
}

// check fails the test for every place that contains a secret.
func (w *secretSearch) check(t *testing.T, plants []plantedSecret) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for where, what := range w.seen {
		for _, p := range plants {
			for _, form := range p.forms() {
				if i := bytes.Index(what, form); i >= 0 {
					t.Errorf("%s holds the %s: …%q…", where, p.name, what[max(0, i-100):min(len(what), i+len(form)+40)])
					break
				}
			}
		}
	}
}

// masked checks that masked secrets were found in the given places. Otherwise the search
// would prove nothing.
func (w *secretSearch) masked(t *testing.T, places ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, place := range places {
		met := false
		for where, what := range w.seen {
			met = met || strings.HasPrefix(where, place) && bytes.Contains(what, []byte("••••"))
		}
		if !met {
			t.Errorf("there was no secret to hide in %s…", place)
		}
	}
}

// listen collects the events of the feed from its start until the test ends.
func (w *secretSearch) listen(h *devServer) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	res, err := h.request(ctx, http.MethodGet, "/v1/events?since=0", "", http.Header{"Accept": {"text/event-stream"}})
	must(h.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer res.Body.Close()
		for buf := make([]byte, 64<<10); ; {
			n, err := res.Body.Read(buf)
			w.add("the feed of events", buf[:n])
			if err != nil {
				return
			}
		}
	}()
	h.t.Cleanup(func() { cancel(); <-done })
}

// request sends a request that the client does not support.
func (h *devServer) request(ctx context.Context, method, path, body string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, h.URL()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Authorization", "Bearer "+h.admin)
	return http.DefaultClient.Do(req)
}

// answer sends a request and reads the whole answer.
func (h *devServer) answer(method, path, body string, header http.Header) (status int, text string) {
	h.t.Helper()
	res, err := h.request(h.t.Context(), method, path, body, header)
	must(h.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(h.t, err)
	return res.StatusCode, string(b)
}

// vault uses secrets in every possible way.
const vault = `services:
  web:
    compute_type: process
    command: [sh, -c, 'echo "my password is $PASSWORD and $ODD"; printf %s "$PASSWORD" | base64; cat "$MARIPOSA_MDATA_FILE"; exec sleep 1000', "{{ .meta.password }}", "{{ .meta.odd }}"]
    environment: {PASSWORD: "{{ .meta.password }}", ODD: "{{ .meta.odd }}", GENERATED: "{{ .meta.generated }}", URL: "http://me:{{ .meta.password }}@db/"}
    files: {/run/secrets/password: "{{ .meta.password }}", /etc/odd: "{{ .meta.odd }}"}
    mdata: {password: "{{ .meta.password }}", odd: "{{ .meta.odd }}"}
    tags: {key: "{{ .meta.generated }}"}
    update: {min_healthy: 0}
  missing:
    compute_type: process
    command: ["/no/such/program/{{ .meta.password }}", "{{ .meta.odd }}"]
    update: {on_failure: continue, deadline: 5}
  crashing:
    compute_type: process
    command: [sh, -c, 'echo "$1" >&2; exit 3', sh, "{{ .meta.password }} {{ .meta.odd }}"]
metadata:
  password: {secret: true, required: true, description: the planted one}
  odd: {secret: true, required: true}
  generated: {secret: true, generate: 40}
  narrow: {secret: true, pattern: "[a-z]+"}
`

// odd is a secret that changes wherever it is quoted.
const odd = "o\"d'd\\ <%s> & \té\n{{ .meta.password }}"

// useSecrets does what users do with a project that has secrets.
func useSecrets(h *devServer, w *secretSearch) []plantedSecret {
	t := h.t
	t.Helper()
	first, second, strange := newPlantedSecret("first password", "%s"), newPlantedSecret("second password", "%s"), newPlantedSecret("odd secret", odd)
	said := func(stdin string, args ...string) string {
		t.Helper()
		out, errs, code := h.mariposa(stdin, args...)
		w.add("what `mariposa "+strings.Join(args[:min(len(args), 5)], " ")+"` says", []byte(out+errs+fmt.Sprint(code)))
		return out
	}
	asked := func(method, path, body string, header http.Header) {
		t.Helper()
		status, text := h.answer(method, path, body, header)
		w.add("the answer to "+method+" "+path, []byte(fmt.Sprint(status, " ", text)))
	}
	file := fileOf(t, vault)
	w.listen(h)
	said("", "project", "create", "vault", "-m", file)
	said(first.value, "-j", "vault", "meta", "set", "password", "-", "--message", "the first one")
	said(strange.value, "-j", "vault", "meta", "set", "odd", "--from-file", "-", "--secret")
	h.await("it runs", func() bool { return h.serves("vault", "web") })
	h.await("the others fail", func() bool { return h.fails("vault", "missing") && h.fails("vault", "crashing") })

	generated, err := h.MetadataKey(t.Context(), "vault", "generated", true)
	if err != nil || len(generated.Value) != 40 {
		t.Fatalf("the generated secret: %v, %v", generated, err)
	}
	plants := []plantedSecret{first, second, strange, {"generated secret", generated.Value, generated.Value}}

	// Invalid metadata.
	for _, body := range []string{"password: [" + first.value + "]", "password: " + first.value + "\n  : {", "a: " + second.value + "\na: " + second.value, first.value, "narrow: " + first.value} {
		asked(http.MethodPut, "/v1/projects/vault/metadata", body, http.Header{"Content-Type": {"application/yaml"}})
	}
	asked(http.MethodPut, "/v1/projects/vault/metadata/narrow", first.value, http.Header{"Content-Type": {"text/plain"}})
	asked(http.MethodPost, "/v1/projects/vault/metadata/password/incr", "", nil)
	asked(http.MethodPut, "/v1/projects/vault/metadata/password", `{"value": {"a": "`+first.value+`"}}`, http.Header{"Content-Type": {"application/json"}})
	said("", "-j", "vault", "meta", "set", "narrow", first.value)

	look(h, said)
	said(second.value, "-j", "vault", "meta", "set", "password", "-")
	said("", "-j", "vault", "project", "reprovision", "--service", "web")
	h.await("it runs with the second password", func() bool {
		for _, i := range h.instances("vault") {
			if i.ServiceName == "web" && i.State == mariposa.StateRunning && environ(t, atoi(i.Details["pid"]))["PASSWORD"] == second.value {
				return true
			}
		}
		return false
	})
	said("", "-j", "vault", "project", "version", "diff", "2", "4")
	said("", "-j", "vault", "--json", "project", "version", "diff", "2", "4")
	said("", "-j", "vault", "project", "version", "get", "3")
	said("", "project", "copy", "vault", "vault-too", "--meta", "password", "--meta", "odd")
	said("", "-j", "vault", "project", "move", "nowhere")
	said("", "-j", "vault", "instance", "create", "single", "--compute-type", "process", "--env", "PASSWORD={{ .meta.password }}", "--", "/no/such/{{ .meta.odd }}")
	h.await("the copy runs", func() bool { return h.serves("vault-too", "web") })
	look(h, said)

	token := http.Header{"Idempotency-Key": {"one token"}, "Content-Type": {"application/json"}}
	_, once := h.answer(http.MethodPost, "/v1/tokens", `{"name": "robot"}`, token)
	_, again := h.answer(http.MethodPost, "/v1/tokens", `{"name": "robot"}`, token)
	var made contract.Token
	if json.Unmarshal([]byte(once), &made) != nil || made.Secret == "" || once != again {
		t.Errorf("a token asked for twice with one key: %s, then %s", once, again)
	}
	said("", "token", "list")
	return append(plants, plantedSecret{"robot's token", made.Secret, strings.TrimPrefix(made.Secret, "mrp_")})
}

// look shows a project with every command.
func look(h *devServer, said func(stdin string, args ...string) string) {
	h.t.Helper()
	for _, args := range [][]string{
		{"meta", "list"},
		{"meta", "get", "password"},
		{"meta", "export"},
		{"project", "show"},
		{"project", "versions"},
		{"state"},
		{"instance", "list"},
		{"events", "--since", "0"},
		{"events", "--audit"},
		{"queue", "list", "--all"},
	} {
		said("", append([]string{"-j", "vault"}, args...)...)
		said("", append([]string{"-j", "vault", "--json"}, args...)...)
	}
	for _, i := range h.instances("vault") {
		said("", "instance", "show", i.ID)
		said("", "--json", "instance", "show", i.ID)
		said("", "instance", "logs", i.ID)
	}
	q, err := h.Queue(h.t.Context(), client.TaskFilter{Project: "vault", All: true})
	must(h.t, err)
	for _, task := range q.Tasks {
		said("", "queue", "show", task.ID)
	}
}

// serves reports whether an instance of a service runs.
func (h *devServer) serves(project, service string) bool {
	return slices.ContainsFunc(h.state(project).Services, func(s contract.ServiceState) bool { return s.Name == service && s.Running > 0 })
}

// fails reports whether a service has failed with a reason.
func (h *devServer) fails(project, service string) bool {
	return slices.ContainsFunc(h.state(project).Services, func(s contract.ServiceState) bool {
		return s.Name == service && s.Backoff != nil && s.Backoff.Failures > 0 && s.Reason != ""
	})
}

// everything returns all objects of a store, including archived ones and the history.
func everything(t *testing.T, st store.Store) []byte {
	t.Helper()
	var all bytes.Buffer
	e := json.NewEncoder(&all)
	put := func(v any, err error) {
		t.Helper()
		must(t, err)
		must(t, e.Encode(v))
	}
	for _, kind := range mariposa.Kinds {
		records, err := st.List(t.Context(), store.Query{Kind: kind})
		put(records, err)
	}
	for after := int64(0); ; {
		changes, err := st.Changes(t.Context(), after, 1000)
		put(changes, err)
		if len(changes) == 0 {
			break
		}
		after = changes[len(changes)-1].Revision
	}
	audit, err := st.Audit(t.Context(), store.AuditQuery{})
	put(audit, err)
	if all.Len() < 10_000 || !strings.Contains(all.String(), "metadata.set") {
		t.Fatalf("this cannot be everything: %d bytes", all.Len())
	}
	return all.Bytes()
}

// files collects every file in a directory, except those that contain what an instance
// wrote. It ignores files that disappear meanwhile.
func (w *secretSearch) files(t *testing.T, dir string) {
	t.Helper()
	n := 0
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // errors are ignored on purpose
		if err == nil && d.Type().IsRegular() && !strings.HasPrefix(d.Name(), "log") {
			if b, err := os.ReadFile(path); err == nil {
				n++
				w.add("the file "+path, b)
			}
		}
		return nil
	})
	if n < 3 {
		t.Errorf("there are only %d files in %s", n, dir)
	}
}

// processes collects what is visible of the server's processes from outside, except the
// instances themselves.
func (w *secretSearch) processes(h *devServer) {
	for pid := range h.processes() {
		status, _ := os.ReadFile(filepath.Join("/proc", itoa(pid), "status"))
		for line := range strings.Lines(string(status)) {
			if parent, ok := strings.CutPrefix(line, "PPid:"); ok {
				for _, name := range []string{"environ", "cmdline"} {
					b, _ := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(parent), name))
					w.add("the "+name+" of the parent of an instance", b)
				}
			}
		}
	}
}

func TestASecretIsFoundNowhere(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--verbose")
	w := &secretSearch{}
	plants := useSecrets(h, w)
	w.processes(h)
	w.masked(t, "what `mariposa -j vault meta list", "what `mariposa instance show", "what `mariposa --json instance show", "what `mariposa instance logs", "the feed of events")
	key := read(t, filepath.Join(h.dir, "secret.key"))

	h.kill() // the write-ahead log is not yet merged into the database
	w.add("the server's log", []byte(h.out.String()))
	w.files(t, h.dir)
	copied := t.TempDir()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		write(t, filepath.Join(copied, "mariposa.db"+suffix), read(t, filepath.Join(h.dir, "mariposa.db"+suffix)))
	}
	st, err := sqlite.Open(t.Context(), filepath.Join(copied, "mariposa.db"), sqlite.Options{})
	must(t, err)
	all := everything(t, st)
	w.add("the store", all)
	must(t, st.Close())
	for _, secret := range keysIn(t, key) {
		if bytes.Contains(all, []byte(secret)) {
			t.Error("the store holds the key that it is sealed with")
		}
	}

	h.start()
	w.listen(h)
	h.await("it runs again", func() bool { return h.serves("vault", "web") })
	h.terminate()
	w.add("the server's second log", []byte(h.out.String()))
	w.files(t, h.dir)
	w.check(t, plants)
	h.start()
}

// TestAFollowedLogHidesSecretsThatComeUpLater lets an instance print what it reads while
// the secret changes repeatedly. The mask has to keep up.
func TestAFollowedLogHidesSecretsThatComeUpLater(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("talk", `services:
  talker:
    compute_type: process
    command: [sh, -c, 'while :; do cat "$MARIPOSA_MDATA_FILE"; sleep 0.02; done']
    mdata: {secret: "{{ .meta.secret }}"}
metadata: {secret: {secret: true}}
`)
	i, pid := h.one("talk")
	file := environ(t, pid)["MARIPOSA_MDATA_FILE"]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, err := h.Logs(ctx, i.ID, client.LogOptions{Tail: -1, Follow: true})
	must(t, err)
	followed, done := &lockedBuffer{}, make(chan struct{})
	go func() {
		defer close(done)
		defer log.Close()
		_, _ = io.Copy(followed, log) // it ends with the context
	}()
	w, plants := &secretSearch{}, []plantedSecret{}
	for n := range 4 {
		p := newPlantedSecret(fmt.Sprintf("secret number %d", n+1), "%s")
		plants = append(plants, p)
		h.set("talk", "secret", p.value)
		h.await("the instance has it", func() bool {
			b, _ := os.ReadFile(file)
			return bytes.Contains(b, []byte(p.value))
		})
		before := strings.Count(followed.String(), "••••")
		h.await("it has printed it", func() bool { return strings.Count(followed.String(), "••••") > before+2 })
	}
	w.add("a log that is read afterwards", []byte(h.ok("instance", "logs", i.ID)))
	h.must(h.DeleteProject(t.Context(), "talk", true))
	h.await("it is gone", func() bool { return !alive(pid) })
	cancel()
	<-done
	w.add("a log that is followed", []byte(followed.String()))
	w.check(t, plants)
}

// keysIn returns the keys of a key file, as encoded in JSON.
func keysIn(t *testing.T, file []byte) (keys []string) {
	t.Helper()
	var doc struct {
		Keys []struct {
			Key string `json:"key"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(file, &doc); err != nil || len(doc.Keys) == 0 || len(doc.Keys[0].Key) < 40 {
		t.Fatalf("the key file is not as expected: %v", err)
	}
	for _, k := range doc.Keys {
		keys = append(keys, k.Key)
	}
	return keys
}

func TestASecretIsFoundNowhereInPostgreSQL(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.env = []string{"MARIPOSA_URL=" + c.replicas[0].url, "MARIPOSA_TOKEN=" + c.admin}
	logs := &lockedBuffer{}
	c.spawnProcess(logs, []string{"MARIPOSA_JOIN=" + c.join}, "agent", "--server", c.urls(), "--data", filepath.Join(c.dir, "node"))
	t.Cleanup(c.clear)
	w := &secretSearch{}
	plants := useSecrets(c.devServer, w)
	w.add("the logs", []byte(c.replicas[0].out.String()+logs.String()))
	w.files(t, c.dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := pgx.Connect(ctx, c.store)
	must(t, err)
	defer db.Close(ctx)
	rows, err := db.Query(ctx, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
	must(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 3 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	for _, table := range tables {
		var dump bytes.Buffer // it contains bytes as hexadecimal digits
		_, err := db.PgConn().CopyTo(ctx, &dump, "COPY "+pgx.Identifier{table}.Sanitize()+" TO STDOUT")
		must(t, err)
		w.add("the table "+table, dump.Bytes())
	}
	st, err := postgres.Open(ctx, c.store, postgres.Options{})
	must(t, err)
	w.add("the store", everything(t, st))
	must(t, st.Close())
	w.check(t, plants)
}

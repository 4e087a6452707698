package cli

import (
	"net/http"
	"strings"
	"testing"

	"mariposa/client"
)

// What does not exist is an error with a hint at where to look.
func TestWhatDoesNotExistIsFound(t *testing.T) {
	t.Parallel()
	f := newHello(t, oneWeb).proxy(t)
	for _, c := range []struct{ args, said, hint string }{
		{"-j hello ps --node nosuch", "there is no node", "mariposa node list"},
		{"-j hello instance list --node nosuch", "there is no node", "mariposa node list"},
		{"-j nosuch ps --node node1", "there is no project", "project list"},
		{"-j hello instance list --service nosuch", "nosuch", ""},
		{"instance list --service nosuch", `no project has a service "nosuch"`, "mariposa state"},
		{"project plan newp", "there is no project", "project plan newp -m FILE"},
	} {
		r := (&run{f: f}).do(t, strings.Fields(c.args)...)
		r.expect(exitError, strings.Contains(r.stderr, c.said), strings.Contains(r.stderr, c.hint))
	}
	r := (&run{f: f}).do(t, "instance", "list", "--service", "web")
	r.expect(exitOK, strings.Contains(r.stdout, "web.1"))
}

// A plan of a new project beside a manifest suggests the manifest.
func TestAPlanSuggestsTheManifestInTheDirectory(t *testing.T) {
	f := newHello(t, oneWeb).proxy(t)
	home := t.TempDir()
	keep(t, home, manifestName, oneWeb)
	t.Chdir(home)
	r := (&run{f: f}).do(t, "project", "plan", "newp")
	r.expect(exitError, strings.Contains(r.stderr, "`mariposa project plan newp -m mariposa.yaml`"))
}

func TestLogsArePrintedAsJSON(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	f := s.proxy(t)
	const log = "2026-01-31T12:00:00.500000Z one\n- two \"quoted\"\n2026-01-31T12:00:01.000000Z three"
	all, err := s.AllInstances(t.Context(), client.InstanceFilter{Project: "hello"})
	must(t, err)
	id := string(s.steady([]byte(all.Instances[0].ID)))
	f.on("GET /v1/instances/"+id+"/logs", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("timestamps") != "true" {
			t.Error("the log was asked for without times")
		}
		_, _ = w.Write([]byte(log))
	})
	for _, args := range []string{"-j hello logs --json", "-j hello service logs web --json", "-j hello instance logs web.1 --json"} {
		r := (&run{f: f}).do(t, strings.Fields(args)...)
		want := `{"time":"2026-01-31T12:00:00.5Z","project":"hello","service":"web","instance":"NAME","text":"one"}
{"time":null,"project":"hello","service":"web","instance":"NAME","text":"two \"quoted\""}
{"time":"2026-01-31T12:00:01Z","project":"hello","service":"web","instance":"NAME","text":"three"}
`
		name, _, _ := strings.Cut(strings.SplitN(r.stdout, `"instance":"`, 2)[1], `"`)
		r.expect(exitOK, r.stdout == strings.ReplaceAll(want, "NAME", name), strings.HasPrefix(name, "web.1"))
	}
	for _, args := range []string{"-j hello logs --tail -5", "-j hello instance logs web.1 --tail -2"} {
		r := (&run{f: f}).do(t, strings.Fields(args)...)
		r.expect(exitUsage, strings.Contains(r.stderr, "--tail must be a number of lines, or -1 for all"))
	}
}

package cli

import (
	"net/http"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// Each command runs against a real server, and its output is compared with a golden file.
// Commands that change something come last.
func TestCommandsPrintWhatTheyAlwaysPrinted(t *testing.T) {
	t.Parallel()
	s := realWorld(t)
	f := s.proxy(t)
	for _, c := range []struct {
		name string
		args string
		tty  bool
	}{
		{"project-list", "project list", false},
		{"project-list-terminal", "project list", true},
		{"project-list-no-color", "project list --no-color", true},
		{"project-list-json", "project list --json", false},
		{"project-show", "project show hello", false},
		{"project-versions", "-j hello project versions", false},
		{"project-version-get", "-j hello project version get 2", false},
		{"project-unknown", "project show hallo", false},
		{"project-none", "project show", false},
		{"project-graph", "project graph hello", false},
		{"project-graph-terminal", "-j hello project graph", true},
		{"project-graph-dot", "-j hello project graph --dot", false},
		{"project-graph-json", "-j hello project graph --json", false},
		{"project-graph-both", "-j hello project graph --json --dot", false},
		{"state", "state", false},
		{"state-terminal", "state", true},
		{"queue-list", "queue list", false},
		{"queue-show", "queue show " + s.lastTask(), false},
		{"queue-show-unknown", "queue show beef", false},
		{"top", "top", false},
		{"top-json", "top --json", false},
		{"top-once", "top -n 1", true},
		{"instance-list", "instance list", false},
		{"instance-list-terminal", "instance list", true},
		{"instance-show", "instance show web.1", false},
		{"instance-show-unknown", "instance show db.1", false},
		{"instance-logs", "instance logs hello/web.1 --tail 10", false},
		{"instance-crash", "instance crash hello/web.1", false},
		{"node-list", "node list", false},
		{"node-show", "node show node2", false},
		{"node-lose", "node lose node2", false},
		{"node-purge", "node purge node2 --instance x1", false},
		{"node-rm", "node rm node2", false},
		{"node-approve", "node approve node2 --fingerprint SHA256:abc", false},
		{"node-reject", "node reject node2", false},
		{"version", "version", false},
		{"version-json", "version --json", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := (&run{f: f, tty: c.tty}).do(t, strings.Fields(c.args)...).golden(c.name)
			if strings.Contains(r.stdout+r.stderr, secret) || strings.Contains(r.stdout+r.stderr, s.token) {
				t.Error("the token is printed")
			}
		})
	}
}

// The same commands with documents that a server returns only rarely: everything at once,
// control characters, missing values.
func TestCommandsPrintWhatIsRare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		args string
		tty  bool
	}{
		{"project-list", "project list", false},
		{"project-list-terminal", "project list", true},
		{"project-list-no-color", "project list --no-color", true},
		{"project-list-json", "project list --json", false},
		{"project-show", "project show hello", false},
		{"project-versions", "-j hello project versions", false},
		{"project-version-get", "-j hello project version get 2", false},
		{"project-unknown", "project show hallo", false},
		{"project-none", "project show", false},
		{"project-graph", "project graph hello", false},
		{"project-graph-terminal", "-j hello project graph", true},
		{"project-graph-dot", "-j hello project graph --dot", false},
		{"project-graph-json", "-j hello project graph --json", false},
		{"project-graph-both", "-j hello project graph --json --dot", false},
		{"state", "state", false},
		{"state-terminal", "state", true},
		{"queue-list", "queue list", false},
		{"queue-show", "queue show " + taskOne[:30], false},
		{"queue-show-unknown", "queue show beef", false},
		{"top", "top", false},
		{"top-json", "top --json", false},
		{"top-once", "top -n 1", true},
		{"instance-list", "instance list", false},
		{"instance-list-terminal", "instance list", true},
		{"instance-show", "instance show web.1", false},
		{"instance-show-unknown", "instance show db.1", false},
		{"instance-logs", "instance logs web.1-00ab12 --tail 10", false},
		{"instance-crash", "instance crash hello/web.1", false},
		{"node-list", "node list", false},
		{"node-show", "node show node2", false},
		{"node-lose", "node lose node2", false},
		{"node-purge", "node purge node2 --instance x1", false},
		{"node-rm", "node rm node2", false},
		{"node-approve", "node approve node2 --fingerprint SHA256:abc", false},
		{"node-reject", "node reject node2", false},
		{"version", "version", false},
		{"version-json", "version --json", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			(&run{f: world(t), tty: c.tty}).do(t, strings.Fields(c.args)...).golden("rare-" + c.name)
		})
	}
}

// Usage errors are reported without contacting a server.
func TestUsageAndHelpNeedNoServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		args string
		tty  bool
	}{
		{"usage-unknown-command", "projct list", false},
		{"usage-unknown-subcommand", "project lst", false},
		{"usage-later-command", "image import x --force", false},
		{"usage-later-subcommand", "node rebalance node2", false},
		{"usage-no-subcommand", "project", false},
		{"usage-unknown-flag", "project list --frobnicate", false},
		{"usage-missing-argument", "project create -m x.yaml", false},
		{"usage-missing-manifest", "project create hello", false},
		{"usage-previous-and-force", "project update hello -m - --previous 1 --force", false},
		{"usage-scale", "-j hello project scale web", false},
		{"usage-scale-twice", "-j hello project scale web=1 web=2", false},
		{"usage-rolling", "-j hello project reprovision --rolling many", false},
		{"usage-count", "-j hello project reprovision --count 0", false},
		{"usage-canary", "-j hello project update -m - --canary none", false},
		{"usage-start-service-version", "-j hello project start --service web --version 1", false},
		{"usage-start-rolling", "-j hello project start --rolling 2", false},
		{"usage-limit", "queue list --limit -1", false},
		{"usage-looks", "top -n -1", false},
		{"usage-url", "--url localhost:80 state", false},
		{"help", "", false},
		{"help-node-rm", "node rm --help", false},
		{"help-volume", "volume --help", false},
		{"help-volume-list", "volume list --help", false},
		{"help-volume-rm", "volume rm --help", false},
		{"help-project-delete", "project delete --help", false},
		{"help-project-update", "project update --help", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			r := (&run{f: f, tty: c.tty}).do(t, strings.Fields(c.args)...).golden(c.name)
			if strings.Contains(r.stdout+r.stderr, secret) {
				t.Error("the token is printed")
			}
			if asked := f.requests(); asked != "" {
				t.Errorf("it asked %s", asked)
			}
		})
	}
}

func TestChangesPrintTheirTask(t *testing.T) {
	t.Parallel()
	changed := contract.Changed{ID: helloID, Name: "hello", Version: hashTwo, Number: 2, Task: ptr(taskOne)}
	for _, c := range []struct {
		name, args, asked string
	}{
		{"create", "project create hello -m FILE --message first", "POST /v1/projects?message=first&name=hello services: {}"},
		{"create-json", "project create hello -m FILE --json", "POST /v1/projects?name=hello services: {}"},
		{"update-force", "project update hello -m FILE --force --rolling 25%", "PUT /v1/projects/hello/manifest?force=true&rolling=25%25 services: {}"},
		{"update-previous", "project update hello -m FILE --previous 1", "PUT /v1/projects/hello/manifest?previous=1 services: {}"},
		{"scale", "project scale hello web=5 backend=+1", `PUT /v1/projects/hello/state {"action":"scale","scale":{"backend":"+1","web":5}}`},
		{"start", "project start hello", `PUT /v1/projects/hello/state {"action":"start"}`},
		{"stop", "-j hello project stop", `PUT /v1/projects/hello/state {"action":"stop"}`},
		{"reprovision", "project reprovision hello --service web --rolling 2", `PUT /v1/projects/hello/state {"action":"reprovision","rolling":2,"services":["web"]}`},
		{"delete", "project delete hello -f --yes", "GET /v1/projects/hello\nGET /v1/instances?project=" + helloID + "\nDELETE /v1/projects/" + helloID + "?force=true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := world(t).give("POST /v1/projects", changed).give("PUT /v1/projects/hello/manifest", changed).
				give("PUT /v1/projects/hello/state", changed).give("DELETE /v1/projects/"+helloID, changed)
			r := &run{f: f, home: t.TempDir()}
			keep(t, r.home, "FILE", "services: {}\n")
			r.do(t, strings.Fields(strings.ReplaceAll(c.args, "FILE", r.home+"/FILE"))...)
			r.args = strings.Fields(c.args)
			r.golden("change-" + c.name)
			if got := f.requests(); got != c.asked {
				t.Errorf("asked\n%s\nwant\n%s", got, c.asked)
			}
		})
	}
}

func TestNodeChangesSayWhatFollows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, reason, asked, said string }{
		{"node rm node2 --force", "3 instances on it removed too", "DELETE /v1/nodes/node2?force=true", "node2 is removed: 3 instances on it removed too\n"},
		{"node purge node2", "the node has no quarantined instances", `PUT /v1/nodes/node2 {"action":"purge"}`, "node2: the node has no quarantined instances\n"},
		{"node purge node2 --instance x1", "1 quarantined instance will be removed", `PUT /v1/nodes/node2 {"action":"purge","instances":["x1"]}`, "node2: 1 quarantined instance will be removed\n"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			changed := contract.Changed{ID: nodeTwo, Name: "node2", Reason: c.reason}
			f := world(t).give("PUT /v1/nodes/node2", changed).give("DELETE /v1/nodes/node2", changed)
			r := (&run{f: f}).do(t, strings.Fields(c.args)...)
			r.expect(0, r.stdout == c.said, f.requests() == c.asked)
		})
	}
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	t.Parallel()
	faults := []mariposa.Fault{
		{Field: "services.web.image", Code: mariposa.FaultMissing, Message: "is missing", Line: 7},
		{Field: "services.web.scal", Code: mariposa.FaultUnknown, Message: "is no key of a service; did you mean scale?", Line: 9},
	}
	for _, c := range []struct {
		name, args, stdin, route string
		answer                   http.HandlerFunc
	}{
		{"faults", "project create hello -m -", "x", "POST /v1/projects", refuse(mariposa.InvalidArgument, "The manifest has 2 faults", faults...)},
		{"name-taken", "project create hello -m -", "x", "POST /v1/projects", refuse(mariposa.Conflict, "There is a project hello already")},
		{"rename-taken", "-o acme project rename hello howdy", "", "PUT /v1/projects/" + helloID, refuse(mariposa.Conflict, "There is a project howdy already")},
		{"delete-running-org", "-o acme project delete hello", "", "DELETE /v1/projects/hello", refuse(mariposa.Conflict, "hello has 3 instances")},
		{"delete-running", "project delete hello", "", "DELETE /v1/projects/hello", refuse(mariposa.Conflict, "hello has 3 instances")},
		{"nothing-to-do", "project start hello", "", "PUT /v1/projects/hello/state", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"task":null}`)) }},
		{"unauthorized", "project list", "", "GET /v1/projects", refuse(mariposa.Unauthorized, "the token is not known here")},
		{"stranger", "project list", "", "GET /v1/projects", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }},
		{"no-file", "project create hello -m nowhere.yaml", "", "", nil},
		{"empty-manifest", "project create hello -m -", " \n", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := world(t)
			if c.route != "" {
				f.on(c.route, c.answer)
			}
			(&run{f: f, stdin: c.stdin}).do(t, strings.Fields(c.args)...).golden("refused-" + c.name)
		})
	}
}

func TestNobodyThereIsAnErrorWithAWayOut(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	closed := f.url
	r := (&run{env: map[string]string{"MARIPOSA_URL": strings.Replace(closed, "127.0.0.1", "127.0.0.2", 1)}}).do(t, "state")
	r.expect(exitError, strings.HasPrefix(r.stderr, "mariposa: no server is running at http://127.0.0.2:"), strings.Contains(r.stderr, "`mariposa dev`"))
}

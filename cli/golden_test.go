package cli

import (
	"net/http"
	"strings"
	"testing"

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
		{"node-list", "node list", false},
		{"node-show", "node show node2", false},
		{"node-lose", "node lose node2", false},
		{"node-purge", "node purge node2 --instance x1", false},
		{"node-rm", "node rm node2", false},
		{"node-accept", "node accept node2 --fingerprint SHA256:abc", false},
		{"node-approve", "node approve node2 --fingerprint SHA256:abc", false},
		{"node-rotate-key", "node rotate-key node2", false},
		{"node-reject", "node reject node2", false},
		{"version", "version", false},
		{"version-json", "version --json", false},
		{"instance-crash", "instance crash hello/web.1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := (&run{f: f, tty: c.tty}).do(t, strings.Fields(c.args)...).golden(c.name)
			if strings.Contains(r.stdout+r.stderr, secret) || strings.Contains(r.stdout+r.stderr, s.token) {
				t.Error("the token is printed")
			}
		})
	}
}

// The same commands on a bad day: a rollout that does not get on, a service that waits
// for it, one without its metadata, a lost node that runs what belongs to somebody else,
// and control characters in what people write.
func TestCommandsPrintWhatIsRare(t *testing.T) {
	t.Parallel()
	s := badDay(t)
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
		{"queue-show", "queue show $task0", false},
		{"queue-show-unknown", "queue show beef", false},
		{"top", "top", false},
		{"top-json", "top --json", false},
		{"top-once", "top -n 1", true},
		{"instance-list", "instance list", false},
		{"instance-list-terminal", "instance list", true},
		{"instance-show", "instance show web.1", false},
		{"instance-show-unknown", "instance show db.1", false},
		{"instance-logs", "instance logs hello/web.1 --tail 10", false},
		{"node-list", "node list", false},
		{"node-show", "node show node2", false},
		{"node-lose", "node lose node2", false},
		{"node-purge", "node purge node2 --instance x1", false},
		{"node-rm", "node rm node2", false},
		{"node-accept", "node accept node2 --fingerprint SHA256:abc", false},
		{"node-approve", "node approve node2 --fingerprint SHA256:abc", false},
		{"node-rotate-key", "node rotate-key node2", false},
		{"node-reject", "node reject node2", false},
		{"version", "version", false},
		{"version-json", "version --json", false},
		{"instance-crash", "instance crash hello/web.1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			(&run{f: s.proxy(t), tty: c.tty}).do(t, s.words(c.args)...).golden("rare-" + c.name)
		})
	}
}

// nobody is the URL of no server: a command that asks it fails.
const nobody = "http://127.0.0.1:1"

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
		{"help-node", "node --help", false},
		{"help-node-accept", "node accept --help", false},
		{"help-node-rotate-key", "node rotate-key --help", false},
		{"help-node-drain", "node drain --help", false},
		{"help-node-undrain", "node undrain --help", false},
		{"help-node-reserve", "node reserve --help", false},
		{"help-node-unreserve", "node unreserve --help", false},
		{"help-node-reschedule-now", "node reschedule-now --help", false},
		{"help-node-rm", "node rm --help", false},
		{"help-instance-adopt", "instance adopt --help", false},
		{"help-volume", "volume --help", false},
		{"help-volume-list", "volume list --help", false},
		{"help-volume-rm", "volume rm --help", false},
		{"help-project-delete", "project delete --help", false},
		{"help-project-update", "project update --help", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := (&run{env: map[string]string{"MARIPOSA_URL": nobody, "MARIPOSA_TOKEN": secret}}).do(t, strings.Fields(c.args)...).golden(c.name)
			if strings.Contains(r.stdout+r.stderr, secret) {
				t.Error("the token is printed")
			}
		})
	}
}

func TestChangesPrintTheirTask(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	const query = " " + groupLouder
	for _, c := range []struct {
		name, args, asked string
		is                []string // versions of the project before
	}{
		{"create", "project create hello -m FILE --message first", "POST /v1/projects?message=first&name=hello" + query, nil},
		{"create-json", "project create hello -m FILE --json", "POST /v1/projects?name=hello" + query, nil},
		{"update-force", "project update hello -m FILE --force --rolling 25%", "PUT /v1/projects/hello/manifest?force=true&rolling=25%25" + query, []string{groupManifest}},
		{"update-previous", "project update hello -m FILE --previous 1", "PUT /v1/projects/hello/manifest?previous=1" + query, []string{groupManifest}},
		{"scale", "project scale hello web=5 backend=+1", `PUT /v1/projects/hello/state {"action":"scale","scale":{"backend":"+1","web":5}}`, []string{groupManifest}},
		{"start", "project start hello", `PUT /v1/projects/hello/state {"action":"start"}`, []string{groupManifest}},
		{"stop", "-j hello project stop", `PUT /v1/projects/hello/state {"action":"stop"}`, []string{groupManifest}},
		{"reprovision", "project reprovision hello --service web --rolling 2", `PUT /v1/projects/hello/state {"action":"reprovision","rolling":2,"services":["web"]}`, []string{groupManifest, groupLouder}},
		{"delete", "project delete hello -f --yes", "GET /v1/projects/hello\nGET /v1/instances?project=PROJECT\nDELETE /v1/projects/PROJECT?force=true", []string{groupManifest}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.again(t, c.is...)
			if c.name == "start" {
				_, err := s.Act(t.Context(), "hello", contract.Action{Action: "stop"})
				must(t, err)
				s.quiet()
			}
			if len(c.is) > 0 {
				c.asked = strings.ReplaceAll(c.asked, "PROJECT", s.helloID())
			}
			f := s.proxy(t)
			r := &run{f: f, home: t.TempDir()}
			keep(t, r.home, "FILE", groupLouder)
			r.do(t, strings.Fields(strings.ReplaceAll(c.args, "FILE", r.home+"/FILE"))...)
			r.args = strings.Fields(c.args)
			r.golden("change-" + c.name)
			if got := f.requests(); got != strings.TrimSpace(c.asked) {
				t.Errorf("asked\n%s\nwant\n%s", got, c.asked)
			}
		})
	}
}

func TestNodeChangesSayWhatFollows(t *testing.T) {
	t.Parallel()
	s := newTeamServerWith(t, "node1", "node2+")
	s.again(t, "services:\n  web: {compute_type: dummy, scale: 6}\n")
	for _, c := range []struct{ args, asked, said string }{
		{"node purge node1", `PUT /v1/nodes/node1 {"action":"purge"}`, "node1: the node has no quarantined instances\n"},
		{"node purge node2 --instance x1", `PUT /v1/nodes/node2 {"action":"purge","instances":["x1"]}`, "node2: 1 quarantined instance will be removed\n"},
		{"node rm node2 --force", "DELETE /v1/nodes/node2?force=true", "node2 is removed: 3 instances on it removed too\n"},
	} {
		if strings.Contains(c.args, " rm ") {
			_, err := s.ActOnNode(t.Context(), "node2", contract.NodeAction{Action: "lose"})
			must(t, err)
			s.awaitDocument("/v1/nodes/node2", `"status": ?"unknown"`)
		}
		f := s.proxy(t)
		r := (&run{f: f}).do(t, strings.Fields(c.args)...)
		r.expect(0, r.stdout == c.said, f.requests() == c.asked)
	}
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	t.Parallel()
	h := newTeamServer(t)
	const faulty = "services:\n  web: {compute_type: dummy, scal: 3}\n  db: {}\n"
	for _, name := range []string{"hello", "howdy"} {
		_, err := h.CreateProject(t.Context(), name, []byte(groupManifest), "")
		must(t, err)
	}
	h.quiet()
	for _, c := range []struct{ name, args, stdin string }{
		{"faults", "project create new -m -", faulty},
		{"name-taken", "project create hello -m -", groupManifest},
		{"rename-taken", "-o ann project rename hello howdy", ""},
		{"delete-running-org", "-o ann project delete hello", ""},
		{"delete-running", "project delete hello", ""},
		{"nothing-to-do", "project start hello", ""},
		{"unauthorized", "--token mrp_unknown project list", ""},
		{"stranger", "project list", ""},
		{"no-file", "project create hello -m nowhere.yaml", ""},
		{"empty-manifest", "project create hello -m -", " \n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := h.proxy(t)
			if c.name == "stranger" { // something else is at the address, as a wrong URL or a portal makes it
				f.on("GET /v1/projects", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
			}
			(&run{f: f, stdin: c.stdin}).do(t, strings.Fields(c.args)...).golden("refused-" + c.name)
		})
	}
}

func TestNobodyThereIsAnErrorWithAWayOut(t *testing.T) {
	t.Parallel()
	r := (&run{env: map[string]string{"MARIPOSA_URL": nobody}}).do(t, "state")
	r.expect(exitError, strings.HasPrefix(r.stderr, "mariposa: no server is running at "+nobody), strings.Contains(r.stderr, "`mariposa dev`"))
}

package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// Every table fits a terminal of 80 columns.
func TestTablesFitATerminalOf80Columns(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for _, name := range []string{"hello", "a-project-with-a-long-name"} {
		_, err := s.CreateProject(t.Context(), name, []byte(groupManifest), "the first one, with a long message for the history")
		must(t, err)
	}
	for n := range 3 {
		_, err := s.UpdateManifest(t.Context(), "hello", []byte(groupManifest+strings.Repeat("# more\n", n)), client.Update{Force: true, Message: "another long message for the history"})
		must(t, err)
		_, err = s.SetMetadata(t.Context(), "hello", fmt.Sprintf("color_%d", n), contract.MetadataValue{Value: inJSON("value")}, client.KeyChange{})
		must(t, err)
	}
	for n, tag := range []string{"stable", "approved", "tested", "spring"} {
		_, err := s.AddTag(t.Context(), "hello", tag, fmt.Sprint(1+n/3))
		must(t, err)
	}
	s.quiet()
	f := s.proxy(t)
	for _, args := range []string{
		"project list", "project show hello", "-j hello project versions", "-j hello service versions web", "-j hello project tag list", "state", "-j hello state",
		"-j hello ps --all", "-j hello service list", "-j hello meta list", "queue list --all", "queue show " + s.lastTask(), "instance list", "node list", "node show node1",
		"org list", "user list", "token list", "org members acme", "project graph hello", "-j hello project plan", "org quota acme", "network list", "volume list", "top -n 1",
		"whoami",
	} {
		r := (&run{f: f, tty: true, env: map[string]string{"COLUMNS": "80"}}).do(t, append(strings.Fields(args), "--no-color")...)
		if r.code == exitUsage {
			t.Errorf("%s: %s", args, r.stderr)
		}
		for line := range strings.Lines(r.stdout) {
			if n := cells(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s has a line of %d columns:\n%s", args, n, r.stdout)
				break
			}
		}
	}
	r := (&run{f: f, tty: true, env: map[string]string{"COLUMNS": "80"}}).do(t, "-j", "hello", "project", "versions", "--no-color")
	r.expect(exitOK, strings.Contains(r.stdout, "VERSION"), strings.Contains(r.stdout, "TAGS"), strings.Contains(r.stdout, "approved"))
}

// The overview fits as well while a node is lost, whose reason takes space.
func TestTheOverviewFitsATerminalOf80ColumnsWithoutANode(t *testing.T) {
	t.Parallel()
	seen := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	all := mariposa.Resources{MilliCPU: 4000, Memory: 8 << 30}
	nodes := contract.Nodes{Nodes: []contract.Node{
		{ID: "1", Name: "node1", Status: mariposa.NodeRunning, Instances: 12, Capacity: all, Reserved: mariposa.Resources{MilliCPU: 2000, Memory: 1 << 30}, LastHeartbeat: &seen},
		{ID: "2", Name: "node2", Status: mariposa.NodeUnknown, Instances: 3, Capacity: all, LastHeartbeat: &seen, Reason: "no heartbeat since 12:00:00 UTC"},
	}}
	f := newTeamServer(t).proxy(t).on("GET /v1/nodes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(nodes); err != nil {
			t.Error(err)
		}
	})
	r := (&run{f: f, tty: true, env: map[string]string{"COLUMNS": "80"}}).do(t, "top", "-n", "1", "--no-color")
	r.expect(exitOK, strings.Contains(r.stdout, "node2"), strings.Contains(strings.ToLower(r.stdout), "memory reserved"))
	for line := range strings.Lines(r.stdout) {
		if n := cells(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line of %d columns:\n%s", n, r.stdout)
			break
		}
	}
}

// holdCanary makes a project whose rollout is held after its first instance.
func (s *realServer) holdCanary(name string) {
	s.t.Helper()
	_, err := s.CreateProject(s.t.Context(), name, []byte(wideWeb), "")
	must(s.t, err)
	s.quiet()
	_, err = s.UpdateManifest(s.t.Context(), name, []byte(wideWebNext), client.Update{Force: true, Canary: "1"})
	must(s.t, err)
	s.quiet()
}

// A reason for which a table leaves too little space is below its row. Lists stay lists: their
// least useful columns are left out.
func TestReasonsAreBelowTheirRowsOnATerminalOf80Columns(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.holdCanary("other")
	manyTokens(t, s)
	for _, c := range []struct{ args, has, lacks string }{
		{"project list", "10m\n    web: 1 of 3 at version 2; continue with `mariposa -o ann -j other project\n    reprovision`", "REASON"},
		{"queue list --all", "\n    version 2 was submitted\n", "REASON"},
		{"token list", "\nold-deep           organization acme", "\n  id"},
		{"token list --columns name,id", "\nold-deep           0198c000", "\n  id"},
		{"state", "REASON", "\n    web"},
	} {
		r := (&run{f: s.proxy(t), tty: true, env: map[string]string{"COLUMNS": "80"}}).do(t, append(strings.Fields(c.args), "--no-color")...)
		r.expect(exitOK, strings.Contains(r.stdout, c.has), !strings.Contains(r.stdout, c.lacks))
	}
}

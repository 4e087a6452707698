package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A purge destroys what runs, so a person types the name of the node. A script is not
// asked.
func TestAPurgeAsksAPerson(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t)
	quarantined := []mariposa.Quarantined{
		{ID: "q1", Name: "web.1-a", Compute: mariposa.ComputeProcess, State: mariposa.StateRunning},
		{ID: "q2", Name: "web.2-b", Compute: mariposa.ComputeProcess, State: mariposa.StateStopped},
	}
	for _, c := range []struct {
		name, answer string
		args         []string
		tty, purges  bool
		code         int
	}{
		{name: "name", answer: "n1\n", tty: true, purges: true},
		{name: "other-name", answer: "n2\n", tty: true, code: exitError},
		{name: "one", answer: "n1\n", args: []string{"--instance", "q2"}, tty: true, purges: true},
		{name: "not-asked", args: []string{"--yes"}, tty: true, purges: true},
		{name: "script", purges: true},
		{name: "script-yes", args: []string{"--yes"}, purges: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := s.proxy(t)
			f.on("GET /v1/nodes/n1", func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(contract.Node{Name: "n1", Quarantined: quarantined})
			})
			f.on("PUT /v1/nodes/n1", func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(contract.Changed{Name: "n1", Reason: "removing 2 instances"})
			})
			r := (&run{f: f, tty: c.tty, stdin: c.answer}).do(t, append([]string{"node", "purge", "n1"}, c.args...)...)
			r.golden("purge-"+c.name).expect(c.code, strings.Contains(f.requests(), "PUT ") == c.purges)
		})
	}
}

package main_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/listener/porttest"
)

// node returns this machine as the server shows it.
func (h *devServer) node() contract.Node {
	h.t.Helper()
	list, err := h.Nodes(h.t.Context())
	if err != nil {
		return contract.Node{}
	}
	for _, n := range list.Nodes {
		if !n.Dummy {
			return n
		}
	}
	return contract.Node{}
}

// TestAWipedStoreKillsNothing deletes the store while instances run. They must keep
// running, be listed, and be removed only on request.
func TestAWipedStoreKillsNothing(t *testing.T) {
	t.Parallel()
	h, before := greeting(t, 3, "hi")
	h.kill()
	files, err := filepath.Glob(filepath.Join(h.dir, "mariposa.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		must(t, os.Remove(f))
	}
	h.start()
	h.await("what runs is in quarantine", func() bool { return len(h.node().Quarantined) == len(before) })
	for _, q := range h.node().Quarantined {
		if before[q.Name] == 0 || q.Project != "hello" || q.State != mariposa.StateRunning {
			t.Errorf("in quarantine: %+v", q)
		}
	}
	live(t, before)
	h.ok("node", "purge", h.node().Name)
	h.await("what was purged is gone", func() bool { return len(h.processes()) == 0 && len(h.node().Quarantined) == 0 })
}

func TestAFixedPortThatSomebodyElseHasIsNamed(t *testing.T) {
	t.Parallel()
	l := porttest.Listen(t)
	port := l.Addr().(*net.TCPAddr).Port
	h := newDevServer(t)
	h.create("fixed", fmt.Sprintf(`services: {s: {compute_type: process, command: [hello, backend], ports: ["%d:%d"]}}`, port, port))
	h.await("the reason names the port", func() bool {
		return strings.Contains(h.state("fixed").Reason, fmt.Sprintf("port %d of this node is in use by another program", port))
	})
	_ = l.Close()
	h.converged("fixed", "s", 1)
}

func TestANodeThatLostItsIdentityLeavesTheRestWorking(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.await("the node has joined", func() bool { return h.node().Status == mariposa.NodeRunning })
	name := h.node().Name
	h.kill()
	must(t, os.Remove(filepath.Join(h.dir, "node", "node.json")))
	h.start()
	h.await("it says what is wrong and what to do", func() bool { return strings.Contains(h.out.String(), "remove that node first") })
	h.await("the lost node can be removed", func() bool {
		_, _, code := h.mariposa("", "node", "rm", name)
		return code == 0
	})
	h.kill()
	h.start()
	h.await("the machine joins again", func() bool { return h.node().Status == mariposa.NodeRunning })
}

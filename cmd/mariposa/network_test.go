package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// party is a service whose instances each write their name to the network's directory.
func party(scale int, networks string) string {
	return fmt.Sprintf(`services:
  guest:
    compute_type: process
    scale: %d
    command: [sh, -c, 'touch "$MARIPOSA_NETWORK_DANCE_FLOOR/$MARIPOSA_NAME"; exec sleep 100000']
    networks: [dance-floor]
    update: {min_healthy: 0, rolling: 2}
networks: {dance-floor: {%s}}
`, scale, networks)
}

// networks lists all networks.
func (h *devServer) networks() []contract.Network {
	h.t.Helper()
	all, err := h.AllNetworks(h.t.Context(), "")
	must(h.t, err)
	return all.Networks
}

// guests counts the names in a directory, by service and slot.
func guests(dir string) int {
	list, _ := os.ReadDir(dir) // it may not exist yet
	return len(list)
}

func TestProjectsThatShareANetworkMeetInOneDirectory(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", party(2, "shared: true"))
	h.create("blog", party(1, "shared: true"))
	h.create("own", party(1, ""))
	for name, n := range map[string]int{"shop": 2, "blog": 1, "own": 1} {
		h.converged(name, "guest", n)
	}
	places := map[bool]string{}
	ids := map[bool]string{}
	h.await("two networks are there", func() bool {
		for _, n := range h.networks() {
			if len(n.Nodes) == 1 && n.Nodes[0].State == "made" {
				places[n.Shared], ids[n.Shared] = n.Nodes[0].Path, n.ID
			}
		}
		return len(places) == 2
	})
	h.await("everybody is where they belong", func() bool { return guests(places[true]) == 3 && guests(places[false]) == 1 })
	if info, err := os.Stat(places[true]); err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("the directory is %v, %v", info, err)
	}
	if _, errs, code := h.mariposa("", "network", "rm", ids[true], "-y"); code != 1 || !strings.Contains(errs, "guest.1-") || !strings.Contains(errs, "project") {
		t.Errorf("deleting what is used: exit %d, %s", code, errs)
	}
	if out := h.ok("network", "list"); strings.Count(out, "dance-floor") != 2 || !strings.Contains(out, "yes") {
		t.Errorf("listed:\n%s", out)
	}
	if out := h.ok("-j", "shop", "instance", "exec", "guest.1", "--", "sh", "-c", `ls "$MARIPOSA_NETWORK_DANCE_FLOOR" | wc -l`); strings.TrimSpace(out) != "3" {
		t.Errorf("a command inside counts %q", out)
	}

	h.ok("project", "delete", "shop", "-f", "--yes", "--wait") // only its use of the network is removed
	h.await("one project is left on it", func() bool {
		n, err := h.Network(t.Context(), ids[true])
		return err == nil && len(n.Projects) == 1 && n.Projects[0].ProjectName == "blog" && n.Instances == 1
	})
	if _, err := os.Stat(places[true]); err != nil {
		t.Errorf("it went with one of two projects: %v", err)
	}

	h.must(h.DeleteProject(t.Context(), "blog", true)) // the server is killed during the deletion
	h.kill()
	h.start()
	h.await("the shared network is gone", func() bool { n := h.networks(); return len(n) == 1 && !n[0].Shared })
	h.await("its directory is gone", func() bool { _, err := os.Stat(places[true]); return os.IsNotExist(err) })
	if guests(places[false]) != 1 {
		t.Error("the other network went too")
	}
	h.await("nothing else is on the node", func() bool { // a directory is renamed before it is removed
		list, err := os.ReadDir(filepath.Dir(places[false]))
		return err == nil && len(list) == 1
	})

	file := fileOf(t, "services:\n  guest: {compute_type: process, command: [sleep, '100000'], update: {min_healthy: 0}}\n")
	h.ok("-j", "own", "project", "update", "-m", file, "--force", "--wait")
	h.await("it goes with the last instance that used it", func() bool { _, err := os.Stat(places[false]); return os.IsNotExist(err) && len(h.networks()) == 0 })
	if _, err := h.Network(t.Context(), ids[false]); mariposa.CodeOf(err) != mariposa.ResourceNotFound {
		t.Errorf("asked for, it is %v", err)
	}
}

// A server that is killed while a network is created recovers: instances run only with
// their network, and each has one.
func TestNetworksSurviveAKilledServer(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", party(3, ""))
	h.kill()
	h.start()
	h.converged("shop", "guest", 3)
	h.await("the network is there", func() bool {
		n := h.networks()
		return len(n) == 1 && len(n[0].Nodes) == 1 && n[0].Nodes[0].State == "made"
	})
	place := h.networks()[0].Nodes[0].Path
	h.await("all are on it", func() bool { return guests(place) >= 3 })
	before := h.pids("shop")
	h.kill()
	h.start()
	h.converged("shop", "guest", 3)
	h.runOn("shop", before)
	if guests(place) < 3 {
		t.Error("what was in it is gone")
	}
	h.ok("project", "delete", "shop", "-f", "--yes", "--wait")
	h.await("its directory is gone", func() bool { _, err := os.Stat(place); return os.IsNotExist(err) && len(h.networks()) == 0 })
}

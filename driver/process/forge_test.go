package process_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

// forger is an instance whose processes carry forged labels: those of another instance,
// those of a path, and none at all.
func forger(other string) driver.Instance {
	return sh(drivertest.NewID(), `forge() { env MARIPOSA_INSTANCE="$1" PORT_1=25555 MARIPOSA_VOLUME_X=/x sleep 1000 & }
forge `+other+`; forge ../outside; MARIPOSA_INIT=`+other+` forge ''; MARIPOSA_SHIM=`+other+` forge ''; env -i sleep 1000 & echo up; exec sleep 1000`)
}

func TestNoProcessPassesForAnotherInstances(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	a := open(t, process.Options{Root: filepath.Join(root, "instances")})
	victim := instance(drivertest.NewID(), "sleep", "1000")
	a.start(t, victim)
	attack := forger(victim.ID)
	a.start(t, attack)
	awaitLog(t, a, attack.ID, "up")

	list, err := a.List(within(t))
	must(t, err)
	for _, o := range list {
		if o.ID != victim.ID && o.ID != attack.ID {
			t.Errorf("there is a third instance: %+v", o)
		}
	}
	shims := func(id string) (pid int) {
		b, err := os.ReadFile(filepath.Join(root, "instances", id, "state.json"))
		must(t, err)
		_, after, _ := strings.Cut(string(b), `"shim":`)
		pid, _ = strconv.Atoi(strings.TrimSpace(strings.FieldsFunc(after, func(r rune) bool { return r == ',' || r == '}' })[0]))
		return pid
	}
	kill(t, shims(victim.ID), unix.SIGKILL)
	a.endOf(t, victim.ID)
	// Its six processes, one of which claims to be a shim, and its shim.
	if pids, shims, err := process.Labelled(filepath.Join(root, "instances")); err != nil || len(pids) != 5 || len(shims) != 2 {
		t.Errorf("with the other instance, processes of this one have ended; left are %v %v (%v)", pids, shims, err)
	}
	kill(t, shims(attack.ID), unix.SIGKILL)
	a.endOf(t, attack.ID)
	if pids, shims, err := process.Labelled(filepath.Join(root, "instances")); err != nil || len(pids)+len(shims) != 0 {
		t.Errorf("left behind: %v %v (%v)", pids, shims, err)
	}
}

func TestAnIDIsNeverAPath(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	outside := filepath.Join(root, "outside")
	must(t, os.Mkdir(outside, 0o700))
	a := open(t, process.Options{Root: filepath.Join(root, "instances")})
	if err := a.Remove(within(t), "../outside"); err == nil {
		t.Error("a path was taken for an instance")
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a directory outside was removed: %v", err)
	}
}

package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

func TestACommandStartsInItsWorkingDirectory(t *testing.T) {
	t.Parallel()
	a, _, _ := newAgent(t)
	volume, err := a.Provide(within(t), driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data"})
	must(t, err)
	must(t, os.Mkdir(filepath.Join(volume, "deep"), 0o777))
	must(t, os.Chmod(filepath.Join(volume, "deep"), 0o777))
	for want, real := range map[string]string{
		"/usr/lib": "/usr/lib", "/": "/", "/tmp": "/tmp", "/srv/data": volume, "/srv/data/deep": volume + "/deep",
	} {
		i := sh(drivertest.NewID(), "pwd -P; exec sleep 1000")
		i.Workload.WorkingDir = want
		i.Volumes = []driver.Volume{{Mount: mariposa.Mount{Name: "data", Path: "/srv/data"}, Source: volume}}
		a.start(t, i)
		awaitLog(t, a, i.ID, real)
		if _, line := a.execute(t, i, "pwd -P"); line != real {
			t.Errorf("a command inside one in %s starts in %q", want, line)
		}
	}
	// The command is found from there.
	i := instance(drivertest.NewID(), "./env", "sh", "-c", "pwd -P; exec sleep 1000")
	i.Workload.WorkingDir = "/usr/bin"
	a.start(t, i)
	awaitLog(t, a, i.ID, "/usr/bin")
}

func TestAWorkingDirectoryThatCannotBeEnteredIsNamed(t *testing.T) {
	t.Parallel()
	a, _, _ := newAgent(t)
	outside := t.TempDir()
	for want, words := range map[string]string{
		"/srv/nowhere/at-all": "cannot start in working_dir /srv/nowhere/at-all: it does not exist, or the instance cannot see it",
		"/etc/hosts":          "cannot start in working_dir /etc/hosts: it is not a directory",
		outside:               "cannot start in working_dir " + outside + ": it does not exist, or the instance cannot see it",
	} {
		i := sh(drivertest.NewID(), "pwd")
		i.Workload.WorkingDir = want
		if _, err := a.tryStart(t, i); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("in %s: %v", want, err)
		}
	}
	plain := open(t, process.Options{Root: newRoot(t), Isolation: process.IsolationOff})
	i := sh(drivertest.NewID(), "pwd")
	i.Workload.WorkingDir = "/srv/nowhere"
	if _, err := plain.tryStart(t, i); err == nil || !strings.Contains(err.Error(), "cannot start in working_dir /srv/nowhere: no such directory") {
		t.Errorf("not isolated: %v", err)
	}
	i.Workload.WorkingDir = "/usr/lib"
	plain.start(t, i)
	awaitLog(t, plain, i.ID, "/usr/lib")
}

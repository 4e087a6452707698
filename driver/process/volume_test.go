package process_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

func aVolume(id string) driver.Resource { return driver.Resource{Kind: mariposa.KindVolume, ID: id} }

func (a *agent) provide(t *testing.T, id string) (string, error) {
	t.Helper()
	return a.Provide(within(t), aVolume(id))
}

func (a *agent) withdraw(t *testing.T, r driver.Resource) error {
	t.Helper()
	return a.Withdraw(within(t), r)
}

// volumeAt creates a volume for an instance.
func (a *agent) volumeAt(t *testing.T, id, name, path string) driver.Volume {
	t.Helper()
	source, err := a.provide(t, id)
	must(t, err)
	return driver.Volume{Mount: mariposa.Mount{Volume: id, Name: name, Path: path}, Source: source}
}

func TestAVolumeIsAFolderThatInstancesFindByVariableAndByPath(t *testing.T) {
	t.Parallel()
	root, place := newRoot(t), filepath.Join(t.TempDir(), "volumes")
	a := open(t, process.Options{Root: root, Volumes: place})
	data, logs := a.volumeAt(t, "v1", "data", "/var/lib/data"), a.volumeAt(t, "v2", "web-logs", "/logs")
	owner := os.Geteuid()
	if isolation == process.IsolationRequired {
		owner = process.DefaultUIDs.First
	}
	checkMode(t, filepath.Join(place, "v1"), owner, fs.ModeDir|0o700)
	// When it starts again it leaves the file alone: it may be killed while it writes.
	i := sh("i1", `test -e var/lib/data/a || echo one > "$MARIPOSA_VOLUME_DATA/a"; echo two > var/lib/data/b; echo three > logs/c; echo "$MARIPOSA_VOLUME_WEB_LOGS" end; exec sleep 1000`)
	i.Volumes = []driver.Volume{data, logs}
	i.Workload.Environment = vars("MARIPOSA_VOLUME_DATA", "/elsewhere") // a manifest does not decide where volumes are
	a.start(t, i)
	awaitLog(t, a, "i1", logs.Source+" end")
	for file, want := range map[string]string{"v1/a": "one\n", "v1/b": "two\n", "v2/c": "three\n"} {
		if b, err := os.ReadFile(filepath.Join(place, file)); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", file, b, err)
		}
	}
	if _, out := a.execute(t, i, `echo $(cat var/lib/data/a "$MARIPOSA_VOLUME_DATA/b")`); out != "one two" {
		t.Errorf("a command inside reads %q", out)
	}
	a.stop(t, "i1", 0)
	a.start(t, i) // the same instance again finds its links as they are
	a.remove(t, "i1")
	if b, err := os.ReadFile(filepath.Join(place, "v1/a")); err != nil || string(b) != "one\n" {
		t.Errorf("with its instance it lost what was in it: %q, %v", b, err)
	}
}

func TestAFullVolumeIsFullForItsInstanceOnly(t *testing.T) {
	t.Parallel()
	a, _, _ := newAgent(t)
	r := driver.Resource{Kind: mariposa.KindVolume, ID: "v1", Name: "data", Size: 8 << 20}
	source, err := a.Provide(within(t), r)
	if os.Geteuid() != 0 {
		if err == nil || !strings.Contains(err.Error(), "its size of 8 MiB cannot be enforced on this node: the agent does not run as root") {
			t.Errorf("says %v", err)
		}
		return
	}
	must(t, err)
	i := sh("i1", `dd if=/dev/zero of="$MARIPOSA_VOLUME_DATA/big" bs=64k count=1000 2>&1; rm data/big; echo kept > data/x; echo fine > work; echo end; exec sleep 1000`)
	i.Volumes = []driver.Volume{{Mount: mariposa.Mount{Volume: "v1", Name: "data", Path: "/data"}, Source: source}}
	a.start(t, i)
	awaitLog(t, a, "i1", "end")
	if log := a.logOf(t, "i1"); !strings.Contains(log, "No space left on device") {
		t.Errorf("it says %q", log)
	}
	if b, err := os.ReadFile(filepath.Join(source, "x")); err != nil || string(b) != "kept\n" {
		t.Errorf("it has %q, %v", b, err)
	}
	if err := a.withdraw(t, r); err == nil {
		t.Error("it was removed from under its instance")
	}
	a.remove(t, "i1")
	must(t, a.withdraw(t, r))
}

func TestAVolumeIsNotTakenFromUnderARunningInstance(t *testing.T) {
	t.Parallel()
	a, root, _ := newAgent(t)
	v := a.volumeAt(t, "v1", "data", "/d")
	i := instance("i1", "sleep", "1000")
	i.Volumes = []driver.Volume{v}
	o := a.start(t, i)
	if err := a.withdraw(t, aVolume("v1")); err == nil || !strings.Contains(err.Error(), "instance i1 still uses it") {
		t.Errorf("says %v", err)
	}
	must(t, a.Close())
	b := open(t, process.Options{Root: root}) // a restarted agent knows which instance uses what
	if err := b.withdraw(t, aVolume("v1")); err == nil {
		t.Error("it was removed")
	}
	kill(t, pidOf(t, o), syscall.SIGKILL)
	b.awaitEnd(t)
	if err := b.withdraw(t, aVolume("v1")); err != nil {
		t.Errorf("what has ended uses nothing: %v", err)
	}
	if _, err := os.Stat(v.Source); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// A stray is found by its label alone; its environment shows what it uses.
func TestAVolumeIsNotTakenFromUnderAStray(t *testing.T) {
	t.Parallel()
	root, place := newRoot(t), t.TempDir()
	a := open(t, process.Options{Root: root, Volumes: place})
	i := instance("i1", "sleep", "1000")
	i.Volumes = []driver.Volume{a.volumeAt(t, "v1", "data", "/d")}
	a.start(t, i)
	must(t, a.Close())
	must(t, os.RemoveAll(filepath.Join(root, "i1")))
	b := open(t, process.Options{Root: root, Volumes: place})
	if err := b.withdraw(t, aVolume("v1")); err == nil {
		t.Error("it was removed")
	}
}

func TestARemovalOfAVolumeThatWasCutShortIsFinished(t *testing.T) {
	t.Parallel()
	root, place := newRoot(t), t.TempDir()
	half := filepath.Join(place, ".gone-v1")
	must(t, os.MkdirAll(filepath.Join(half, "rest"), 0o700))
	a := open(t, process.Options{Root: root, Volumes: place})
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if all, err := a.Provided(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("finds %v, %v", all, err)
	}
}

func TestVolumesThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	place := t.TempDir()
	a := open(t, process.Options{Root: newRoot(t), Volumes: place})
	for _, id := range []string{"", "../v", ".hidden", "a/b"} {
		if _, err := a.provide(t, id); err == nil {
			t.Errorf("%q was made", id)
		}
		if err := a.withdraw(t, aVolume(id)); err == nil {
			t.Errorf("%q was removed", id)
		}
	}
	if err := a.withdraw(t, driver.Resource{Kind: mariposa.KindNode, ID: "x"}); err == nil {
		t.Error("a node was removed")
	}
	must(t, os.WriteFile(filepath.Join(place, "file"), nil, 0o600))
	if _, err := a.provide(t, "file"); err == nil {
		t.Error("a file was taken for a volume")
	}
	for path, says := range map[string]string{"relative": "must be absolute", "/": "must be absolute", "/../../etc": "the path is already in use"} {
		i := instance(drivertest.NewID(), "sleep", "1000")
		i.Volumes = []driver.Volume{{Mount: mariposa.Mount{Name: "data", Path: path}, Source: place}}
		if path == "/../../etc" { // cleaned, it is /etc below its own directory
			i.Volumes = append(i.Volumes, driver.Volume{Mount: mariposa.Mount{Name: "more", Path: "/etc/x"}, Source: place})
			says = "the path is already in use"
			must(t, os.WriteFile(filepath.Join(place, "x"), nil, 0o600))
		}
		if _, err := a.tryStart(t, i); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
	i := instance(drivertest.NewID(), "sleep", "1000")
	i.Volumes = []driver.Volume{{Mount: mariposa.Mount{Name: "data", Path: "/d"}}} // of another compute type
	if _, err := a.tryStart(t, i); err == nil || !strings.Contains(err.Error(), "was not created for compute type process") {
		t.Errorf("says %v", err)
	}
}

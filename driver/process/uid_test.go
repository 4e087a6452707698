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

func TestEachInstanceHasAUIDOfItsOwnForLife(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	few := process.Options{Root: root, UIDs: process.UIDs{First: 0x70100000, Last: 0x70100002}}
	a := open(t, few)
	one, two, three := instance("i1", "sleep", "1000"), instance("i2", "sleep", "1000"), instance("i3", "sleep", "1000")
	first, second := a.start(t, one), a.start(t, two)
	if u1, u2 := ownerOf(t, first), ownerOf(t, second); u1 == u2 || min(u1, u2) != 0x70100001 || max(u1, u2) != 0x70100002 {
		t.Errorf("they run as %d and %d", u1, u2)
	}
	if _, err := a.tryStart(t, three); err == nil || !strings.Contains(err.Error(), "all 2 uids for instances are in use") {
		t.Errorf("a third was started: %v", err)
	}
	must(t, a.Close())
	a = open(t, few) // a restarted agent knows the uid of each instance
	if _, err := a.tryStart(t, three); err == nil {
		t.Error("a third was started")
	}
	a.stop(t, "i1", 0)
	if again := a.start(t, one); again.Details["uid"] != first.Details["uid"] {
		t.Errorf("started again, it is %s and was %s", again.Details["uid"], first.Details["uid"])
	}
	a.remove(t, "i1")
	if o := a.start(t, three); o.Details["uid"] != first.Details["uid"] {
		t.Errorf("the only free uid is %s, and it got %s", first.Details["uid"], o.Details["uid"])
	}
}

func TestUIDsOfSomebodyElseAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	passwd, subuid := filepath.Join(dir, "passwd"), filepath.Join(dir, "subuid")
	must(t, os.WriteFile(passwd, []byte("root:x:0:0::/:/bin/sh\nann:x:2000:2000::/:/bin/sh\n"), 0o644))
	must(t, os.WriteFile(subuid, []byte("ann:100000:65536\n"), 0o644))
	for text, says := range map[string]string{
		"1500-2500": "assigns 2000 to ann", "3000-4000": "", "90000-100000": "assigns 100000 to ann", "165535-170000": "assigns 165535 to ann", "165536-170000": "",
	} {
		u, err := process.ParseUIDs(text)
		must(t, err)
		if err = u.Check(passwd, subuid, filepath.Join(dir, "missing")); (err == nil) != (says == "") || (err != nil && !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	for _, text := range []string{"", "5", "10-20", "5000-5000", "2000-1000", "a-b", "5000-99999999999"} {
		if _, err := process.ParseUIDs(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// The old and new instances of a rolling update use one volume at the same time, and the
// instances of a network share its directory, whatever their uid.
func TestAVolumeBelongsToAllThatUseIt(t *testing.T) {
	t.Parallel()
	for name, maps := range map[string]bool{"shown to each as its own": true, "on a file system that cannot do that": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, _, _ := newAgent(t)
			if !maps {
				a.WithoutMaps()
			}
			v := a.volumeAt(t, "v1", "data", "/data")
			must(t, os.WriteFile(filepath.Join(v.Source, "old"), []byte("old\n"), 0o600)) // from before instances were isolated
			must(t, os.Chown(v.Source, 0, 0))
			one := sh(drivertest.NewID(), `cat data/old; echo one > data/one; chmod 600 data/one; echo up; exec sleep 1000`)
			two := sh(drivertest.NewID(), `cat data/one; echo two >> data/one; rm data/old; cat data/one; echo end; exec sleep 1000`)
			one.Volumes, two.Volumes = []driver.Volume{v}, []driver.Volume{v}
			first := a.start(t, one)
			if got := awaitLog(t, a, one.ID, "up"); strings.Join(got, " ") != "old" {
				t.Errorf("the first read %q", got)
			}
			second := a.start(t, two)
			if got := awaitLog(t, a, two.ID, "end"); strings.Join(got, " ") != "one one two" {
				t.Errorf("the second read %q", got)
			}
			if shared := first.Details["uid"] == second.Details["uid"]; shared == maps {
				t.Errorf("they run as %s and %s", first.Details["uid"], second.Details["uid"])
			}
		})
	}
}

func TestInstancesOfANetworkConnectWhoeverTheyRunAs(t *testing.T) {
	t.Parallel()
	a, _, _ := newAgent(t)
	path, err := a.Provide(within(t), driver.Resource{Kind: mariposa.KindNetwork, ID: "n1", Name: "back"})
	must(t, err)
	serve := instance(drivertest.NewID(), os.Args[0], "tenant", "listen", path+"/socket")
	call := instance(drivertest.NewID(), os.Args[0], "tenant", "connect", path+"/socket")
	serve.Networks = []driver.Network{{Name: "back", Source: path}}
	call.Networks = serve.Networks
	a.start(t, serve)
	awaitLog(t, a, serve.ID, "listening")
	a.start(t, call)
	if a.endOf(t, call.ID); !strings.Contains(a.logOf(t, call.ID), gotIt) {
		t.Errorf("says %s", a.logOf(t, call.ID))
	}
}

package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/process"
)

func TestInstancesOnANetworkMeetInItsFolder(t *testing.T) {
	t.Parallel()
	root, place := newRoot(t), filepath.Join(t.TempDir(), "networks")
	a := open(t, process.Options{Root: root, Networks: place})
	net := driver.Resource{Kind: mariposa.KindNetwork, ID: "n1", Name: "back-end"}
	path, err := a.Provide(within(t), net)
	if err != nil || path != filepath.Join(place, "n1") {
		t.Fatalf("it is at %q, %v", path, err)
	}
	on := []driver.Network{{Name: "back-end", Source: path}}
	one, two := sh("i1", `echo hello > "$MARIPOSA_NETWORK_BACK_END/said"; echo said; exec sleep 1000`), sh("i2", `cat "$MARIPOSA_NETWORK_BACK_END/said"; exec sleep 1000`)
	one.Networks, two.Networks = on, on
	one.Workload.Environment = vars("MARIPOSA_NETWORK_BACK_END", "/elsewhere") // a manifest does not decide where networks are
	a.start(t, one)
	awaitLog(t, a, "i1", "said")
	a.start(t, two)
	awaitLog(t, a, "i2", "hello")
	a.remove(t, "i1")
	if err := a.withdraw(t, net); err == nil || !strings.Contains(err.Error(), "instance i2 still uses it") {
		t.Errorf("says %v", err)
	}
	must(t, a.Close())
	b := open(t, process.Options{Root: root, Networks: place}) // a restarted agent knows the instances on it
	if err := b.withdraw(t, net); err == nil {
		t.Error("it was removed")
	}
	b.remove(t, "i2")
	if err := b.withdraw(t, net); err != nil {
		t.Errorf("an unused one: %v", err)
	}
	if list, err := os.ReadDir(place); err != nil || len(list) != 0 {
		t.Errorf("left are %v, %v", list, err)
	}
	lost := instance("i3", "sleep", "1000")
	lost.Networks = []driver.Network{{Name: "back-end"}} // of another compute type
	if _, err := b.tryStart(t, lost); err == nil || !strings.Contains(err.Error(), "its network back-end was not created for compute type process") {
		t.Errorf("says %v", err)
	}
}

package lxc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/drivertest/island"
	"mariposa/driver/imagestore"
	"mariposa/driver/lxc"
	"mariposa/driver/osproc"
)

type agentOptions struct {
	lxc.Options
	Subnet netip.Prefix
}

// agentMain is an agent that starts an instance and runs a command in it, and then waits to be
// killed: `agent OPTIONS ID`.
func agentMain(options, id string) int {
	var o agentOptions
	err := json.Unmarshal([]byte(options), &o)
	if err == nil {
		o.Images, err = imagestore.Open(island.Dir()) // the tests have filled it
	}
	var d *lxc.Driver
	if err == nil {
		d, err = newDriver(o.Options, o.Subnet)
	}
	if err == nil {
		d.Watch(func(driver.Event) {})
		fmt.Println("begins")
	}
	if id, found := strings.CutPrefix(id, cyclePrefix); found && err == nil {
		return cycle(d, id)
	}
	if err == nil {
		_, err = d.Start(context.Background(), graceful(id))
	}
	if err == nil {
		_, err = d.Exec(context.Background(), driver.Instance{ID: id}, driver.ExecOptions{Command: []string{"sh", "-c", "sleep 4242; exit 1"}})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("runs")
	select {}
}

// startAgent starts an agent and waits until it has written a line.
func startAgent(t *testing.T, w *world, id, line string) *exec.Cmd {
	t.Helper()
	o := agentOptions{w.options, w.subnet}
	o.Images, o.Networks = nil, nil
	return drivertest.StartAgent(t, o, id, line, "begins")
}

// An agent that is killed finds its container again, and the command that it has run in it is
// gone.
func TestAKilledAgentFindsItsContainers(t *testing.T) {
	t.Parallel()
	d, id := openNode(t), drivertest.NewID()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	drivertest.KillAgent(startAgent(t, d.w, id, "runs"))
	d.open()
	list, err := d.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || !list[0].Running || list[0].Labels.Cluster != "c1" {
		t.Fatalf("List: %+v, %v", list, err)
	}
	await(t, "the command has ended", func() bool { return run(t, d, id, "ps | grep -c '[s]leep 4242'; true") == "0\n" })
	if o := d.start(graceful(id)); !o.Started.Equal(list[0].Started) || o.Details["pid"] != list[0].Details["pid"] {
		t.Errorf("it was %+v and is %+v", list[0], o)
	}
	if o := d.stop(id, drivertest.Limit); o.Reason != "exited with code 0" {
		t.Errorf("it ended: %+v", o)
	}
}

// An agent may be killed at any moment of a start: the next one finds the instance running, ended
// or not at all, and starts it.
func TestAnAgentKilledDuringAStartLeavesNothingHalf(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	for n := range 6 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		id := drivertest.NewID()
		cmd := startAgent(t, d.w, id, "begins")
		entries := func() int {
			list, _ := os.ReadDir(d.w.dir + "/instances")
			files, _ := os.ReadDir(d.w.dir + "/instances/" + id)
			return len(list) + len(files)
		}
		await(t, "it has got that far", func() bool { return entries() >= 2*n })
		drivertest.KillAgent(cmd)
		d.open()
		o := d.start(graceful(id))
		if got := run(t, d, id, "echo up"); got != "up\n" || !o.Running {
			t.Errorf("it is %+v", o)
		}
		if err := d.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if list, err := os.ReadDir(d.w.dir + "/instances"); err != nil || len(list) != 0 {
			t.Errorf("left are %v, %v", list, err)
		}
	}
	if left := lxc.Bridges(d.Driver); len(left) != 0 || strings.Contains(fmt.Sprint(d.Details()), "unknown") {
		t.Errorf("left are the bridges %v; %v", left, d.Details())
	}
}

// cyclePrefix makes an agent start, stop and remove an instance again and again.
const cyclePrefix = "cycle-"

func cycle(d *lxc.Driver, id string) int {
	for {
		_, err := d.Start(context.Background(), graceful(id))
		if err == nil {
			_, err = d.Stop(context.Background(), id, drivertest.Limit)
		}
		if err == nil {
			_, err = d.Start(context.Background(), graceful(id))
		}
		if err == nil {
			err = d.Remove(context.Background(), id)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
}

// An agent may be killed at any moment of the life of an instance, and its supervisor too. The
// next agent starts the instance, and leaves nothing of it when it removes it.
func TestAnAgentIsKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	for n := range drivertest.Kills() {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		id := drivertest.NewID()
		cmd := startAgent(t, d.w, cyclePrefix+id, "begins")
		pause := time.Duration(rand.IntN(2500)) * time.Millisecond
		time.Sleep(pause) // whatever it does then
		drivertest.KillAgent(cmd)
		if n%2 == 1 {
			drivertest.KillProcesses(lxc.SupervisorCommand, id)
		}
		d.open()
		list, err := d.List(t.Context())
		if err != nil || len(list) > 1 {
			t.Fatalf("after %s: %v, %v", pause, list, err)
		}
		if n%4 < 2 {
			d.start(graceful(id))
			if got := run(t, d, id, "echo up"); got != "up\n" {
				t.Errorf("after %s, it says %q", pause, got)
			}
		}
		if err := d.Remove(t.Context(), id); err != nil {
			t.Fatalf("after %s: %v", pause, err)
		}
		drivertest.AwaitNoTraces(t, d.w.dir, id, fmt.Sprintf("after %s and %d", pause, n))
	}
}

// A supervisor may be killed while lxc-start begins. lxc-start ends with it: nobody would know of
// the container.
func TestASupervisorKilledDuringAStartLeavesNoContainer(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	for range 5 {
		id := drivertest.NewID()
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = d.Start(t.Context(), graceful(id)) // fails, unless it was faster
		}()
		await(t, "lxc-start begins", func() bool {
			for _, args := range osproc.FindArgs("lxc-start") {
				if strings.Contains(strings.Join(args, " "), id) {
					return true
				}
			}
			return false
		})
		drivertest.KillProcesses(lxc.SupervisorCommand, id)
		<-over
		if err := d.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(500 * time.Millisecond) // nothing may come up
		await(t, "nothing is left", func() bool { return len(drivertest.Traces(d.w.dir, id)) == 0 })
		for ; time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if left := drivertest.Traces(d.w.dir, id); len(left) > 0 {
				t.Fatalf("left are\n%s", strings.Join(left, "\n"))
			}
		}
	}
}

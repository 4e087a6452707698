package kvm_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/osproc"
	"mariposa/driver/statefile"
)

// processes returns the supervisor of an instance and its QEMU.
func (n *node) processes(id string) (supervisor, qemu int) {
	n.t.Helper()
	var is struct {
		Supervisor int `json:"supervisor"`
		PID        int `json:"pid"`
	}
	if err := statefile.Read(filepath.Join(n.w.dir, "instances", id, "state.json"), &is); err != nil || is.Supervisor == 0 || is.PID == 0 {
		n.t.Fatalf("the state is %+v, %v", is, err)
	}
	return is.Supervisor, is.PID
}

// within returns the result of an operation that must not wait without end.
func within(t *testing.T, what string, operation func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := operation(ctx)
	if ctx.Err() != nil {
		t.Fatalf("%s waits without end: %v", what, err)
	}
	return err
}

// A supervisor that hangs does not keep a machine from being killed.
func TestAMachineWithASupervisorThatHangsIsKilled(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), guest(t, ""))
	d.start(i)
	supervisor, qemu := d.processes(i.ID)
	if err := unix.Kill(supervisor, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var o driver.Observed
	err := within(t, "the stop", func(ctx context.Context) (err error) {
		o, err = d.Stop(ctx, i.ID, time.Second)
		return err
	})
	if err != nil || o.Running || !strings.Contains(o.Reason, "killed") {
		t.Errorf("it ended: %+v, %v", o, err)
	}
	if _, _, runs := osproc.Read(qemu); runs { // not if nobody has waited for it yet
		t.Error("QEMU still runs")
	}
}

// A snapshot of a machine that hangs keeps nobody from listing its snapshots, nor from stopping it.
func TestASnapshotThatHangsIsInterrupted(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), blank(t))
	d.start(i)
	_, qemu := d.processes(i.ID)
	if err := unix.Kill(qemu, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	saved := make(chan error, 1)
	go func() { saved <- d.Snapshot(context.WithoutCancel(t.Context()), i.ID, "s") }()
	await(t, "the snapshot has begun", func() bool { // another operation waits for it
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := d.Update(ctx, i)
		return err != nil
	})
	err := within(t, "the list", func(ctx context.Context) error {
		_, err := d.Snapshots(ctx, i.ID)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	err = within(t, "the stop", func(ctx context.Context) error {
		_, err := d.Stop(ctx, i.ID, time.Second)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := <-saved; err == nil {
		t.Error("the snapshot was saved")
	}
}

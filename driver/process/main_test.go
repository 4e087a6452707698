package process_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
	"mariposa/leaktest"
)

// The test binary replaces mariposa: it is its own shim, and an agent that tests kill.
func TestMain(m *testing.M) {
	process.UseFailpoints()
	// Supervisors use as much memory as in production, whatever the tests are given: some
	// of them run within an instance's memory limit.
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		_ = os.Unsetenv(name)
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "shim":
			// Not os.Exit: under -race that sleeps for a second.
			syscall.Exit(process.ShimMain(os.Args[2:]))
		case "agent":
			os.Exit(agentMain(os.Args[2:]))
		case "tenant":
			os.Exit(tenantMain(os.Args[2:]))
		case "agent-exec":
			os.Exit(execMain(os.Args[2], os.Args[3]))
		}
	}
	leaktest.Main(m)
}

// agentMain is an agent that starts an instance, as after a first manual restart, and
// then waits to be killed: `agent ROOT ID COMMAND...`. It prints the result of Start.
func agentMain(args []string) int {
	d, err := process.New(process.Options{Root: args[0], Isolation: isolation})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	d.Watch(func(driver.Event) {})
	i := instance(args[1], args[2:]...)
	i.ManualRestarts = 1
	o, err := d.Start(context.Background(), i)
	if err != nil {
		o.Reason = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(o)
	select {}
}

// execMain is an agent with an instance and a command in it, which waits to be killed:
// `agent-exec ROOT ID`. It prints the command's process id.
func execMain(root, id string) int {
	d, err := process.New(process.Options{Root: root, Isolation: isolation})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	d.Watch(func(driver.Event) {})
	i := instance(id, "sleep", "1000")
	_, err = d.Start(context.Background(), i)
	if err == nil {
		var s driver.Session
		if s, err = d.Exec(context.Background(), i, driver.ExecOptions{Command: []string{"sh", "-c", "echo $$; exec sleep 1000"}}); err == nil {
			_, err = io.Copy(os.Stdout, s.Stdout()) // it waits to be killed
		}
	}
	fmt.Println(err)
	select {}
}

// isolation is the mode of these tests: on, or off in a second run of some of them.
var isolation = map[bool]process.Isolation{true: process.IsolationOff}[os.Getenv("TEST_WITHOUT_ISOLATION") != ""]

var labels = driver.Labels{Cluster: "c1", Incarnation: "i1"}

func instance(id string, command ...string) driver.Instance {
	return driver.Instance{
		ID: id, Name: "web.1", Project: "shop", Service: "web", Labels: labels,
		Workload: &mariposa.Workload{Compute: mariposa.ComputeProcess, Command: command},
	}
}

func sh(id, script string) driver.Instance { return instance(id, "sh", "-c", script) }

// newRoot creates a root for the test and checks that nothing of it is left.
func newRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() {
		pids, shims, err := process.Labelled(root)
		inits := process.Inits(root)
		if err != nil || len(pids)+len(shims)+len(inits) > 0 {
			t.Errorf("left behind: %v %v %v (%v)", pids, shims, inits, err)
		}
		for _, pid := range slices.Concat(pids, shims, inits) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return root
}

// must fails a test for an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newAgent returns an agent with its own root, and an id for an instance.
func newAgent(t *testing.T) (a *agent, root, id string) {
	t.Helper()
	root = newRoot(t)
	return open(t, process.Options{Root: root}), root, drivertest.NewID()
}

// agent is a driver in the test's own process with the events it has reported.
type agent struct {
	*process.Driver
	ended chan driver.Observed
}

func open(t *testing.T, o process.Options) *agent {
	t.Helper()
	o.Isolation = max(o.Isolation, isolation)
	d, err := process.New(o)
	must(t, err)
	a := &agent{d, make(chan driver.Observed, 100)}
	d.Watch(func(e driver.Event) { a.ended <- e.Instance })
	t.Cleanup(func() {
		list, err := d.List(context.Background())
		for _, o := range list {
			a.remove(t, o.ID)
		}
		if err == nil { // else: the test has closed it itself
			_ = d.Close()
		}
	})
	return a
}

func (a *agent) start(t *testing.T, i driver.Instance) driver.Observed {
	t.Helper()
	o, err := a.tryStart(t, i)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	return o
}

func (a *agent) tryStart(t *testing.T, i driver.Instance) (driver.Observed, error) {
	t.Helper()
	return a.Start(within(t), i)
}

func (a *agent) stop(t *testing.T, id string, timeout time.Duration) driver.Observed {
	t.Helper()
	o, err := a.Stop(within(t), id, timeout)
	if err != nil {
		t.Fatalf("Stop: %v", err)
	}
	return o
}

func (a *agent) remove(t *testing.T, id string) {
	t.Helper()
	if err := a.Remove(within(t), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

func (a *agent) awaitEnd(t *testing.T) driver.Observed {
	t.Helper()
	select {
	case o := <-a.ended:
		return o
	case <-time.After(drivertest.Limit):
		t.Fatal("no end was reported")
		return driver.Observed{}
	}
}

func (a *agent) find(t *testing.T, id string) (driver.Observed, bool) {
	t.Helper()
	list, err := a.List(t.Context())
	must(t, err)
	for _, o := range list {
		if o.ID == id {
			return o, true
		}
	}
	return driver.Observed{}, false
}

// within returns a context that limits an operation, also in a test's cleanup.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), drivertest.Limit)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until a condition of the machine holds.
func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for deadline := time.Now().Add(drivertest.Limit); !fact(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came true: %s", what)
		}
	}
}

func pidOf(t *testing.T, o driver.Observed) int {
	t.Helper()
	pid, err := strconv.Atoi(o.Details["pid"])
	if err != nil {
		t.Fatalf("no pid in %+v", o)
	}
	return pid
}

// innerPID returns the pid of a process in its own namespace.
func innerPID(pid int) int {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(b)) {
		if all, ok := strings.CutPrefix(line, "NSpid:"); ok {
			names := strings.Fields(all)
			inner, _ := strconv.Atoi(names[len(names)-1])
			return inner
		}
	}
	return 0
}

// outerPID returns the pid in this namespace of a process that an instance knows by
// another.
func outerPID(t *testing.T, o driver.Observed, inner string) int {
	t.Helper()
	namespace, err := os.Readlink("/proc/" + o.Details["pid"] + "/ns/pid")
	must(t, err)
	all, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, path := range all {
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		if its, _ := os.Readlink(path); its == namespace && strconv.Itoa(innerPID(pid)) == inner {
			return pid
		}
	}
	t.Fatalf("the instance has no process %q", inner)
	return 0
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	state := bytes.LastIndexByte(b, ')') + 2
	return err == nil && state < len(b) && b[state] != 'Z' && b[state] != 'X'
}

// ignores reports whether a process ignores a signal.
func ignores(pid int, s syscall.Signal) bool {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(b)) {
		if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			bits, _ := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return bits&(1<<(s-1)) != 0
		}
	}
	return false
}

// killNow kills a process and waits until it is dead.
func killNow(t *testing.T, pid int) {
	t.Helper()
	kill(t, pid, syscall.SIGKILL)
	eventually(t, "it is dead", func() bool { return !alive(pid) })
}

func kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

package process_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
	"mariposa/listener/porttest"
)

// awaitLog follows a log until a line appears, and returns the lines before it.
func awaitLog(t *testing.T, a *agent, id, line string) (before []string) {
	t.Helper()
	r, err := a.Logs(within(t), id, driver.LogOptions{Tail: -1, Follow: true})
	must(t, err)
	defer r.Close()
	for s := bufio.NewScanner(r); s.Scan(); before = append(before, s.Text()) {
		if s.Text() == line {
			return before
		}
	}
	t.Fatalf("%q is not in the log: %q", line, before)
	return nil
}

func TestOnlyOneDriverHasARoot(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	open(t, process.Options{Root: root})
	if d, err := process.New(process.Options{Root: root, Isolation: isolation}); err == nil {
		_ = d.Close()
		t.Error("a second driver opened the root")
	}
}

// install copies a program in another process. If this process wrote it, the file could
// still be open for writing in a child that another test is just forking, and could not
// be executed.
func install(t *testing.T, from, to, mode string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "install", "-m", mode, from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestCommandsThatCannotRun(t *testing.T) {
	t.Parallel()
	root, dir := newRoot(t), t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // else instances could not access it
	write := func(name, text, mode string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path+".text", []byte(text), 0o644))
		install(t, path+".text", path, mode)
		return path
	}
	plain := write("plain", "x", "644")
	orphan := write("orphan", "#!/no/such/thing\n", "755")
	garbage := write("garbage", "\x01\x02\x03", "755")
	a := open(t, process.Options{Root: root})
	for command, want := range map[string]string{
		"helo":   `cannot run "helo": no such file in PATH`,
		"./helo": `cannot run "./helo": no such file`,
		dir:      `cannot run "` + dir + `": it is a directory`,
		plain:    `cannot run "` + plain + `": it is not executable`,
		orphan:   `cannot run "` + orphan + `": the interpreter that ` + orphan + ` names does not exist`,
		garbage:  `cannot run "` + garbage + `": ` + garbage + ` is not a program for this machine`,
		"":       "a process instance needs a command to run",
	} {
		o, err := a.tryStart(t, instance(drivertest.NewID(), command))
		if err == nil || err.Error() != want || o.Running {
			t.Errorf("%q: %v, want %s", command, err, want)
		}
	}
	checkNothing(t, root)

	id := drivertest.NewID()
	a.start(t, sh(id, "exit 0"))
	a.awaitEnd(t)
	if _, err := a.tryStart(t, instance(id, "helo")); err == nil {
		t.Error("it was started")
	}
	if o, ok := a.find(t, id); !ok || o.Running || o.Reason != `cannot run "helo": no such file in PATH` {
		t.Errorf("found %+v", o)
	}
	if o, err := a.tryStart(t, instance("../x", "sleep", "1")); err == nil {
		t.Errorf("an id that is a path was taken: %+v", o)
	}
}

func TestEnvironmentHoldsNothingOfTheAgents(t *testing.T) {
	t.Setenv("MARIPOSA_TOKEN", "secret")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("LANG", "C.UTF-8")
	t.Setenv("PATH", "/root/bin:/usr/local/bin:/usr/bin:/bin") // of which instances see the rest
	a, root, id := newAgent(t)
	i := sh(id, "env; echo end; exec sleep 1000")
	i.Workload.Environment = []mariposa.Variable{{Name: "MODE", Value: "x y"}, {Name: "HOME", Value: "/h"}, {Name: "MARIPOSA_ROOT", Value: "/"}, {Name: "MARIPOSA_MDATA_URL", Value: "http://elsewhere"}}
	i.Workload.Ports = []mariposa.Port{{Target: 8080}, {Target: 8443}}
	o := a.start(t, i)
	got := awaitLog(t, a, id, "end")
	got = slices.DeleteFunc(got, func(v string) bool { return strings.HasPrefix(v, "PWD=") }) // the shell's own
	slices.Sort(got)
	p1, p2 := o.Addresses[0][len("127.0.0.1:"):], o.Addresses[1][len("127.0.0.1:"):]
	exe, _ := os.Executable()
	want := []string{
		"HOME=/h", "LANG=C.UTF-8", "MARIPOSA_CLUSTER=c1", "MARIPOSA_INCARNATION=i1", "MARIPOSA_INSTANCE=" + id,
		"MARIPOSA_NAME=web.1", "MARIPOSA_PROJECT=shop", "MARIPOSA_FILES=" + a.Private(id) + "/files", "MARIPOSA_MDATA_FILE=" + a.Private(id) + "/mdata.json", "MARIPOSA_ROOT=" + root, "MARIPOSA_SERVICE=web", "MODE=x y",
		"PATH=" + filepath.Dir(exe) + ":/usr/local/bin:/usr/bin:/bin", "PORT=" + p1, "PORT_8080=" + p1, "PORT_8443=" + p2,
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("it has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	_, shims, _ := process.Labelled(root)
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(shims[0]) + "/environ"); err != nil || strings.Contains(string(b), "secret") {
		t.Errorf("the shim has %q (%v)", b, err)
	}
	checkOrdinary(t, pidOf(t, o), root, id)
}

// checkOrdinary checks that a command finds what programs expect.
func checkOrdinary(t *testing.T, pid int, root, id string) {
	t.Helper()
	proc := "/proc/" + strconv.Itoa(pid)
	if cwd, err := os.Readlink(proc + "/cwd"); err != nil || cwd != filepath.Join(root, id, "work") {
		t.Errorf("it works in %s (%v)", cwd, err)
	}
	if files, err := os.ReadDir(proc + "/fd"); err != nil || len(files) != 3 {
		t.Errorf("it has %d files open (%v)", len(files), err)
	}
	status, _ := os.ReadFile(proc + "/status")
	if line := "SigBlk:\t0000000000000000"; !strings.Contains(string(status), line) {
		t.Errorf("its status lacks %q:\n%s", line, status)
	}
	for s := syscall.Signal(1); s < 32; s++ { // those above are the C library's own, and may be inherited
		if ignores(pid, s) {
			t.Errorf("it ignores signal %d", s)
		}
	}
	info, _ := os.ReadFile(proc + "/fdinfo/1")
	_, flags, _ := strings.Cut(string(info), "flags:\t")
	if bits, err := strconv.ParseInt(strings.Fields(flags)[0], 8, 64); err != nil || bits&syscall.O_NONBLOCK != 0 {
		t.Errorf("its standard output does not block: %q", info)
	}
	if dir, err := os.Stat(filepath.Join(root, id)); err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("its directory is open to others: %v", err)
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	a, root, _ := newAgent(t)
	make := func(ports ...mariposa.Port) driver.Instance {
		i := instance(drivertest.NewID(), "sleep", "1000")
		i.Workload.Ports = ports
		return i
	}
	host := porttest.Reserve(t)
	i := make(mariposa.Port{Target: 8080}, mariposa.Port{Target: 8443, Host: host})
	first := a.start(t, i)
	picked := strings.TrimPrefix(first.Addresses[0], "127.0.0.1:")
	if at := strconv.Itoa(host); first.Addresses[1] != "127.0.0.1:"+at || first.Details["ports"] != "8080="+picked+",8443="+at {
		t.Errorf("it shows %+v", first)
	}
	seen := map[string]bool{picked: true}
	for range 20 {
		o := a.start(t, make(mariposa.Port{Target: 8080}))
		if seen[o.Addresses[0]] {
			t.Errorf("%s was given twice", o.Addresses[0])
		}
		seen[o.Addresses[0]] = true
	}
	a.stop(t, i.ID, 0)
	_ = a.Close()
	a = open(t, process.Options{Root: root})
	if again := a.start(t, i); !slices.Equal(again.Addresses, first.Addresses) {
		t.Errorf("started again, it has %v, had %v", again.Addresses, first.Addresses)
	}
	a.stop(t, i.ID, 0)
	l, err := net.Listen("tcp", first.Addresses[0])
	must(t, err)
	defer l.Close()
	if again := a.start(t, i); again.Addresses[0] == first.Addresses[0] {
		t.Error("it was given a port that someone else has taken")
	}
	held := a.start(t, make(mariposa.Port{Target: 8080})) // it does not listen
	number, _ := strconv.Atoi(strings.TrimPrefix(held.Addresses[0], "127.0.0.1:"))
	same := make(mariposa.Port{Target: 1, Host: number})
	if _, err := a.tryStart(t, same); err == nil || !strings.Contains(err.Error(), "is in use by instance web.1") {
		t.Errorf("a fixed port that another instance was given: %v", err)
	}
	a.stop(t, held.ID, 0)
	a.start(t, same)
	taken := l.Addr().(*net.TCPAddr).Port
	fixed := make(mariposa.Port{Target: taken, Host: taken})
	if _, err := a.tryStart(t, fixed); err == nil || !strings.Contains(err.Error(), "in use by another program") {
		t.Errorf("a fixed port that someone else has taken: %v", err)
	}
	if _, there := a.find(t, fixed.ID); there {
		t.Error("what could not start left a trace")
	}
}

const leavesChildren = `trap "" TERM
sleep 1000 & echo $!
setsid sleep 1000 & echo $!
setsid env -i sleep 1000 & echo $!
(setsid env -i sh -c 'sleep 1000 & echo $!; sleep 1000' & echo $!)
echo end
`

func TestNoProcessOutlivesItsInstance(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]struct {
		after string
		end   func(t *testing.T, a *agent, o driver.Observed) driver.Observed
		code  int
	}{
		"when it ends by itself": {"while [ ! -e go ]; do sleep 0.02; done; exit 3", func(t *testing.T, a *agent, o driver.Observed) driver.Observed {
			touch(t, filepath.Join(o.Details["directory"], "work", "go"))
			return a.awaitEnd(t)
		}, 3},
		"when it is stopped": {"wait", func(t *testing.T, a *agent, o driver.Observed) driver.Observed {
			return a.stop(t, o.ID, 100*time.Millisecond)
		}, 137},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, _, id := newAgent(t)
			o := a.start(t, sh(id, leavesChildren+how.after))
			var pids []int
			for _, line := range awaitLog(t, a, id, "end") {
				pids = append(pids, outerPID(t, o, line))
			}
			if len(pids) < 4 {
				t.Fatalf("only %v were started", pids)
			}
			end := how.end(t, a, o)
			if end.Running || end.ExitCode == nil || *end.ExitCode != how.code {
				t.Errorf("it ended as %+v", end)
			}
			for _, pid := range append(pids, pidOf(t, o)) {
				if alive(pid) {
					t.Errorf("process %d lives on", pid)
				}
			}
		})
	}
}

func TestGentleStopIsGentle(t *testing.T) {
	t.Parallel()
	a, _, id := newAgent(t)
	a.start(t, sh(id, `trap "echo bye; exit 5" TERM; echo up; while :; do sleep 0.02; done`))
	awaitLog(t, a, id, "up")
	if o := a.stop(t, id, drivertest.Limit); o.ExitCode == nil || *o.ExitCode != 5 || o.Reason != "exited with code 5" {
		t.Errorf("it stopped as %+v", o)
	}
	awaitLog(t, a, id, "bye")
}

func TestLogsAreRotated(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	a := open(t, process.Options{Root: root, LogSize: 64 << 10, LogFiles: 3})
	a.start(t, sh(id, "n=0; while [ $n -lt 60000 ]; do echo line $n; n=$((n+1)); done"))
	a.awaitEnd(t)
	files, err := filepath.Glob(filepath.Join(root, id, "log*"))
	if err != nil || len(files) != 3 {
		t.Errorf("its log is in %v (%v)", files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > 64<<10 {
			t.Errorf("%s is too big (%v)", f, err)
		}
	}
	r, err := a.Logs(t.Context(), id, driver.LogOptions{Tail: 6000})
	must(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if err != nil || len(lines) != 6000 {
		t.Fatalf("%d lines (%v)", len(lines), err)
	}
	for n, line := range lines {
		if want := "line " + strconv.Itoa(54000+n); line != want {
			t.Fatalf("%q, want %q", line, want)
		}
	}
}

func TestStrayProcessesAreFoundByTheirLabel(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	i := instance(id, "sleep", "1000")
	i.Workload.Ports = []mariposa.Port{{Target: 80}}
	before := a.start(t, i)
	_ = a.Close()
	must(t, os.RemoveAll(filepath.Join(root, id)))
	other := open(t, process.Options{Root: newRoot(t)})
	if o, ok := other.find(t, id); ok {
		t.Errorf("a driver of another root finds %+v", o)
	}
	other.remove(t, id)

	a = open(t, process.Options{Root: root})
	o, ok := a.find(t, id)
	if !ok || !o.Running || o.PhysicalID != before.PhysicalID || o.Labels != labels || !slices.Equal(o.Addresses, before.Addresses) {
		t.Fatalf("found %+v, was %+v", o, before)
	}
	if d := o.Started.Sub(before.Started).Abs(); d > time.Second {
		t.Errorf("its start moved by %v", d)
	}
	if again := a.start(t, i); again.PhysicalID != before.PhysicalID {
		t.Errorf("it was run a second time: %+v", again)
	}
	if o := a.stop(t, id, drivertest.Limit); o.Running || alive(pidOf(t, before)) {
		t.Errorf("it was not stopped: %+v", o)
	}
	a.start(t, i)
	a.remove(t, id)
	checkNothing(t, root)
}

func TestStrayProcessesCanBeRemovedAndEnd(t *testing.T) {
	t.Parallel()
	root, id, id2 := newRoot(t), drivertest.NewID(), drivertest.NewID()
	a := open(t, process.Options{Root: root})
	o := a.start(t, sh(id, `trap "" TERM; sleep 1000 & sleep 1000`))
	o2 := a.start(t, instance(id2, "sleep", "1000"))
	_ = a.Close()
	for _, x := range []string{id, id2} {
		must(t, os.RemoveAll(filepath.Join(root, x)))
	}
	a = open(t, process.Options{Root: root})
	kill(t, pidOf(t, o2), syscall.SIGTERM)
	if end := a.awaitEnd(t); end.ID != id2 || end.Running || end.Reason == "" {
		t.Errorf("its end was reported as %+v", end)
	}
	a.remove(t, id2)
	a.remove(t, id)
	if alive(pidOf(t, o)) {
		t.Error("it was not killed")
	}
	eventually(t, "the shims are gone, too", func() bool {
		pids, shims, _ := process.Labelled(root)
		return len(pids)+len(shims) == 0
	})
	checkNothing(t, root)
}

func TestDirectoryWipedUnderARunningAgent(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	o := a.start(t, instance(id, "sleep", "1000"))
	must(t, os.RemoveAll(filepath.Join(root, id)))
	if found, ok := a.find(t, id); !ok || !found.Running {
		t.Errorf("found %+v", found)
	}
	kill(t, pidOf(t, o), syscall.SIGTERM)
	if end := a.awaitEnd(t); end.ID != id || end.Running || end.Reason == "" {
		t.Errorf("its end was reported as %+v", end)
	}
	a.start(t, instance(id, "sleep", "1000"))
}

func TestCopiedRootLeavesTheOriginalAlone(t *testing.T) {
	t.Parallel()
	root, copied, id := newRoot(t), newRoot(t), drivertest.NewID()
	a := open(t, process.Options{Root: root})
	i := instance(id, "sleep", "1000")
	i.Workload.Memory = 64 << 20
	o := a.start(t, i)
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", filepath.Join(root, id), copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b := open(t, process.Options{Root: copied})
	if found, _ := b.find(t, id); found.Running {
		t.Errorf("the copy shows %+v", found)
	}
	if other := b.start(t, i); other.PhysicalID == o.PhysicalID {
		t.Errorf("the copy has taken over %+v", other)
	}
	b.stop(t, id, 0)
	b.remove(t, id)
	if found, _ := a.find(t, id); !found.Running || !alive(pidOf(t, o)) {
		t.Errorf("the original shows %+v", found)
	}
}

// unraced returns a binary of these tests without the race detector. In a second run of
// the suite the machine differs, not what goroutines do, and each of its many processes
// takes several times as long to start with the detector.
func unraced(t *testing.T) string {
	t.Helper()
	if !raced {
		return os.Args[0]
	}
	path := filepath.Join(t.TempDir(), "process.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the tests: %v\n%s", err, out)
	}
	return path
}

// TestWithoutIsolation runs the suite again as on a machine that cannot isolate.
func TestWithoutIsolation(t *testing.T) {
	if isolation == process.IsolationOff {
		return // it is this run
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), unraced(t), "-test.count=1", "-test.run=^("+
		"TestConformance|TestNoProcessOutlivesItsInstance|TestKilledShimTakesItsProcessesAlong|TestWhatDiesSlowlyIsAwaited|"+
		"TestAgentKilledAtEachStageOfStart|TestShimKilledAtEachStageOfStart|TestStrayProcessesCanBeRemovedAndEnd|TestACommandInsideDoesNotOutliveItsSupervisor|"+
		"TestAnAgentKilledInMidSessionLeavesNoCommandBehind|TestGentleStopIsGentle|TestAVolumeIsAFolderThatInstancesFindByVariableAndByPath)$")
	cmd.Env = append(os.Environ(), "TEST_WITHOUT_ISOLATION=1")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "no tests to run") {
		t.Errorf("without isolation: %v\n%s", err, out)
	}
}

// TestUnprivileged runs the suite again as the user nobody, as `make run` does for most
// people.
func TestUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		a, _, id := newAgent(t)
		i := instance(id, "sleep", "1000")
		i.Workload.Memory = 64 << 20
		o := a.start(t, i)
		if o.Details["limits"] != "not enforced: memory 64 MiB (the agent may not create cgroups; run it as root)" {
			t.Errorf("limits: %q", o.Details["limits"])
		}
		return
	}
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		must(t, os.Chmod(d, 0o755))
	}
	exe, tmp := filepath.Join(dir, "mariposa"), filepath.Join(dir, "tmp")
	install(t, unraced(t), exe, "755")
	err := os.Mkdir(tmp, 0o700)
	if err == nil {
		err = os.Chown(tmp, 65534, 65534)
	}
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.count=1", "-test.run=^("+
		"TestUnprivileged|TestConformance|TestATenantGetsNothingBeyondTheirInstance|TestACommandInsideHasNoMoreRightsThanTheInstance|TestKilledInitTakesItsProcessesAlong|TestNoProcessOutlivesItsInstance|TestKilledShimTakesItsProcessesAlong|TestWhatDiesSlowlyIsAwaited|TestKilledAgentFindsItsInstancesAgain)$")
	cmd.Dir = tmp
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + tmp, "TMPDIR=" + tmp}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "no tests to run") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

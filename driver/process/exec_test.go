package process_test

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

// execute runs a script in an instance and returns the first line that it writes.
func (a *agent) execute(t *testing.T, i driver.Instance, script string) (driver.Session, string) {
	t.Helper()
	s, err := a.Exec(t.Context(), i, driver.ExecOptions{Command: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("Exec: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	line, err := bufio.NewReader(s.Stdout()).ReadString('\n')
	if err != nil {
		t.Fatalf("it wrote nothing: %v", err)
	}
	return s, strings.TrimSpace(line)
}

func TestACommandInsideIsInTheSameCgroupsAndFolder(t *testing.T) {
	t.Parallel()
	a, root, _ := newAgent(t)
	i := instance(drivertest.NewID(), "sleep", "1000")
	i.Workload.Memory, i.Workload.MilliCPU = 64<<20, 250
	o := a.start(t, i)
	_, groups := a.execute(t, i, `cat /proc/self/cgroup | grep -E ':(memory|cpu[a-z,]*|pids|):/mariposa' | sort | tr '\n' ' '; echo; exec sleep 1000`)
	var want []string
	for line := range strings.Lines(groupsOf(t, o)) {
		if strings.Contains(line, ":/mariposa/") {
			want = append(want, strings.TrimSpace(line))
		}
	}
	if len(want) == 0 {
		t.Fatal("the instance is in no group")
	}
	for _, line := range want {
		if !strings.Contains(groups, line) {
			t.Errorf("it is in %s, the instance in %s", groups, want)
		}
	}
	if _, folder := a.execute(t, i, "pwd; exec sleep 1000"); folder != filepath.Join(root, i.ID, "work") {
		t.Errorf("it is in the directory %s", folder)
	}
	a.stop(t, i.ID, drivertest.Limit)
	left, err := filepath.Glob("/sys/fs/cgroup/*/mariposa/" + i.ID + ".*")
	if err != nil || len(left) > 0 {
		t.Errorf("commands inside keep the groups: %v (%v)", left, err)
	}
}

func TestTheLimitsOfAnInstanceHoldForCommandsInside(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t)})
	i := instance(drivertest.NewID(), "sleep", "1000")
	i.Workload.Memory = 128 << 20 // two supervisors are in it, which are large under -race
	a.start(t, i)
	s, err := a.Exec(t.Context(), i, driver.ExecOptions{Command: []string{"tail", "/dev/zero"}})
	must(t, err)
	defer s.Close()
	if code, err := s.Wait(); code != 137 || err != nil {
		t.Errorf("it ended with %d (%v)", code, err)
	}
}

func TestACommandInsideDoesNotOutliveItsSupervisor(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t)})
	i := instance(drivertest.NewID(), "sleep", "1000")
	o := a.start(t, i)
	s, line := a.execute(t, i, "echo $$ $PPID; exec sleep 1000")
	inner, innerParent, _ := strings.Cut(line, " ")
	pid, parent := outerPID(t, o, inner), outerPID(t, o, innerParent)
	kill(t, parent, unix.SIGKILL)
	if code, err := s.Wait(); code != -1 || err == nil {
		t.Errorf("it ended with %d (%v)", code, err)
	}
	eventually(t, "the command is gone", func() bool { return !alive(pid) })
	if found, _ := a.find(t, i.ID); !found.Running {
		t.Errorf("the instance shows %+v", found)
	}
}

func TestAnAgentKilledInMidSessionLeavesNoCommandBehind(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	cmd := exec.Command(os.Args[0], "agent-exec", root, id)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	pids, _, err := process.Labelled(root)
	if err != nil || len(pids) != 2 {
		t.Fatalf("an instance and a command inside are %v (%v)", pids, err)
	}
	pid := pids[0]
	if inner := strconv.Itoa(innerPID(pid)); inner != strings.TrimSpace(line) {
		pid = pids[1]
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, "the command is gone, and its supervisor", func() bool {
		_, shims, err := process.Labelled(root)
		return err == nil && len(shims) == 1 && !alive(pid)
	})
	a := open(t, process.Options{Root: root})
	if found, ok := a.find(t, id); !ok || !found.Running {
		t.Errorf("the instance shows %+v", found)
	}
}

func TestWhatACommandInsideIsToldIsOnNoDisk(t *testing.T) {
	t.Parallel()
	a, root, _ := newAgent(t)
	i := instance(drivertest.NewID(), "sleep", "1000")
	i.Workload.Environment = []mariposa.Variable{{Name: "PASSWORD", Value: "planted-in-the-environment"}}
	a.start(t, i)
	if _, said := a.execute(t, i, "echo $PASSWORD; : planted-in-the-command; exec sleep 1000"); said != "planted-in-the-environment" {
		t.Errorf("it said %q", said)
	}
	err := filepath.WalkDir(root, func(path string, f os.DirEntry, err error) error {
		if err != nil || !f.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte("planted")) {
			t.Errorf("%s contains what it was sent", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOutputIsReadToItsEndHoweverLateItIsRead(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t)})
	i := instance(drivertest.NewID(), "sleep", "1000")
	a.start(t, i)
	s, err := a.Exec(t.Context(), i, driver.ExecOptions{Command: []string{"sh", "-c", "head -c 60000 /dev/zero; echo e >&2"}})
	must(t, err)
	defer s.Close()
	if code, err := s.Wait(); code != 0 || err != nil {
		t.Fatalf("it ended with %d (%v)", code, err)
	}
	out, err1 := io.ReadAll(s.Stdout())
	errs, err2 := io.ReadAll(s.Stderr())
	if len(out) != 60000 || string(errs) != "e\n" || err1 != nil || err2 != nil {
		t.Errorf("%d bytes and %q were left (%v, %v)", len(out), errs, err1, err2)
	}
}

// TestASupervisorThatIsStoppedHoldsNobodyUp stops the supervisor of a command, as an
// instance that runs as the agent's user can.
func TestASupervisorThatIsStoppedHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t)})
	i := instance(drivertest.NewID(), "sleep", "1000")
	o := a.start(t, i)
	s, line := a.execute(t, i, "echo $$ $PPID; exec sleep 1000")
	inner, innerParent, _ := strings.Cut(line, " ")
	pid := outerPID(t, o, inner)
	kill(t, outerPID(t, o, innerParent), unix.SIGSTOP)
	must(t, s.Close())
	if code, err := s.Wait(); code != -1 || err == nil {
		t.Errorf("it ended with %d (%v)", code, err)
	}
	eventually(t, "the command is gone", func() bool { return !alive(pid) })
}

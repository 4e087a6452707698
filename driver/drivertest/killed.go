package drivertest

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/osproc"
)

// StartAgent runs the test binary again as an agent, `agent OPTIONS ID`, and waits until it has
// written a line. It may write the lines of before first.
func StartAgent(t *testing.T, options any, id, line string, before ...string) *exec.Cmd {
	t.Helper()
	b, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe", "agent", string(b), id) //nolint:gosec // ourselves
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { KillAgent(cmd) })
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			t.Fatal("the agent has ended")
		}
		if lines.Text() == line {
			return cmd
		}
		if !strings.Contains(strings.Join(before, "\n"), lines.Text()) {
			t.Fatal(lines.Text())
		}
	}
}

// KillAgent kills an agent, which may have ended.
func KillAgent(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended
	_ = cmd.Wait()
}

// KillProcesses kills the processes of a program that have an id among their arguments.
func KillProcesses(program, id string) {
	for pid, args := range osproc.FindArgs(program) {
		if p, _, ok := osproc.Read(pid); ok && strings.Contains(strings.Join(args, " "), id) {
			p.Kill(unix.SIGKILL)
		}
	}
}

// Kills is how often agents are killed: TEST_KILLS, or a few times.
func Kills() int {
	if n, err := strconv.Atoi(os.Getenv("TEST_KILLS")); err == nil {
		return n
	}
	return 4
}

// AwaitNoTraces waits until nothing is left of an instance on the machine; see Traces.
func AwaitNoTraces(t *testing.T, dir, id, when string) {
	t.Helper()
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if left = Traces(dir, id); len(left) == 0 {
			return
		}
	}
	t.Fatalf("%s, left are\n%s", when, strings.Join(left, "\n"))
}

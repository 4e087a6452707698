package scripts_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// repeated runs test-repeat.sh in a temporary directory whose `make test` runs the given
// recipe.
func repeated(t *testing.T, recipe string, env ...string) (string, int, string) {
	t.Helper()
	dir := t.TempDir()
	script, err := os.ReadFile("test-repeat.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "scripts"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "scripts", "test-repeat.sh"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte("test:\n\t@"+recipe+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// By its interpreter: a file that was just written may still be open in a child of another
	// test, and then cannot be executed.
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(dir, "scripts", "test-repeat.sh"))
	cmd.Env = append(append(os.Environ(), "N=3", "BUSY=", "MAKEFLAGS=", "TESTFLAGS="), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	// Everything that the script started is in its process group and must be gone.
	if err := syscall.Kill(-cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("it left processes behind: %v", err)
	}
	return string(out), cmd.ProcessState.ExitCode(), dir
}

func TestRepeatSaysWhichRunFailedAndKeepsEveryLog(t *testing.T) {
	t.Parallel()
	// The second of three runs fails. Each run prints the flags that it got.
	out, code, dir := repeated(t, `echo "flags $$TESTFLAGS"; echo x >> runs; [ $$(wc -l < runs) != 2 ] || `+
		`{ printf -- '--- FAIL: TestOne (0.1s)\n    --- FAIL: TestOne/part (0.1s)\n--- FAIL: TestTwo (0.1s)\nFAIL\nFAIL\tmariposa/api\t1.0s\n'; exit 1; }`)
	if code == 0 {
		t.Error("it passed although a run failed")
	}
	for _, part := range []string{"run 1 of 3: ", "run 2 of 3: ", "FAILED: TestOne TestTwo in mariposa/api\n", "run 3 of 3: ", "2 of 3 passed"} {
		if !strings.Contains(out, part) {
			t.Errorf("it does not say %q:\n%s", part, out)
		}
	}
	for _, name := range []string{"run-001.log", "run-002.log", "run-003.log"} {
		log, err := os.ReadFile(filepath.Join(dir, ".cache", "test-logs", name))
		if err != nil || !strings.Contains(string(log), "flags -count=1") {
			t.Errorf("%s: %v\n%s", name, err, log)
		}
	}
}

func TestRepeatKeepsTheCoresBusyUntilItEnds(t *testing.T) {
	t.Parallel()
	out, code, _ := repeated(t, `true`, "BUSY=1", "N=2")
	if code != 0 || !strings.Contains(out, "cores busy") || !strings.Contains(out, "2 of 2 passed") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if _, code, _ := repeated(t, `true`, "N=none"); code != 2 {
		t.Errorf("a count that is no number: exit code %d", code)
	}
}

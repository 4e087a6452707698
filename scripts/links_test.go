package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// linking runs keep-links.sh with a linker that writes a line to a log and a program to its
// output. It returns the program, the number of times that the linker ran, and the error.
func linking(t *testing.T, dir, id string, args ...string) (program string, ran int, err error) {
	t.Helper()
	linker, out := filepath.Join(dir, "linker.sh"), filepath.Join(dir, "out")
	_ = os.Remove(out)
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"keep-links.sh", filepath.Join(dir, "link"), linker, "-o", out, "-buildid=" + id}, args...)...)
	cmd.Env = append(os.Environ(), "KEEP_LINKS_IN="+filepath.Join(dir, "kept"), "LOG="+filepath.Join(dir, "log"))
	said, err := cmd.CombinedOutput()
	t.Logf("%s", said)
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	b, _ := os.ReadFile(out)
	return string(b), strings.Count(string(log), "\n"), err
}

func TestALinkedProgramIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	// The tool is called link, and executes the linker below.
	if err := os.Symlink(bash, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "kept"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "linker.sh"), []byte(`echo "$*" >>"$LOG"; printf 'program %s' "$3" >"$2"; [ "$4" != fail ]`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name, id string
		args     []string
		fails    bool
		ran      int
	}{
		{"the first time", "a/b-1/c_2/a", nil, false, 1},
		{"again", "a/b-1/c_2/a", nil, false, 1},
		{"another program", "d/b-1/c_2/d", nil, false, 2},
		{"the first one again", "a/b-1/c_2/a", nil, false, 2},
		{"one that cannot be linked", "e/f", []string{"fail"}, true, 3},
		{"which is not kept", "e/f", []string{"fail"}, true, 4},
		{"an ID that is a path", "../a", nil, false, 5},
		{"is not kept either", "../a", nil, false, 6},
	} {
		program, ran, err := linking(t, dir, step.id, step.args...)
		if (err != nil) != step.fails || ran != step.ran {
			t.Fatalf("%s: the linker ran %d times, %v", step.name, ran, err)
		}
		if want := "program -buildid=" + step.id; program != want {
			t.Errorf("%s: the program is %q", step.name, program)
		}
		if err := os.WriteFile(filepath.Join(dir, "out"), []byte("changed"), 0o600); err != nil { // as go does
			t.Fatal(err)
		}
	}
	kept, err := os.ReadDir(filepath.Join(dir, "kept"))
	if err != nil || len(kept) != 2 {
		t.Errorf("kept are %v, %v", kept, err)
	}
}

func TestOtherToolsRunAsTheyAre(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "bash", "keep-links.sh", "echo", "-o", "x", "-buildid=a/b").CombinedOutput()
	if err != nil || string(out) != "-o x -buildid=a/b\n" {
		t.Errorf("says %q, %v", out, err)
	}
}

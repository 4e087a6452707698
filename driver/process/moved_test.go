package process_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

// The root of an agent is moved while an instance runs. The next agent runs commands in the
// instance, reads its log, changes its values, restarts and stops it.
func TestAnInstanceSurvivesTheMoveOfItsRoot(t *testing.T) {
	t.Parallel()
	a, root, _ := newAgent(t)
	i := instance(drivertest.NewID(), "sh", "-c", "echo hello; exec sleep 1000")
	o := a.start(t, i)
	must(t, a.Close())
	moved := root + "-moved"
	must(t, os.Rename(root, moved))
	t.Cleanup(func() { _ = os.RemoveAll(moved) })
	b := open(t, process.Options{Root: moved})
	if now, ok := b.find(t, i.ID); !ok || !now.Running || now.PhysicalID != o.PhysicalID {
		t.Fatalf("it is %+v", now)
	}
	s, folder := b.execute(t, i, "echo x > made; pwd; exec sleep 1000")
	if filepath.Base(folder) != "work" {
		t.Errorf("a command is in %s", folder)
	}
	_ = s.Close()
	if _, err := os.Stat(filepath.Join(moved, i.ID, "work", "made")); err != nil {
		t.Error(err)
	}
	log, err := b.Logs(t.Context(), i.ID, mariposa.LogOptions{Tail: -1})
	must(t, err)
	if text, err := io.ReadAll(log); !strings.Contains(string(text), "hello") || err != nil {
		t.Errorf("its log is %q, %v", text, err)
	}
	_ = log.Close()
	b.publish(t, i.ID, "k", "after")
	s, value := b.execute(t, i, `cat "$MARIPOSA_MDATA_FILE"; echo; exec sleep 1000`)
	if !strings.Contains(value, "after") {
		t.Errorf("its values are %s", value)
	}
	_ = s.Close()
	if now := b.stop(t, i.ID, 0); now.Running {
		t.Errorf("it still runs: %+v", now)
	}
	if again := b.start(t, i); again.PhysicalID == o.PhysicalID {
		t.Errorf("it was not restarted: %+v", again)
	}
	if _, folder := b.execute(t, i, "pwd; exec sleep 1000"); folder != filepath.Join(moved, i.ID, "work") {
		t.Errorf("after a restart, a command is in %s", folder)
	}
}

// What supervises an instance finds the directory again after it was moved: the log goes on
// when its file is full, and how the instance ended is known.
func TestALogAndAnExitCodeSurviveTheMoveOfTheRoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	a := open(t, process.Options{Root: root, LogSize: 4 << 10, LogFiles: 3})
	i := instance(drivertest.NewID(), "sh", "-c", `until [ -e go ]; do sleep 0.02; done; n=0; while [ $n -lt 300 ]; do echo "line number $n of the log"; n=$((n+1)); done; exit 9`)
	a.start(t, i)
	must(t, a.Close())
	moved := root + "-moved"
	must(t, os.Rename(root, moved))
	t.Cleanup(func() { _ = os.RemoveAll(moved) })
	b := open(t, process.Options{Root: moved, LogSize: 4 << 10, LogFiles: 3})
	must(t, os.WriteFile(filepath.Join(moved, i.ID, "work", "go"), nil, 0o644))
	if o := b.endOf(t, i.ID); o.ExitCode == nil || *o.ExitCode != 9 || o.Reason != "exited with code 9" {
		t.Errorf("it ended with %+v", o)
	}
	log, err := b.Logs(t.Context(), i.ID, mariposa.LogOptions{Tail: 1})
	must(t, err)
	defer log.Close()
	if text, err := io.ReadAll(log); string(text) != "line number 299 of the log\n" || err != nil {
		t.Errorf("its last line is %q, %v", text, err)
	}
}

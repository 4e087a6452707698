package drivertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
)

// execer returns the driver under test if it can run commands. The agent makes the same
// check.
func (b *fixture) execer(t *testing.T) (driver.Execer, bool) {
	t.Helper()
	d, ok := b.driver.(driver.Execer)
	if ok != (b.Script != nil) {
		t.Fatal("the harness and the driver disagree on whether commands can run")
	}
	return d, ok
}

// exec runs a script in an instance and fails the test if it cannot.
func (b *fixture) exec(ctx context.Context, t *testing.T, i driver.Instance, script string, terminal *driver.Size) driver.Session {
	t.Helper()
	d, _ := b.execer(t)
	s, err := d.Exec(ctx, i, driver.ExecOptions{
		Command: b.Script(script), Terminal: terminal,
		Environment: []mariposa.Variable{{Name: "OURS", Value: "not this"}, {Name: "MORE", Value: "than that"}},
	})
	if err != nil {
		t.Fatalf("Exec: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// readOutput reads all output of a session, and how it ends.
func readOutput(t *testing.T, s driver.Session) (out, errs string, code int, err error) {
	t.Helper()
	read := func(r io.Reader) <-chan string {
		all := make(chan string, 1)
		if r == nil {
			all <- ""
			return all
		}
		go func() {
			text, _ := io.ReadAll(r) // missing output shows in the text
			all <- string(text)
		}()
		return all
	}
	outs, errors := read(s.Stdout()), read(s.Stderr())
	for n, c := range []<-chan string{outs, errors} {
		select {
		case text := <-c:
			if n == 0 {
				out = text
			} else {
				errs = text
			}
		case <-time.After(Limit):
			t.Fatal("the output of a command never ends")
		}
	}
	code, err = wait(t, s)
	return out, errs, code, err
}

func wait(t *testing.T, s driver.Session) (code int, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		code, err = s.Wait()
		close(done)
	}()
	select {
	case <-done:
		return code, err
	case <-time.After(Limit):
		t.Fatal("a command never ends")
		return 0, nil
	}
}

func testExec(t *testing.T, b *fixture) {
	if _, ok := b.execer(t); !ok {
		return
	}
	i := b.Runs(t, b.id())
	i.Workload.Environment = append(i.Workload.Environment, mariposa.Variable{Name: "OURS", Value: "a b"})
	o := b.mustStart(t, i)
	s := b.exec(t.Context(), t, i, `echo "$OURS, $MORE"; echo trouble >&2; exit 7`, nil)
	if err := s.Resize(driver.Size{Rows: 1, Cols: 1}); err != nil {
		t.Errorf("without a terminal, Resize: %v", err)
	}
	if out, errs, code, err := readOutput(t, s); out != "a b, than that\n" || errs != "trouble\n" || code != 7 || err != nil {
		t.Errorf("it wrote %q and %q and exited with %d (%v)", out, errs, code, err)
	}
	if found := b.mustFind(t, i.ID); !found.Running || found.PhysicalID != o.PhysicalID || b.endsReported(i.ID) != 0 {
		t.Errorf("after a command, List shows %+v", found)
	}
}

func testExecInput(t *testing.T, b *fixture) {
	if _, ok := b.execer(t); !ok {
		return
	}
	i := b.Runs(t, b.id())
	b.mustStart(t, i)
	text := make([]byte, 3<<20)
	_, _ = rand.Read(text) // never fails
	s := b.exec(t.Context(), t, i, "cat", nil)
	go func() {
		_, _ = s.Write(text) // what is missing shows in the echo
		_ = s.CloseWrite()
	}()
	if out, _, code, err := readOutput(t, s); !bytes.Equal([]byte(out), text) || code != 0 || err != nil {
		t.Errorf("%d bytes of %d came back, and it exited with %d (%v)", len(out), len(text), code, err)
	}
	deaf := b.exec(t.Context(), t, i, "exit 0", nil)
	_, _ = wait(t, deaf)
	if _, err := deaf.Write(text); err == nil {
		t.Error("an ended command still reads")
	}
}

func testExecTerminal(t *testing.T, b *fixture) {
	if _, ok := b.execer(t); !ok {
		return
	}
	i := b.Runs(t, b.id())
	b.mustStart(t, i)
	// An engine may set the size a moment after the start.
	s := b.exec(t.Context(), t, i, `stty -echo; while test "$(stty size)" = "0 0"; do sleep 0.01; done; stty size; read line; stty size; echo "$line" >&2; test -t 0 && test -t 2 && exit 3`, &driver.Size{Rows: 40, Cols: 132})
	if s.Stderr() != nil {
		t.Error("a terminal has two outputs")
	}
	first := make([]byte, len("40 132\r\n"))
	if _, err := io.ReadFull(s.Stdout(), first); err != nil || string(first) != "40 132\r\n" {
		t.Fatalf("it said %q (%v)", first, err)
	}
	if err := s.Resize(driver.Size{Rows: 20, Cols: 60}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("typed\n")); err != nil {
		t.Fatal(err)
	}
	if out, _, code, err := readOutput(t, s); out != "20 60\r\ntyped\r\n" || code != 3 || err != nil {
		t.Errorf("it wrote %q and exited with %d (%v)", out, code, err)
	}
	asleep := b.exec(t.Context(), t, i, "echo go; exec sleep 1000", &driver.Size{Rows: 24, Cols: 80})
	if _, err := io.ReadFull(asleep.Stdout(), make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go pressCtrlC(asleep, ended)
	if code, err := wait(t, asleep); code != 130 || err != nil {
		t.Errorf("interrupted, it exited with %d (%v)", code, err)
	}
}

// pressCtrlC interrupts a session until it ends. A shell that is about to exec another program may
// lose the first signal.
func pressCtrlC(s driver.Session, ended <-chan struct{}) {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		if _, err := s.Write([]byte{3}); err != nil {
			return // it has ended
		}
		select {
		case <-again.C:
		case <-ended:
			return
		}
	}
}

// endless writes one line and keeps running, also in its own session.
const endless = `trap "" HUP; (setsid sleep 1000 || sleep 1000) & echo up; sleep 1000; wait`

func testExecEnds(t *testing.T, b *fixture) {
	if _, ok := b.execer(t); !ok {
		return
	}
	up := func(s driver.Session) driver.Session {
		t.Helper()
		if _, err := io.ReadFull(s.Stdout(), make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		return s
	}
	over := func(how string, s driver.Session, want int) {
		t.Helper()
		if code, _ := wait(t, s); code != want {
			t.Errorf("%s, it exited with %d, want %d", how, code, want)
		}
	}
	i := b.Runs(t, b.id())
	b.mustStart(t, i)
	ctx, cancel := context.WithCancel(t.Context())
	s := up(b.exec(ctx, t, i, endless, nil))
	cancel()
	over("with its context", s, 137)
	s = up(b.exec(t.Context(), t, i, endless, &driver.Size{Rows: 24, Cols: 80}))
	_ = s.Close()
	over("closed", s, 137)
	s = up(b.exec(t.Context(), t, i, "echo up; exec sleep 1000", nil))
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	over("after a signal", s, 143)
	s = up(b.exec(t.Context(), t, i, endless, nil))
	b.stop(t, i.ID, 0)
	if _, err := wait(t, s); !errors.Is(err, driver.ErrInstanceEnded) {
		t.Errorf("with its instance, it returned %v", err)
	}
	b.mustStart(t, i) // the last run has left nothing that prevents this
	s = up(b.exec(t.Context(), t, i, endless, nil))
	b.reopen(t)
	over("with the agent", s, 137)
	out, _, code, err := readOutput(t, b.exec(t.Context(), t, i, "echo found again", nil))
	if out != "found again\n" || code != 0 || err != nil {
		t.Errorf("in an adopted instance it wrote %q and exited with %d (%v)", out, code, err)
	}
}

func testExecRefused(t *testing.T, b *fixture) {
	d, ok := b.execer(t)
	if !ok {
		return
	}
	i := b.Runs(t, b.id())
	try := func(command ...string) error {
		s, err := d.Exec(t.Context(), i, driver.ExecOptions{Command: command})
		if err == nil {
			_ = s.Close()
		}
		return err
	}
	if err := try(b.Script("true")...); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("in an unknown instance: %v", err)
	}
	b.mustStart(t, i)
	var fault *driver.CommandError
	if err := try("no-such-command-" + strings.ToLower(rand.Text())); !errors.As(err, &fault) {
		t.Errorf("a missing program: %v", err)
	}
	if err := try(); !errors.As(err, &fault) {
		t.Errorf("no command: %v", err)
	}
	b.stop(t, i.ID, Limit)
	if err := try(b.Script("true")...); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("in an ended instance: %v", err)
	}
}

func testExecStopping(t *testing.T, b *fixture) {
	if _, ok := b.execer(t); !ok || b.Stubborn == nil {
		return
	}
	i := b.Stubborn(t, b.id())
	b.Ready(t, b.mustStart(t, i))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		_, err := b.driver.Stop(ctx, i.ID, -1)
		stopped <- err
	}()
	if out, _, _, err := readOutput(t, b.exec(t.Context(), t, i, "echo why", nil)); out != "why\n" || err != nil {
		t.Errorf("it said %q (%v)", out, err)
	}
	cancel()
	select {
	case <-stopped:
	case <-time.After(Limit):
		t.Fatal("Stop never returned")
	}
}

package main_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const sleeper = `services:
  web:
    compute_type: process
    command: [sleep, "1000"]
    environment: {KEY: "{{ .meta.key }}"}
metadata: {key: {secret: true, generate: 24}}
`

// sleeping starts a server with one sleeping instance and returns the name of the
// instance.
func sleeping(t *testing.T) (*devServer, string) {
	t.Helper()
	h := newDevServer(t)
	h.create("shop", sleeper)
	h.converged("shop", "web", 1)
	for name := range h.instances("shop") {
		return h, name
	}
	t.Fatal("there is no instance")
	return nil, ""
}

func TestACommandInsideAnInstance(t *testing.T) {
	t.Parallel()
	h, name := sleeping(t)
	out, errs, code := h.mariposa("unread", "instance", "exec", name, "--", "sh", "-c", `echo "$MARIPOSA_NAME"; echo trouble >&2; exit 7`)
	if out != name+"\n" || errs != "trouble\n" || code != 7 {
		t.Errorf("it said %q and %q and ended with %d", out, errs, code)
	}
	if out, errs, code = h.mariposa("echo from a script; exit 4\n", "instance", "exec", name); out != "from a script\n" || code != 4 {
		t.Errorf("a shell said %q and %q and ended with %d", out, errs, code)
	}
	h.cannot(`cannot run "no-such-command"`, "instance", "exec", name, "--", "no-such-command")
	key := strings.TrimSpace(h.ok("instance", "exec", name, "--", "sh", "-c", "echo $KEY"))
	if len(key) != 24 {
		t.Errorf("it does not have the environment of its instance: %q", key)
	}
	h.ok("instance", "exec", name, "--", "sh", "-c", ": it says "+key+" aloud")
	audit := h.ok("events", "--audit", "-j", "shop", "--json")
	if !strings.Contains(audit, "instance.exec") || !strings.Contains(audit, "it says") || strings.Contains(audit, key) {
		t.Errorf("the audit says %s", audit)
	}
	if out, _, code = h.mariposa("", "instance", "exec", "-t", name, "--", "stty", "size"); out != "24 80\r\n" || code != 0 {
		t.Errorf("its terminal is %q, and it ended with %d", out, code)
	}
	h.await("fully removed", func() bool { return len(h.processes()) == 1 })
}

func TestMuchGoesThroughACommandUnchanged(t *testing.T) {
	t.Parallel()
	h, name := sleeping(t)
	text := make([]byte, 5<<20)
	_, _ = rand.Read(text) // it never fails
	if out := h.fed(string(text), "instance", "exec", "-i", name, "--", "cat"); !bytes.Equal([]byte(out), text) {
		t.Errorf("%d bytes came back of %d, or others", len(out), len(text))
	}
	if out := h.fed(string(text), "instance", "exec", "-i", name, "--", "head", "-c", "3"); out != string(text[:3]) {
		t.Errorf("%q came back of a command that reads no more", out)
	}
}

// begin starts a client command and waits for its first line of output.
func (h *devServer) begin(errs io.Writer, args ...string) (cmd *exec.Cmd, line string) {
	h.t.Helper()
	cmd = program(context.Background(), h.dir, []string{"MARIPOSA_DATA=" + h.dir}, args...)
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	must(h.t, err)
	must(h.t, cmd.Start())
	h.t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		h.t.Fatalf("it printed nothing: %v", err)
	}
	return cmd, strings.TrimSpace(line)
}

const stays = `echo $$; (setsid sleep 1000 &); sleep 1000; :`

func TestACommandEndsWithItsClient(t *testing.T) {
	t.Parallel()
	h, name := sleeping(t)
	for _, flags := range [][]string{nil, {"-i"}, {"-t"}} {
		args := append(append([]string{"instance", "exec"}, flags...), name, "--", "sh", "-c", stays)
		cmd, _ := h.begin(io.Discard, args...)
		h.await("the command runs beside the instance", func() bool { return len(h.processes()) > 2 })
		end(cmd)
		h.await("the command is gone, and all it has started", func() bool { return len(h.processes()) == 1 })
	}
	cmd, _ := h.begin(io.Discard, "instance", "exec", name, "--", "sh", "-c", `trap 'exit 9' INT; echo up; while :; do sleep 0.05; done`)
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("interrupted, it ended with %d", code)
	}
	h.realityMatches("shop")
}

func TestACommandDoesNotSurviveTheServerAndSaysSo(t *testing.T) {
	t.Parallel()
	h, name := sleeping(t)
	var errs lockedBuffer
	cmd, _ := h.begin(&errs, "instance", "exec", name, "--", "sh", "-c", stays)
	h.kill()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 255 || !strings.Contains(errs.String(), "lost the connection") {
		t.Errorf("it ended with %d: %s", code, errs.String())
	}
	h.await("only the instance is left", func() bool { return len(h.processes()) == 1 })
	h.start()
	h.converged("shop", "web", 1)
	// The store may report the instance as running before its node is connected again.
	if out, said, code := h.mariposa("", "instance", "exec", name, "--", "echo", "here again"); code != 0 || out != "here again\n" {
		t.Errorf("right after the restart: %d, %s %s", code, out, said)
	}
	errs = lockedBuffer{}
	cmd, _ = h.begin(&errs, "instance", "exec", name, "--", "sh", "-c", stays)
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	<-h.done
	if code := cmd.ProcessState.ExitCode(); code != 255 || errs.String() == "" || h.code != 0 {
		t.Errorf("it ended with %d, the server with %d: %s", code, h.code, errs.String())
	}
	h.await("only the instance is left", func() bool { return len(h.processes()) == 1 })
}

// terminal is a pseudo-terminal, as used by a person.
type terminal struct {
	t       *testing.T
	ours    *os.File
	theirs  *os.File
	showing bytes.Buffer // output that no call has asked for yet
	screen  *screen
}

func newTerminal(t *testing.T, rows, cols uint16) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	must(t, err)
	theirs, err := os.OpenFile("/dev/pts/"+itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	x := &terminal{t: t, ours: os.NewFile(uintptr(fd), "terminal"), theirs: theirs, screen: newScreen(int(rows), int(cols))}
	x.resize(rows, cols)
	t.Cleanup(func() { _, _ = x.ours.Close(), x.theirs.Close() })
	return x
}

// control reads or sets the terminal's modes.
func (x *terminal) control(ioctl func(fd int) error) {
	x.t.Helper()
	raw, err := x.theirs.SyscallConn()
	must(x.t, err)
	_ = raw.Control(func(fd uintptr) { err = ioctl(int(fd)) })
	must(x.t, err)
}

func (x *terminal) resize(rows, cols uint16) {
	x.t.Helper()
	x.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

func (x *terminal) settings() unix.Termios {
	x.t.Helper()
	var now *unix.Termios
	x.control(func(fd int) (err error) { now, err = unix.IoctlGetTermios(fd, unix.TCGETS); return err })
	return *now
}

func (x *terminal) types(text string) {
	x.t.Helper()
	_, err := io.WriteString(x.ours, text)
	must(x.t, err)
}

// shows waits until the screen contains a text, and discards everything up to it.
func (x *terminal) shows(text string) {
	x.t.Helper()
	for deadline := time.Now().Add(limit); ; x.read(deadline, text) {
		if at := strings.Index(x.showing.String(), text); at >= 0 {
			x.showing.Next(at + len(text))
			return
		}
	}
}

// displays waits until a person at the terminal sees what is expected, which does not
// have to be drawn in one piece.
func (x *terminal) displays(what string, expected func(lines []string) bool) {
	x.t.Helper()
	for deadline := time.Now().Add(limit); !expected(x.screen.lines()); x.read(deadline, what) {
	}
}

// read reads more output.
func (x *terminal) read(deadline time.Time, expected string) {
	x.t.Helper()
	_ = x.ours.SetReadDeadline(deadline)
	buf := make([]byte, 4096)
	n, err := x.ours.Read(buf)
	if err != nil {
		x.t.Fatalf("%q never showed in %q, and the screen is\n%s\n%v", expected, x.showing.String(), strings.Join(x.screen.lines(), "\n"), err)
	}
	x.showing.Write(buf[:n])
	_, _ = x.screen.Write(buf[:n])
}

// runs starts a program on the terminal.
func (x *terminal) runs(h *devServer, program string, args ...string) *exec.Cmd {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), limit)
	x.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=" + binaries + ":" + os.Getenv("PATH"), "HOME=" + h.dir, "MARIPOSA_DATA=" + h.dir, "TERM=vt100"}
	return x.starts(cmd)
}

// starts starts a command on the terminal.
func (x *terminal) starts(cmd *exec.Cmd) *exec.Cmd {
	x.t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = x.theirs, x.theirs, x.theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(x.t, cmd.Start())
	return cmd
}

// ended checks that a program has exited with a code and restored the terminal.
func (x *terminal) ended(cmd *exec.Cmd, code int, before unix.Termios) {
	x.t.Helper()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != code {
		x.t.Errorf("%v ended with %d", cmd.Args, got)
	}
	if x.settings() != before {
		x.t.Errorf("after %v, the terminal was not restored", cmd.Args)
	}
}

func TestAShellAtATerminal(t *testing.T) {
	t.Parallel()
	h, name := sleeping(t)
	x := newTerminal(t, 33, 101)
	before := x.settings()
	cmd := x.runs(h, filepath.Join(binaries, "mariposa"), "instance", "exec", name)
	x.shows("$ ") // an instance is not root
	x.types("stty size\n")
	x.shows("33 101\r\n")
	x.resize(20, 50)
	x.types("until stty size | grep '20 50'; do sleep 0.1; done\n") // resizes are sent separately from the input
	x.shows("20 50\r\n")
	x.types("sh -c 'echo re\"ad\"y; exec sleep 1000'\n")
	x.shows("ready\r\n") // the output, not the echo of the input: the command runs
	x.types("\x03")
	x.types("echo rc=$?\n")
	x.shows("rc=130\r\n")
	if x.settings() == before {
		t.Error("the keys were not handed on as they are")
	}
	x.types("exit 5\n")
	x.ended(cmd, 5, before)
}

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// crowded starts a server with more projects than fit into a small window: aaa, bbb, and
// so on up to lll.
func crowded(t *testing.T) *devServer {
	t.Helper()
	h := newDevServer(t)
	var names []string
	for letter := 'a'; letter <= 'l'; letter++ {
		names = append(names, strings.Repeat(string(letter), 3))
		h.create(names[len(names)-1], dummies)
	}
	for _, name := range names {
		h.converged(name, "d", 1)
	}
	return h
}

// Only changes are drawn, so tests must wait for text that is drawn in one piece.
const (
	ownScreen = "\x1b[?1049h"
	oldScreen = "\x1b[?1049l"
	endKey    = "\x1b[F"
)

func TestALiveViewAtATerminal(t *testing.T) {
	t.Parallel()
	h := crowded(t)
	for _, v := range []struct {
		args, rows, comes, end string
	}{{"state -w", " of 24 lines", "yyy", "to 26 of 26 lines"}, {"top", " of 13 projects", "zzz", "to 14 of 14 projects"}} {
		x := newTerminal(t, 20, 100)
		before := x.settings()
		cmd := x.runs(h, filepath.Join(binaries, "mariposa"), strings.Fields(v.args)...)
		x.shows(ownScreen)
		x.shows(v.rows)
		h.create(v.comes, dummies)
		x.shows(v.comes)
		h.converged(v.comes, "d", 1) // top lists projects that are not converged first
		x.types(endKey)
		x.displays("the end of the list", func(lines []string) bool {
			text := strings.Join(lines, "\n")
			return strings.Contains(text, v.end) && strings.Contains(text, "\n"+v.comes+" ")
		})
		if x.settings() == before {
			t.Error("keys are not read as they are pressed")
		}
		x.types("q")
		x.shows(oldScreen)
		if v.args != "top" {
			x.shows(v.comes) // the last frame stays on the screen completely
		}
		x.ended(cmd, 0, before)
	}
}

func TestALiveViewThatIsEndedFromOutsideGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", dummies)
	h.converged("shop", "d", 1)
	for _, command := range []string{"state -w", "top"} {
		for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
			x := newTerminal(t, 20, 100)
			before := x.settings()
			cmd := x.runs(h, filepath.Join(binaries, "mariposa"), strings.Fields(command)...)
			x.shows(ownScreen)
			x.shows("shop")
			_ = cmd.Process.Signal(sig)
			x.shows(oldScreen)
			if command != "top" {
				x.shows("shop")
			}
			x.ended(cmd, 0, before)
		}
	}
}

// A shell can suspend and resume a view. A view in the background neither reads keys nor
// is stopped for trying to.
func TestALiveViewAsAJobOfAShell(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", dummies)
	h.converged("shop", "d", 1)
	x := newTerminal(t, 20, 100)
	cmd := x.runs(h, "sh", "-i")
	x.shows("# ")
	x.types("mariposa top\n")
	x.shows(ownScreen)
	x.shows("shop")
	x.types("\x1a")
	x.shows(oldScreen)
	x.shows("Stopped")
	x.types("fg\n")
	x.shows(ownScreen)
	x.shows("shop")
	x.types("q")
	x.shows(oldScreen)
	x.types("echo rc=$?\n")
	x.shows("rc=0\r\n")
	x.types("mariposa state -w &\n")
	x.shows(ownScreen)
	x.shows("shop")
	x.types("kill $! && wait $!; echo rc=$?\n")
	x.shows(oldScreen)
	x.shows("rc=0\r\n")
	x.types("exit 0\n")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// The server ends with the view of `dev`, so only Ctrl-C closes it.
func TestCtrlCEndsAServerWithItsView(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "shop.yaml")
	write(t, file, []byte(dummies))
	x := newTerminal(t, 20, 100)
	before := x.settings()
	h := &devServer{t: t, dir: dir}
	cmd := x.runs(h, filepath.Join(binaries, "mariposa"), "dev", "--listen", "127.0.0.1:0", "--data", dir, "--deploy", file)
	x.shows(ownScreen)
	x.shows("Ctrl-C to stop")
	x.types("q")
	h.ok("project", "scale", "shop", "d=2") // the screen is redrawn in place and shows only changes
	x.shows("scaled d")
	x.types("\x03")
	x.shows(oldScreen)
	x.shows("Mariposa has stopped")
	x.ended(cmd, 0, before)
}

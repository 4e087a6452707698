package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/gate"
	"mariposa/driver/osproc"
)

// These are the reasons of ends that no supervisor recorded.
const (
	ReasonKilled       = "its supervisor was killed"
	ReasonRestarted    = "the node was restarted"
	ReasonNeverStarted = "it never started"
)

// Life is what an agent knows of the runs of one instance. Drivers embed it in their entries; it
// belongs to the operation that holds the entry.
type Life struct {
	Dir   string // of the instance
	State State
	Exit  Exit
	Live  bool // started, and its end is not handled yet

	PIDFD *os.File      // of the supervisor; nil if none
	Gone  chan struct{} // closed once the supervisor has ended
}

// CheckID rejects ids that cannot be names of instances and their directories. What is the kind of
// the instance, for the error.
func CheckID(what, id string) error {
	if id == "" || len(id) > 100 || id[0] == '.' || id[0] == '-' || strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}) {
		return fmt.Errorf("invalid id of a %s: %q", what, id)
	}
	return nil
}

// Launch starts the supervisor of an instance, and waits until the instance runs. Follow is called
// as soon as there is a supervisor.
func (l *Life) Launch(ctx context.Context, s Starter, request any, follow func(pidfd *os.File)) error {
	started, err := s.Start(l.Dir, request)
	if err != nil {
		return fmt.Errorf("cannot start instance %s: %w", filepath.Base(l.Dir), err)
	}
	l.State = State{Supervisor: started.PID, SupervisorStart: started.Process.Start}
	follow(started.PIDFD)
	is, err := started.Report(ctx)
	if err != nil {
		return err
	}
	l.State, l.Live = is, true
	return nil
}

// Follow waits for the end of the supervisor, and then calls ended with Gone as it is now. The wait
// ends with the gate.
func (l *Life) Follow(g *gate.Gate, pidfd *os.File, ended func(gone chan struct{})) {
	l.PIDFD, l.Gone = pidfd, make(chan struct{})
	ctx, gone := g.Context(), l.Gone
	g.Go(func() {
		stop := context.AfterFunc(ctx, func() { _ = pidfd.Close() }) // ends the wait
		defer stop()
		if osproc.AwaitEnd(pidfd) != nil || ctx.Err() != nil {
			return // the driver is closed, or the end was handled
		}
		_ = osproc.Reap(pidfd) // fails for the supervisor of an earlier agent
		close(gone)
		ended(gone)
	})
}

// Unfollow releases the pidfd of a supervisor whose end is handled.
func (l *Life) Unfollow() {
	if l.PIDFD != nil {
		_ = l.PIDFD.Close()
		l.PIDFD = nil
	}
}

// Abort kills the supervisor of a start that has failed.
func (l *Life) Abort() {
	l.Live = false
	if l.PIDFD != nil {
		l.State.Process().Kill(unix.SIGKILL)
		<-l.Gone
		l.Unfollow()
	}
}

// ReadEnd reads the end of a run that has no supervisor any more. If the supervisor has recorded
// none, the reason says why, and the caller calls RecordEnd once nothing of the run is left.
func (l *Life) ReadEnd(run int, boot string) (reason string) {
	var started, ended bool
	l.State, started = ReadState(l.Dir, run)
	x, ended := ReadExit(l.Dir, run)
	l.Live = false
	switch {
	case ended:
		l.Exit = x
		return ""
	case started && l.State.Boot != boot:
		return ReasonRestarted
	case started:
		return ReasonKilled
	}
	return ReasonNeverStarted
}

// HandleEnd takes note of the end of a run whose supervisor has just ended. It reports whether the
// supervisor has recorded the end; otherwise the caller calls RecordEnd.
func (l *Life) HandleEnd(run int) (recorded bool) {
	l.Unfollow()
	x, ok := ReadExit(l.Dir, run)
	if ok {
		l.Exit, l.Live = x, false
	}
	return ok
}

// RecordEnd records the end of a run for its supervisor.
func (l *Life) RecordEnd(run int, reason string) {
	l.Live = false
	l.Exit = Exit{Run: run, Reason: reason, At: time.Now().UTC()}
	_ = WriteExit(l.Dir, l.Exit) // fails if the directory is lost; the next start tries again
}

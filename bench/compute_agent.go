package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// agentProcess is an agent in a process of its own.
type agentProcess struct {
	cmd   *exec.Cmd
	ended chan struct{}
	how   error        // set before ended is closed
	said  bytes.Buffer // complete when ended is closed
}

// startAgent starts an agent. A signal from the terminal does not reach it, and it ends with
// this process in any case.
func startAgent(cmd *exec.Cmd) (*agentProcess, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	a := &agentProcess{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &a.said, &a.said
	started := make(chan error, 1)
	go func() { // the thread that starts it must live on: the process ends with it
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			a.how = cmd.Wait()
			close(a.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start an agent: %w", err)
	}
	return a, nil
}

func (a *agentProcess) hasEnded() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// err returns why the agent has ended; nil if it runs.
func (a *agentProcess) err() error {
	if !a.hasEnded() {
		return nil
	}
	return fmt.Errorf("the agent has ended: %w\n%s", cmp.Or(a.how, errors.New("exit code 0")), a.said.String())
}

// during returns a context that also ends with the agent.
func (a *agentProcess) during(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-a.ended:
			cancel(a.err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// memory returns a figure of its memory, in MB.
func (a *agentProcess) memory(figure string) float64 {
	return memoryOf(strconv.Itoa(a.cmd.Process.Pid), figure)
}

// stop ends the agent.
func (a *agentProcess) stop() {
	_ = a.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-a.ended:
	case <-time.After(20 * time.Second):
		_ = a.cmd.Process.Kill() // as above
		<-a.ended
	}
}

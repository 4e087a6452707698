package cli

import (
	"bytes"
	"context"
	"errors"
	"io"

	"mariposa/client"
)

// detachKey is Ctrl-].
const detachKey = 0x1d

// attach connects the terminal with the console of an instance, until the instance ends or the
// user detaches.
func (a *app) attach(ctx context.Context, c *client.Client, id string, typed bool) error {
	life, detach := context.WithCancel(ctx)
	defer detach()
	s, err := c.Exec(life, id, client.ExecOptions{Console: true})
	if err != nil {
		return err
	}
	defer s.Close()
	if typed {
		a.note("attached to the console; press Ctrl-] to detach, Enter if nothing is shown")
		restore, err := raw(a.env.Stdin)
		if err != nil {
			return err
		}
		defer restore()
	}
	detached := make(chan struct{})
	go func() { // a read of standard input cannot be canceled: it ends with the program
		if _, err := io.Copy(&consoleInput{to: s, ends: typed}, a.env.Stdin); errors.Is(err, errDetached) {
			close(detached)
			detach()
		}
	}()
	code, err := s.Output(a.env.Stdout, a.env.Stderr)
	select {
	case <-detached:
		return nil
	default:
		return endOf(ctx, code, err)
	}
}

// consoleInput passes what is typed to a console, until the detach key.
type consoleInput struct {
	to   io.Writer
	ends bool // the detach key detaches: it was typed
}

var errDetached = errors.New("the user detached")

func (i *consoleInput) Write(p []byte) (int, error) {
	n := -1
	if i.ends {
		n = bytes.IndexByte(p, detachKey)
	}
	if n < 0 {
		return i.to.Write(p)
	}
	if _, err := i.to.Write(p[:n]); err != nil {
		return 0, err
	}
	return n, errDetached
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"mariposa"
	"mariposa/client"
)

// execution contains the options of a command that runs inside an instance.
type execution struct {
	tty, input bool
	console    bool
}

func (a *app) instanceExec() *cobra.Command {
	var e execution
	cmd := &cobra.Command{
		Use: "exec [-t] [-i] [--console] INSTANCE [-- COMMAND ARG...]", Short: "Run a command or a shell inside an instance", ValidArgsFunction: a.wordsFrom(instanceNames), Annotations: map[string]string{nameArguments: "1"},
		Long: "Run a command inside an instance, with the same environment and limits. Without a command,\nrun /bin/sh, which reads standard input; on a terminal, it is interactive.\n\n" +
			"The exit code is that of the command. The command ends when the connection ends: it cannot\ncontinue at another server, and the exit code is 255 then. This requires the role operator\nand is recorded in the audit log.\n\n" +
			"With --console, attach to the serial console of a virtual machine instead. Press Ctrl-] to\ndetach; the machine keeps running.",
		Example: "  mariposa instance exec web.1\n  mariposa instance exec web.1 -- ps aux\n  mariposa instance exec -i db.1 -- psql < dump.sql\n  mariposa instance exec --console vm.1",
		Args:    argsBetween(1, math.MaxInt),
	}
	a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		if dash := cmd.ArgsLenAtDash(); dash == 0 || dash > 1 {
			return Usage(errors.New("give one instance before -- and the command after it"))
		}
		if e.console && len(args) > 1 {
			return Usage(errors.New("--console attaches to the console and runs no command: omit the command, or --console"))
		}
		id, err := a.instanceRef(ctx, c, args[0])
		if err != nil {
			return err
		}
		return notFound(a.exec(ctx, c, id, args[1:], e), "mariposa instance list")
	})
	cmd.Flags().BoolVarP(&e.tty, "tty", "t", false, "run the command in a terminal (default: if no command is given and you are on a terminal)")
	cmd.Flags().BoolVarP(&e.input, "stdin", "i", false, "pass standard input to the command (default: if no command is given, or with -t)")
	cmd.Flags().BoolVar(&e.console, "console", false, "attach to the serial console of a virtual machine; Ctrl-] detaches")
	return cmd
}

// exec runs a command to its end and exits with its exit code.
func (a *app) exec(ctx context.Context, c *client.Client, id string, command []string, e execution) error {
	typed := a.env.Terminal(a.env.Stdin)
	if e.console {
		return a.attach(ctx, c, id, typed)
	}
	if len(command) == 0 {
		e.input, e.tty = true, e.tty || (typed && a.env.Terminal(a.env.Stdout))
	}
	o := client.ExecOptions{Command: command, TTY: e.tty}
	if e.tty && a.env.Terminal(a.env.Stdout) {
		o.Cols, o.Rows = a.env.Size(a.env.Stdout)
	}
	life := ctx
	if !e.tty { // signals are passed to the command instead of closing the connection
		life = context.WithoutCancel(ctx)
	}
	life, over := context.WithCancel(life)
	defer over()
	s, err := c.Exec(life, id, o)
	if err != nil {
		return err
	}
	defer s.Close()
	if e.tty {
		defer a.follow(s)()
		if typed {
			restore, err := raw(a.env.Stdin)
			if err != nil {
				return err
			}
			defer restore()
		}
	} else {
		defer context.AfterFunc(ctx, func() { a.forwardInterrupt(s, over) })()
	}
	go a.copyInput(s, e.input || e.tty) // a read of standard input cannot be canceled: it ends with the program
	code, err := s.Output(a.env.Stdout, a.env.Stderr)
	return endOf(ctx, code, err)
}

// endOf returns how the program exits after a command that ran inside an instance.
func endOf(ctx context.Context, code int, err error) error {
	switch {
	case err != nil && ctx.Err() != nil:
		return Exit(130, nil)
	case mariposa.CodeOf(err) == mariposa.Unavailable:
		return Exit(exitLost, err)
	case err != nil:
		return err
	case code != 0:
		return Exit(code, nil)
	}
	return nil
}

// copyInput copies all of standard input to the command.
func (a *app) copyInput(s *client.Shell, input bool) {
	if input {
		if _, err := io.Copy(s, a.env.Stdin); err != nil {
			return // the command has ended, or the connection is closed
		}
	}
	_ = s.CloseWrite() // an error means that the command has ended
}

// forwardInterrupt sends an interrupt to the command, which may take time to exit. A
// second interrupt closes the connection, which ends the command.
func (a *app) forwardInterrupt(s *client.Shell, over func()) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	if s.Signal("INT") != nil {
		over()
		return
	}
	go func() { // ends with the program
		<-again
		over()
	}()
}

// follow notifies the command when the terminal is resized.
func (a *app) follow(s *client.Shell) (stop func()) {
	resized, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(resized, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-resized:
				if cols, rows := a.env.Size(a.env.Stdout); s.Resize(rows, cols) != nil {
					return
				}
			}
		}
	}()
	return func() {
		signal.Stop(resized)
		close(done)
	}
}

// raw passes every key to the command, including Ctrl-C, until restored.
func raw(stream any) (restore func(), err error) {
	f, ok := stream.(*os.File)
	if !ok {
		return func() {}, nil
	}
	state, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("cannot set up the terminal: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), state) }, nil // an error means that the terminal is gone
}

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"
)

// interactive reports whether there is a user to ask.
func (a *app) interactive() bool {
	return a.env.Terminal(a.env.Stdin) && a.env.Terminal(a.env.Stderr)
}

// errDeclined ends a command whose change the user did not confirm. It is an error, so
// that a script can tell a declined change from one that was made.
var errDeclined = errors.New("not confirmed; nothing was changed")

// confirm asks the user to confirm; errDeclined means that they did not. Without a
// terminal it does not ask: the version that the change is based on protects against
// overwriting another.
func (a *app) confirm(ctx context.Context, question string, sure bool) error {
	if sure || !a.interactive() {
		return nil
	}
	line, err := a.ask(ctx, question+" [y/N] ", false)
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

// confirmName asks the user to type the name of the object that they are about to change
// irreversibly. It returns errDeclined if they do not. Without a terminal, a flag must
// confirm it.
func (a *app) confirmName(ctx context.Context, name, does string, sure bool) error {
	if sure {
		return nil
	}
	if !a.interactive() {
		return Usage(withHint(fmt.Errorf("this %s", does), "add --yes to confirm"))
	}
	a.note("this %s", does)
	line, err := a.ask(ctx, "type "+name+" to confirm: ", false)
	if err != nil {
		return err
	}
	if strings.TrimSpace(line) != name {
		return errDeclined
	}
	return nil
}

// Interactive reports whether a command that starts a server can ask the user.
func Interactive(stdin io.Reader, stderr io.Writer) bool {
	return (&app{env: Env{Stdin: stdin, Stderr: stderr}.withDefaults()}).interactive()
}

// ConfirmName is confirmName for commands that start a server.
func ConfirmName(ctx context.Context, stdin io.Reader, stderr io.Writer, name, does string, sure bool) error {
	a := &app{env: Env{Stdin: stdin, Stderr: stderr}.withDefaults()}
	return a.confirmName(ctx, name, does, sure)
}

// ask prompts the user for a line, which they can interrupt. Hidden input is not echoed.
func (a *app) ask(ctx context.Context, question string, hidden bool) (string, error) {
	fmt.Fprint(a.env.Stderr, plain(question))
	if !hidden {
		return a.answerOf(ctx, a.readLine)
	}
	restore := keepTerminal(a.env.Stdin)
	line, err := a.answerOf(ctx, func() (string, error) { return a.env.Secret(a.env.Stdin) })
	if ctx.Err() != nil {
		restore() // the hidden read is abandoned and would leave echo off
		return line, err
	}
	fmt.Fprintln(a.env.Stderr)
	return line, err
}

// answerOf waits for the user's input. On an interrupt it abandons the reader, because
// the program exits.
func (a *app) answerOf(ctx context.Context, read func() (string, error)) (string, error) {
	type answer struct {
		line string
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		line, err := read()
		if errors.Is(err, io.EOF) {
			err = nil
		}
		got <- answer{line, err}
	}()
	select {
	case g := <-got:
		return g.line, g.err
	case <-ctx.Done():
		fmt.Fprintln(a.env.Stderr)
		return "", errInterrupted
	}
}

var errInterrupted = errors.New("interrupted; nothing was changed")

// readLine reads a line of standard input. It keeps the reader, whose buffer may contain
// more.
func (a *app) readLine() (string, error) {
	if a.input == nil {
		a.input = bufio.NewReader(a.env.Stdin)
	}
	line, err := a.input.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// keepTerminal saves the state of a terminal and returns a function that restores
// it.
func keepTerminal(stream any) (restore func()) {
	f, ok := stream.(descriptor)
	if !ok {
		return func() {}
	}
	state, err := term.GetState(int(f.Fd()))
	if err != nil {
		return func() {}
	}
	return func() { _ = term.Restore(int(f.Fd()), state) } // an error means that the terminal is gone
}

// readHidden reads a line from a terminal without echo.
func readHidden(stream any) (string, error) {
	f, ok := stream.(descriptor)
	if !ok {
		return "", errors.New("standard input is not a terminal")
	}
	line, err := term.ReadPassword(int(f.Fd()))
	return string(line), err
}

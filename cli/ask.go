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

// interactive reports whether there is a person to ask.
func (a *app) interactive() bool {
	return a.env.Terminal(a.env.Stdin) && a.env.Terminal(a.env.Stderr)
}

// confirm asks a person. Where nobody can answer, nobody is asked: the previous
// version guards the change.
func (a *app) confirm(ctx context.Context, question string, sure bool) (bool, error) {
	if sure || !a.interactive() {
		return true, nil
	}
	line, err := a.ask(ctx, question+" [y/N] ", false)
	if err != nil {
		return false, err
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	a.note("nothing was changed")
	return false, nil
}

// confirmName wants a person to type the name of what they are about to change
// for good. Elsewhere, they must have said so on the command line.
func (a *app) confirmName(ctx context.Context, name, does string, sure bool) (bool, error) {
	if sure {
		return true, nil
	}
	if !a.interactive() {
		return false, Usage(fmt.Errorf("this %s: say --yes if you mean it", does))
	}
	a.note("this %s", does)
	line, err := a.ask(ctx, "type the name "+name+" to go on: ", false)
	if err != nil {
		return false, err
	}
	if strings.TrimSpace(line) != name {
		a.note("nothing was changed")
		return false, nil
	}
	return true, nil
}

// ask asks a person for a line, who may also interrupt. What is hidden is not
// shown as it is typed.
func (a *app) ask(ctx context.Context, question string, hidden bool) (string, error) {
	fmt.Fprint(a.env.Stderr, plain(question))
	if !hidden {
		return a.answerOf(ctx, a.readLine)
	}
	restore := keepTerminal(a.env.Stdin)
	line, err := a.answerOf(ctx, func() (string, error) { return a.env.Secret(a.env.Stdin) })
	if ctx.Err() != nil {
		restore() // whoever reads without showing is left behind
		return line, err
	}
	fmt.Fprintln(a.env.Stderr)
	return line, err
}

// answerOf waits for a person. On an interruption the reader is left behind: the
// program ends.
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

// readLine reads a line of standard input. The reader is kept, as it may have
// read further.
func (a *app) readLine() (string, error) {
	if a.input == nil {
		a.input = bufio.NewReader(a.env.Stdin)
	}
	line, err := a.input.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// keepTerminal remembers how a terminal is set and returns what sets it so again.
func keepTerminal(stream any) (restore func()) {
	f, ok := stream.(descriptor)
	if !ok {
		return func() {}
	}
	state, err := term.GetState(int(f.Fd()))
	if err != nil {
		return func() {}
	}
	return func() { _ = term.Restore(int(f.Fd()), state) } // a terminal that is gone needs no mending
}

// readHidden reads a line from a terminal without showing it.
func readHidden(stream any) (string, error) {
	f, ok := stream.(descriptor)
	if !ok {
		return "", errors.New("standard input is no terminal")
	}
	line, err := term.ReadPassword(int(f.Fd()))
	return string(line), err
}

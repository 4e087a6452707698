package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mariposa"
)

// exited is an error with an exit code.
type exited struct {
	error
	code int
}

func (e exited) Unwrap() error { return e.error }

// Exit returns an error that makes the program exit with a code. The error is printed if
// it is not nil.
func Exit(code int, err error) error { return exited{err, code} }

// Usage marks an error as a usage error: the program exits with code 2.
func Usage(err error) error {
	var e exited
	if err == nil || errors.As(err, &e) {
		return err
	}
	return Exit(exitUsage, err)
}

func exitCode(err error) int {
	var e exited
	if errors.As(err, &e) {
		return e.code
	}
	return exitError
}

// hint is an error with advice on what to do about it.
type hint struct {
	error
	hint string
}

func (h hint) Unwrap() error { return h.error }

func withHint(err error, format string, args ...any) error {
	return hint{err, fmt.Sprintf(format, args...)}
}

// notFound adds a hint to a "not found" error, unless it already has one: the command
// that lists such objects.
func notFound(err error, command string) error {
	var known hint
	if mariposa.CodeOf(err) == mariposa.ResourceNotFound && !errors.As(err, &known) {
		return withHint(err, "see `%s`", command)
	}
	return err
}

// printError prints an error and what to do about it.
func (a *app) printError(err error) {
	var e exited
	if errors.As(err, &e) && e.error == nil {
		return
	}
	w := a.env.Stderr
	p := a.paint(w)
	var m *mariposa.Error
	said := a.repeatFlags(speak(sentence(err.Error())))
	if errors.As(err, &m) && a.file != "" && slices.ContainsFunc(m.Faults, func(f mariposa.Fault) bool { return f.Line > 0 }) {
		said = a.file + " is not " + validDocument(a.documentKind) // the list of errors follows
	}
	fmt.Fprintf(w, "%s %s\n", p.in(bad, "mariposa:"), plain(said))
	if m != nil && !(len(m.Faults) == 1 && strings.HasSuffix(said, strings.TrimPrefix(a.fault(m.Faults[0]), a.file+": "))) { // the sentence may already end with the only error
		for _, f := range m.Faults {
			fmt.Fprintln(w, plain(a.fault(f)))
		}
	}
	if h := a.hint(err, m); h != "" {
		fmt.Fprintf(w, "%s\n", p.in(dim, plain("  "+h)))
	}
}

// validDocument returns the expected kind of document.
func validDocument(kind string) string {
	if kind == "metadata" {
		return "valid metadata"
	}
	return "a valid " + kind
}

// fault formats a fault as a line that editors can jump to.
func (a *app) fault(f mariposa.Fault) string {
	var b strings.Builder
	if a.file != "" {
		b.WriteString(a.file + ":")
		if f.Line > 0 {
			fmt.Fprintf(&b, "%d:", f.Line)
		}
		b.WriteString(" ")
	} else if f.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", f.Line)
	}
	if f.Field != "" {
		b.WriteString(flagOf(f) + ": ")
	}
	b.WriteString(speak(f.Message))
	return b.String()
}

// hint returns what the user can do about an error, if anything.
func (a *app) hint(err error, m *mariposa.Error) string {
	var h hint
	if errors.As(err, &h) {
		return h.hint
	}
	if m == nil {
		return ""
	}
	switch m.Code {
	case mariposa.Unauthorized:
		return "provide a token with `mariposa login --url URL --token-stdin` or MARIPOSA_TOKEN"
	case mariposa.Forbidden:
		return "see `mariposa whoami` for your roles and the limits of your token"
	case mariposa.Throttled:
		return "wait a moment, then try again"
	}
	return ""
}

// unknownSelf explains a "not found" under --as if the missing object is the user to act
// as.
func (a *app) unknownSelf(ctx context.Context, err error) error {
	if a.global.as == "" || mariposa.CodeOf(err) != mariposa.ResourceNotFound {
		return err
	}
	if _, missing := a.server.Whoami(ctx); mariposa.CodeOf(missing) == mariposa.ResourceNotFound {
		return withHint(err, "--as does not name a user that you can act for; see `mariposa user list`")
	}
	return err
}

// sentence converts the first letter to lower case, because the text follows the
// program's name, unless the word is capitalized by itself, like HTTP.
func sentence(s string) string {
	word, _, _ := strings.Cut(s, " ")
	if word == "" || strings.ToUpper(word[:1]) != word[:1] || strings.ToLower(word[1:]) != word[1:] {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

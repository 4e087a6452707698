package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"io"

	"mariposa/client"
)

// Session gives commands that the binary adds what client commands have: the selected
// server, and the form of the output.
type Session struct{ a *app }

type sessionKey struct{}

// SessionOf returns the session of a running command.
func SessionOf(ctx context.Context) Session { return ctx.Value(sessionKey{}).(Session) }

// Client returns the client of the selected server.
func (s Session) Client() (*client.Client, error) { return s.a.connect() }

// Local returns the data directory of the selected server if that is the server of a data
// directory on this machine.
func (s Session) Local() (dir string, ok bool) {
	at, err := s.a.locate()
	return s.a.dataDir(), err == nil && at.local
}

// Data returns the data directory, if one was given.
func (s Session) Data() string { return s.a.global.data }

// Terminal reports whether messages to the user go to a terminal.
func (s Session) Terminal() bool { return s.a.env.Terminal(s.a.env.Stderr) }

// Print prints a result: as JSON if the user wants that, else as text.
func (s Session) Print(to io.Writer, document any, text string) error {
	if !s.a.global.json {
		_, err := io.WriteString(to, text)
		return err
	}
	b, err := json.MarshalIndent(document, "", "  ")
	if err == nil {
		_, err = to.Write(append(b, '\n'))
	}
	return err
}

// Version returns the version of this binary.
func (s Session) Version() string { return cmp.Or(s.a.env.Version, "unknown") }

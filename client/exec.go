package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/contract"
)

// ExecOptions configure a command to run inside an instance.
type ExecOptions struct {
	Command    []string // empty: /bin/sh
	Console    bool     // attach to the console of the instance instead
	TTY        bool     // in a terminal
	Rows, Cols int      // of the terminal; 0: the server's choice
}

// Shell is a command that runs inside an instance, for as long as the connection
// lasts. Output and Close must be called; the other methods may be called concurrently
// with Output.
type Shell struct {
	at     *endpoint
	ctx    context.Context //nolint:containedctx // the lifetime of the connection, which outlasts any call
	conn   *websocket.Conn
	ending sync.Once
}

// inputPiece is the maximum size of input in one message.
const inputPiece = 32 << 10

// Exec runs a command inside an instance. It returns once the command runs; canceling
// the context ends it.
func (c *Client) Exec(ctx context.Context, id string, o ExecOptions) (*Shell, error) {
	q := url.Values{}
	for _, word := range o.Command {
		q.Add("command", word)
	}
	setIf(q, "console", o.Console)
	if o.TTY {
		q.Set("tty", "true")
		if o.Rows > 0 && o.Cols > 0 {
			q.Set("rows", strconv.Itoa(o.Rows))
			q.Set("cols", strconv.Itoa(o.Cols))
		}
	}
	r := get(pathUnder("/v1/instances", id, "exec"), q)
	r.onNode, r.once = true, true
	conn, at, err := c.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(8 << 20)
	return &Shell{at: at, ctx: ctx, conn: conn}, nil
}

// dial opens a WebSocket. It tries another server only if the request was not received, or
// refused.
func (c *Client) dial(ctx context.Context, r request) (conn *websocket.Conn, from *endpoint, err error) {
	err = c.try(ctx, r, func(attempt context.Context, at *endpoint, r request) (bool, error) {
		var wrote atomic.Bool
		traced := httptrace.WithClientTrace(attempt, &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }})
		template := &http.Request{Header: http.Header{}}
		c.addHeaders(template, at, r)
		opened, res, err := websocket.Dial(traced, strings.Replace(c.address(at, r), "http", "ws", 1), &websocket.DialOptions{HTTPClient: at.http, HTTPHeader: template.Header})
		if err == nil {
			conn, from = opened, at
			return true, nil
		}
		if res == nil || res.StatusCode == http.StatusSwitchingProtocols {
			return wrote.Load(), &lostError{causeOf(attempt, err)}
		}
		defer res.Body.Close()
		if res.StatusCode >= 200 && res.StatusCode <= 299 {
			return true, mariposa.Errorf(mariposa.Internal, "%s responded %s instead of opening a WebSocket: check whether a proxy blocks WebSockets", at.name(), res.Status)
		}
		if err = failure(at, res); res.StatusCode == http.StatusBadGateway || res.StatusCode == http.StatusGatewayTimeout {
			err = &lostError{err} // a proxy in between has lost the connection
		}
		return true, err
	})
	return conn, from, err
}

// Write writes to the command's standard input. It blocks while the command does not
// read.
func (s *Shell) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), inputPiece)]
		if err := s.send(contract.ExecStdin, part); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

// CloseWrite closes the command's standard input.
func (s *Shell) CloseWrite() (err error) {
	s.ending.Do(func() { err = s.send(contract.ExecStdin, nil) })
	return err
}

// Resize sets the size of the command's terminal.
func (s *Shell) Resize(rows, cols int) error {
	doc, _ := json.Marshal(contract.ExecSize{Rows: uint16(rows), Cols: uint16(cols)}) // numbers marshal
	return s.send(contract.ExecResize, doc)
}

// Signal sends the command a signal, such as TERM.
func (s *Shell) Signal(name string) error {
	doc, _ := json.Marshal(contract.ExecKill{Signal: name}) // a string marshals
	return s.send(contract.ExecSignal, doc)
}

func (s *Shell) send(what byte, body []byte) error {
	err := s.conn.Write(s.ctx, websocket.MessageBinary, append([]byte{what}, body...))
	if err != nil {
		return unreachable(s.ctx, s.at, err)
	}
	return nil
}

// Output copies the command's output until it ends, and returns its exit code.
func (s *Shell) Output(stdout, stderr io.Writer) (code int, err error) {
	for {
		_, message, err := s.conn.Read(s.ctx)
		if err != nil {
			return 0, s.lost(err)
		}
		if len(message) == 0 {
			continue
		}
		switch what, body := message[0], message[1:]; what {
		case contract.ExecStdout:
			_, err = stdout.Write(body)
		case contract.ExecStderr:
			_, err = stderr.Write(body)
		case contract.ExecEnd:
			return s.ended(body)
		}
		if err != nil {
			return 0, err
		}
	}
}

// ended decodes the last message.
func (s *Shell) ended(body []byte) (int, error) {
	var exit contract.ExecExit
	if json.Unmarshal(body, &exit) == nil && exit.ExitCode != nil {
		return *exit.ExitCode, nil
	}
	e := &mariposa.Error{}
	if json.Unmarshal(body, e) == nil && e.Message != "" {
		return 0, e
	}
	return 0, mariposa.Errorf(mariposa.Internal, "%s ended the command with an unexpected message", s.at.name())
}

// lost returns the error for a connection that broke before the command ended.
func (s *Shell) lost(err error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return unavailable(err, "lost the connection to %s while the command was running: the command was terminated and cannot be continued at another server", s.at.name())
}

// Close ends the command if it is still running.
func (s *Shell) Close() { _ = s.conn.CloseNow() } // it may be closed already

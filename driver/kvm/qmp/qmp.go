// Package qmp speaks the QEMU Machine Protocol: commands to one QEMU process, and its events. It
// does not know what machines are used for.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Event is something that has happened to a machine.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// Error is the answer of QEMU to a command that failed.
type Error struct {
	Class       string `json:"class"`
	Description string `json:"desc"`
}

func (e *Error) Error() string { return e.Description }

// ErrClosed means that the connection has ended, and with it usually QEMU.
var ErrClosed = errors.New("QEMU has closed the connection")

// ErrBusy means that QEMU has not answered many commands: it hangs.
var ErrBusy = errors.New("QEMU does not answer")

// maxUnanswered bounds the commands that QEMU has not answered. They are in the buffer of its
// socket, which is larger, so that sending a command never waits.
const maxUnanswered = 64

// maxMessage bounds a message of QEMU.
const maxMessage = 4 << 20

// Client is a connection to one QEMU process.
type Client struct {
	conn   io.ReadWriteCloser
	events func(Event)

	mu         sync.Mutex
	next       int
	unanswered int // commands, also those that nobody waits for any more
	waiting    map[int]chan message
	err        error // once the connection has ended
	done       chan struct{}
}

type message struct {
	Event

	Greeting json.RawMessage `json:"QMP"`
	ID       *int            `json:"id"`
	Return   json.RawMessage `json:"return"`
	Error    *Error          `json:"error"`
}

// Open begins a conversation. It calls events for each event, from one goroutine, until the
// connection has ended.
func Open(ctx context.Context, conn io.ReadWriteCloser, events func(Event)) (*Client, error) {
	c := &Client{conn: conn, events: events, waiting: map[int]chan message{}, done: make(chan struct{})}
	greeted := make(chan struct{})
	go c.read(greeted) // ends with the connection
	select {
	case <-greeted:
	case <-c.done:
		return nil, c.reason()
	case <-ctx.Done():
		_ = conn.Close() // the error is returned
		return nil, context.Cause(ctx)
	}
	if err := c.Run(ctx, "qmp_capabilities", nil, nil); err != nil {
		_ = conn.Close() // the same
		return nil, err
	}
	return c, nil
}

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// read reads messages until the connection ends.
func (c *Client) read(greeted chan struct{}) {
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(make([]byte, 0, 64<<10), maxMessage)
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			continue // not ours to understand
		}
		switch {
		case m.Greeting != nil:
			if greeted != nil {
				close(greeted)
				greeted = nil
			}
		case m.Name != "":
			c.events(m.Event)
		case m.ID != nil:
			c.mu.Lock()
			to := c.waiting[*m.ID]
			delete(c.waiting, *m.ID)
			c.unanswered--
			c.mu.Unlock()
			if to != nil {
				to <- m
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = ErrClosed
	if err := lines.Err(); err != nil {
		c.err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	close(c.done)
}

// Run runs a command. It stores what the command returns in result, unless that is nil.
func (c *Client) Run(ctx context.Context, command string, arguments, result any) error {
	answer := make(chan message, 1)
	c.mu.Lock()
	if c.unanswered >= maxUnanswered {
		c.mu.Unlock()
		return fmt.Errorf("%s: %w", command, ErrBusy)
	}
	c.next++
	id := c.next
	request := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        int    `json:"id"`
	}{command, arguments, id}
	b, err := json.Marshal(request)
	if err == nil {
		c.waiting[id] = answer
		c.unanswered++
		_, err = c.conn.Write(append(b, '\n'))
	}
	c.mu.Unlock()
	forget := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, id)
	}
	if err != nil {
		forget()
		return fmt.Errorf("%s: %w", command, err)
	}
	select {
	case m := <-answer:
		switch {
		case m.Error != nil:
			return fmt.Errorf("%s: %w", command, m.Error)
		case result != nil:
			return json.Unmarshal(m.Return, result)
		}
		return nil
	case <-c.done:
		forget()
		return fmt.Errorf("%s: %w", command, c.reason())
	case <-ctx.Done():
		forget()
		return context.Cause(ctx)
	}
}

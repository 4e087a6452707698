package wire

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"mariposa"
)

// Stream is a stream about one instance, opened by the control plane: its log, its
// resource usage, or a command inside it. Streams run next to the frames, in binary
// messages of the same connection, multiplexed by yamux: each has its own window, so a
// slow reader blocks only its own stream. Sending and receiving may happen concurrently.
type Stream struct {
	pipe    *Pipe
	conn    *yamux.Stream
	bound   *io.LimitedReader
	decoder *json.Decoder
	closed  atomic.Bool
}

// Message is a message of a stream. For a command, an empty one means that it is running.
type Message struct {
	Open     *Open         `json:"open,omitempty"`     // the first message: what is requested
	Bytes    []byte        `json:"bytes,omitempty"`    // of a log, of a mariposa.Usage as JSON, or a command's input or output
	Stderr   bool          `json:"stderr,omitempty"`   // the bytes come from its standard error
	Terminal *Size         `json:"terminal,omitempty"` // the new size of its terminal
	Signal   int           `json:"signal,omitempty"`   // a signal for it
	Last     bool          `json:"last,omitempty"`     // the end of its input; from the node: it has ended
	Exit     int           `json:"exit,omitempty"`     // with this exit code
	Error    string        `json:"error,omitempty"`    // or this error
	Code     mariposa.Code `json:"code,omitempty"`     // the code of the error, if known
	Ack      bool          `json:"ack,omitempty"`      // the node has received what is requested, and will answer

	// Between replicas. The answer to Forward is an empty message, an error or Absent.
	Forward *Forward `json:"forward,omitempty"` // the first message: what is requested of another replica
	Absent  bool     `json:"absent,omitempty"`  // the node has no session at that replica
	Lost    string   `json:"lost,omitempty"`    // why the connection to the node ended, and the stream with it
}

// Forward is a request of one replica to another one, which has the session of a node.
// That one never forwards it again.
type Forward struct {
	Node       string `json:"node,omitempty"`
	Open       *Open  `json:"open,omitempty"`       // a stream to the node; its Input is a stream of the same link
	Crash      *Crash `json:"crash,omitempty"`      // an instance of the node to hurt
	Quarantine bool   `json:"quarantine,omitempty"` // all quarantined instances of the node: a JSON list of mariposa.Quarantined
	Heartbeats bool   `json:"heartbeats,omitempty"` // when nodes were last heard from, as JSON
}

// Open says what a stream is for: an instance's log, unless Usage, Command, Console, Snapshot,
// Images, Foreign or Input is set.
type Open struct {
	Instance string `json:"instance,omitempty"`
	mariposa.LogOptions
	Usage    bool     `json:"usage,omitempty"`    // the resource usage of the instance
	Command  []string `json:"command,omitempty"`  // a command to run inside the instance
	Terminal *Size    `json:"terminal,omitempty"` // run the command in a terminal of this size
	Console  bool     `json:"console,omitempty"`  // attach to the console of the instance, which is used like a command
	Snapshot *Saving  `json:"snapshot,omitempty"` // what to do with the snapshots of the instance
	// Images are names of images; the answer is what they mean, as a JSON object of
	// mariposa.ImagePin by name.
	Images []string         `json:"images,omitempty"`
	Logins []mariposa.Login `json:"logins,omitempty"` // to their registries
	// Foreign asks for the foreign containers of the node. The answer is a Foreign as JSON.
	Foreign *ForeignQuery `json:"foreign,omitempty"`
	// Input is the number of a stream with a running command: this one carries its input.
	// A command that does not read blocks only its input, not its resizes, signals or
	// end.
	Input uint32 `json:"input,omitempty"`
	// Ack asks the node for a first message with Ack, so that a node that does not answer
	// can be told from one that has nothing to send. Only nodes that say Acks in their hello
	// are asked.
	Ack bool `json:"ack,omitempty"`
}

// IsInteractive reports whether the stream has input.
func (o *Open) IsInteractive() bool { return len(o.Command) > 0 || o.Console }

// IsOnce reports whether the request must not be repeated if it may have been carried out.
func (o *Open) IsOnce() bool {
	return len(o.Command) > 0 || o.Snapshot != nil && o.Snapshot.To != ""
}

// Saving is a request about the snapshots of an instance. A change continues if the stream ends.
type Saving struct {
	To   mariposa.SnapshotState `json:"to,omitempty"` // creating, restoring or deleting; none: list them, as a JSON list of mariposa.Snapshot
	Name string                 `json:"name,omitempty"`
}

// MaxForeign is how many foreign containers a node lists.
const MaxForeign = 1000

// ForeignQuery selects foreign containers of a node.
type ForeignQuery struct {
	Container string `json:"container,omitempty"` // only this one, by id, the beginning of its id, or name; none: all
}

// Foreign is foreign containers of a node: the newest MaxForeign.
type Foreign struct {
	Containers []mariposa.ForeignContainer `json:"containers"`
	Total      int                         `json:"total"` // how many the node has; not set in the answer about one
}

// Size is the size of a terminal.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

const (
	// MaxPiece bounds the bytes that Write puts into one message.
	MaxPiece = 32 << 10
	// maxMessage bounds a message: a command of a request's size fits.
	maxMessage = 1 << 20
)

// longAgo is a deadline in the past: it ends pending calls.
var longAgo = time.Unix(1, 0)

func (p *Pipe) newStream(conn *yamux.Stream) *Stream {
	bound := &io.LimitedReader{R: conn}
	s := &Stream{pipe: p, conn: conn, bound: bound, decoder: json.NewDecoder(bound)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams[s] = struct{}{}
	return s
}

func (p *Pipe) forget(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, s)
}

// CountStreams returns how many streams are open on this side.
func (p *Pipe) CountStreams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams)
}

// endSends ends pending sends of all streams.
func (p *Pipe) endSends() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.streams {
		_ = s.conn.SetWriteDeadline(longAgo) // never fails
	}
}

// Number identifies the stream on both sides of its connection.
func (s *Stream) Number() uint32 { return s.conn.StreamID() }

// Send sends one message. It blocks while the other side accepts no more.
func (s *Stream) Send(m Message) error {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = s.conn.Write(b)
	}
	return err
}

// Write sends bytes in as many messages as needed.
func (s *Stream) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, MaxPiece) {
		if err := s.Send(Message{Bytes: part}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Receive waits for the next message. It fails with io.ErrClosedPipe once the stream
// was closed on this side, whatever the other side still sends.
func (s *Stream) Receive() (m Message, err error) {
	if s.closed.Load() {
		return m, io.ErrClosedPipe
	}
	s.bound.N = maxMessage
	if err = s.decoder.Decode(&m); errors.Is(err, yamux.ErrTimeout) {
		err = io.ErrClosedPipe
	}
	return m, err
}

// Close ends the stream for the other side and for pending calls on this side. The first
// call waits until that can be sent, others do not.
func (s *Stream) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.pipe.forget(s)
	_ = s.conn.SetReadDeadline(longAgo) // never fails; without it, yamux keeps readers waiting for the other side
	return s.conn.Close()
}

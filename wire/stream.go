package wire

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/yamux"

	"mariposa"
)

// Stream is a conversation about one instance, opened by the control plane: its log,
// what it takes, or a command inside it. Streams run beside the frames, in binary
// messages of the same connection, multiplexed by yamux: each has a window of its
// own, so one whose reader is slow waits alone. Sending and receiving may go on side
// by side.
type Stream struct {
	conn    *yamux.Stream
	bound   *io.LimitedReader
	decoder *json.Decoder
}

// Message is what is said over a stream. Of a command, an empty one says that it runs.
type Message struct {
	Open     *Open         `json:"open,omitempty"`     // the first: what is wanted
	Bytes    []byte        `json:"bytes,omitempty"`    // of a log, of a mariposa.Usage as JSON, or what a command reads or writes
	Stderr   bool          `json:"stderr,omitempty"`   // where it writes them
	Terminal *Size         `json:"terminal,omitempty"` // its terminal has another size
	Signal   int           `json:"signal,omitempty"`   // it gets a signal
	Last     bool          `json:"last,omitempty"`     // there is no more input; from the node: it has ended
	Exit     int           `json:"exit,omitempty"`     // with this exit code
	Error    string        `json:"error,omitempty"`    // or this fault
	Code     mariposa.Code `json:"code,omitempty"`     // of a kind that is known
}

// Open says what a stream is for: an instance's log, unless it says otherwise.
type Open struct {
	Instance string   `json:"instance,omitempty"`
	Tail     int      `json:"tail,omitempty"`
	Follow   bool     `json:"follow,omitempty"`
	Usage    bool     `json:"usage,omitempty"`    // what the instance takes is meant
	Command  []string `json:"command,omitempty"`  // a command inside the instance is meant
	Terminal *Size    `json:"terminal,omitempty"` // which is to run in a terminal
	// Input is the number of a stream whose command runs: this one brings its input. A
	// command that does not read holds up its input alone, not what steers or ends it.
	Input uint32 `json:"input,omitempty"`
}

// Size is how large a terminal is.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

const (
	// Piece bounds the bytes that Write puts into one message.
	Piece = 32 << 10
	// maxMessage bounds a message: a command of a request's size fits.
	maxMessage = 1 << 20
)

func newStream(conn *yamux.Stream) *Stream {
	bound := &io.LimitedReader{R: conn}
	return &Stream{conn, bound, json.NewDecoder(bound)}
}

// Number is what the stream is called on both sides of its connection.
func (s *Stream) Number() uint32 { return s.conn.StreamID() }

// Send sends one message. It waits while the other side takes no more.
func (s *Stream) Send(m Message) error {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = s.conn.Write(b)
	}
	return err
}

// Write sends bytes in as many messages as it takes.
func (s *Stream) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, Piece) {
		if err := s.Send(Message{Bytes: part}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Receive waits for the next message. It fails with io.ErrClosedPipe once the stream
// was closed on this side.
func (s *Stream) Receive() (m Message, err error) {
	s.bound.N = maxMessage
	if err = s.decoder.Decode(&m); errors.Is(err, yamux.ErrTimeout) {
		err = io.ErrClosedPipe
	}
	return m, err
}

// Close ends the stream: the other side learns of it, and whoever waits on this one.
func (s *Stream) Close() error {
	_ = s.conn.SetReadDeadline(time.Unix(1, 0)) // it never fails; yamux would have readers wait for the other side
	return s.conn.Close()
}

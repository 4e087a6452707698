package agent_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/wire"
	"mariposa/wire/wiretest"
)

// await runs the node until a value arrives.
func await[T any](r *rig, what string, from <-chan T) T {
	r.t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case got := <-from:
			return got
		case <-r.wakes:
			r.run()
		case <-late:
			r.t.Fatalf("%s never came", what)
		}
	}
}

// plug connects the node over a real connection, until cut is called.
func (r *rig) plug() (p *wire.Pipe, cut func()) {
	r.t.Helper()
	return wiretest.Streams(r.t, r.node.Streams(r.t.Context()))
}

// ask opens a stream to the node.
func (r *rig) ask(p *wire.Pipe, o wire.Open) *wire.Stream {
	r.t.Helper()
	s, err := p.Dial(o)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// next returns the next message of a stream.
func (r *rig) next(s *wire.Stream) wire.Message {
	r.t.Helper()
	got := make(chan wire.Message, 1)
	go func() {
		m, err := s.Receive()
		if err != nil {
			r.t.Errorf("the stream broke: %v", err)
		}
		got <- m
	}()
	return await(r, "the next message", got)
}

// ends returns how a stream ends, and the output before.
func (r *rig) ends(s *wire.Stream) (last wire.Message, before []wire.Message) {
	r.t.Helper()
	for last = r.next(s); !last.Last && !r.t.Failed(); last = r.next(s) {
		before = append(before, last)
	}
	return last, before
}

func TestALogIsSentAsFastAsItIsTaken(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	const pieces = 40
	read := make(chan int, pieces+1)
	h.logs = func(context.Context, string) (io.ReadCloser, error) {
		text, feed := io.Pipe()
		go func() {
			for i := range pieces {
				_, _ = fmt.Fprintf(feed, "%*d", wire.MaxPiece, i)
				read <- i
			}
			_ = feed.Close()
			close(read)
		}()
		return text, nil
	}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	p, _ := r.plug()
	s := r.ask(p, wire.Open{Instance: "a"})
	for range 5 { // about as many as there is room for
		await(r, "a piece", read)
	}
	if m := r.next(s); !strings.HasSuffix(string(m.Bytes), " 0") {
		t.Fatalf("the first piece is %q", m.Bytes)
	}
	if n := len(read); n > 5 {
		t.Errorf("%d pieces more were read than anybody took", n)
	}
	end, rest := r.ends(s)
	if end.Error != "" || len(rest) != pieces-1 {
		t.Fatalf("%d pieces came, and the end %+v", len(rest), end)
	}
	for i, m := range rest {
		if len(m.Bytes) != wire.MaxPiece || !strings.HasSuffix(string(m.Bytes), fmt.Sprint(" ", i+1)) {
			t.Fatalf("piece %d is another", i+1)
		}
	}
}

func TestALogThatNobodyWantsAnyMoreIsClosed(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *wire.Stream, cut func()){
		"closed":                 func(s *wire.Stream, _ func()) { _ = s.Close() },
		"the connection is lost": func(_ *wire.Stream, cut func()) { cut() },
	} {
		for kind, write := range map[string]bool{"silent": false, "flooding": true} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				h := &manualDriver{}
				began, ended := make(chan bool, 1), make(chan bool, 1)
				h.logs = func(ctx context.Context, _ string) (io.ReadCloser, error) {
					text, feed := io.Pipe()
					context.AfterFunc(ctx, func() {
						_ = feed.CloseWithError(ctx.Err())
						ended <- true
					})
					go func() {
						for n := 0; write && n < 5; n++ {
							_, _ = feed.Write(make([]byte, wire.MaxPiece))
						}
						began <- true
						for write {
							if _, err := feed.Write(make([]byte, wire.MaxPiece)); err != nil {
								return
							}
						}
					}()
					return text, nil
				}
				r := newRig(t, h)
				r.connect(wanted("a", 1, processWork()))
				p, cut := r.plug()
				s := r.ask(p, wire.Open{Instance: "a", LogOptions: mariposa.LogOptions{Follow: true}})
				await(r, "the log", began)
				end(s, cut)
				await(r, "the end of the log", ended)
			})
		}
	}
}

func TestALogOfWhatIsNotThereIsAnError(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	p, _ := r.plug()
	if end, _ := r.ends(r.ask(p, wire.Open{Instance: "nobody"})); !strings.Contains(end.Error, "is not on this node") {
		t.Errorf("of what is not there it said %+v", end)
	}
	if end, _ := r.ends(r.ask(p, wire.Open{Instance: "a"})); end.Error == "" {
		t.Error("the driver's word is missing")
	}
	if end, _ := r.ends(r.ask(p, wire.Open{Instance: "a", Usage: true})); !strings.Contains(end.Error, "not supported") {
		t.Errorf("of what it takes it said %+v", end)
	}
}

func TestTheEndOfAnOldConnectionDoesNotEndWhatRunsOverTheNewOne(t *testing.T) {
	t.Parallel()
	r, h := newExecRig(t)
	before, cut := r.plug()
	r.ask(before, wire.Open{Instance: "i1", Command: []string{"old"}})
	old := await(r, "the old command", h.sessions)
	after, _ := r.plug()
	s := r.ask(after, wire.Open{Instance: "i1", Command: []string{"new"}})
	present := await(r, "the new command", h.sessions)
	r.next(s) // it runs
	cut()
	await(r, "the end of the old command", old.ctx.Done())
	input := r.ask(after, wire.Open{Input: s.Number()}) // numbers start again with every connection
	_, _ = input.Write([]byte("hello"))
	if got := await(r, "input", present.read); string(got) != "hello" {
		t.Errorf("it read %q", got)
	}
	present.end(nil)
	if end, _ := r.ends(s); end.Exit != 7 || end.Error != "" {
		t.Errorf("it ended with %+v", end)
	}
}

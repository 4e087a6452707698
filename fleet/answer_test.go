package fleet_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/fleet"
	"mariposa/wire"
)

// acking is the hello of a node that acknowledges streams.
func acking() *wire.Hello {
	h := hello("n1")
	h.Acks = true
	return h
}

// calls are all that waits for the answer of a node.
var calls = map[string]func(context.Context, *fleet.Fleet) error{
	"usage": func(ctx context.Context, f *fleet.Fleet) error { _, err := f.Usage(ctx, "n1", "i1"); return err },
	"log": func(ctx context.Context, f *fleet.Fleet) error {
		_, err := f.Logs(ctx, "n1", "i1", mariposa.LogOptions{Tail: 1})
		return err
	},
	"followed log": func(ctx context.Context, f *fleet.Fleet) error {
		_, err := f.Logs(ctx, "n1", "i1", mariposa.LogOptions{Tail: 1, Follow: true})
		return err
	},
	"exec": func(ctx context.Context, f *fleet.Fleet) error {
		_, err := f.Exec(ctx, "n1", "i1", []string{"a"}, nil)
		return err
	},
}

// A node that is connected, but does not answer, is named within seconds, at every replica.
func TestANodeThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	p, a := playAs(t, acking())
	n := addNeighbor(t, p)
	for at, f := range map[string]*fleet.Fleet{"here": p.fleet, "elsewhere": n.fleet} {
		for name, call := range calls {
			t.Run(name+" "+at, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
				defer cancel()
				err := call(ctx, f)
				if ctx.Err() != nil || mariposa.CodeOf(err) != mariposa.Unavailable || !strings.HasPrefix(fmt.Sprint(err), "node n1 is connected but does not answer; it was last heard from at ") ||
					!strings.HasSuffix(err.Error(), " UTC: check its agent on that machine (`mariposa node show n1`), then try again") {
					t.Errorf("%v", err)
				}
			})
		}
	}
	t.Cleanup(func() {
		for range 2 * len(calls) {
			_ = a.next().awaitEnd(p) // each was given up
		}
	})
}

// A log without lines is not taken for a node that does not answer.
func TestAQuietLogIsAcknowledged(t *testing.T) {
	t.Parallel()
	p, a := playAs(t, acking())
	n := addNeighbor(t, p)
	for at, f := range map[string]*fleet.Fleet{"here": p.fleet, "elsewhere": n.fleet} {
		opened := make(chan io.ReadCloser, 1)
		go func() {
			log, err := f.Logs(p.ctx, "n1", "i1", mariposa.LogOptions{Follow: true})
			if err != nil {
				t.Errorf("%s: %v", at, err)
			}
			opened <- log
		}()
		s := a.next()
		if !s.open.Ack {
			t.Fatalf("%s: asked %+v", at, s.open)
		}
		must(t, s.Send(wire.Message{Ack: true}))
		log := come(p, "the log", opened)
		must(t, s.Send(wire.Message{Bytes: []byte("late"), Last: false}))
		must(t, s.Send(wire.Message{Last: true}))
		if text, err := io.ReadAll(log); string(text) != "late" || err != nil {
			t.Errorf("%s: %q, %v", at, text, err)
		}
		must(t, log.Close())
		_ = s.Close()
	}
}

// A node of an earlier release acknowledges nothing, and is not asked to.
func TestANodeOfAnEarlierReleaseIsNotAskedToAcknowledge(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	log := p.logs("i1")
	if s := a.next(); s.open.Ack {
		t.Errorf("asked %+v", s.open)
	}
	must(t, log.Close())
}

// A session that ends while it is asked is not the last word: the node connects again. A
// command is not sent twice.
func TestANodeThatReconnectsWhileItIsAskedIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, call := range calls {
		for _, where := range []string{"here", "elsewhere"} {
			t.Run(name+" "+where, func(t *testing.T) {
				t.Parallel()
				p, a := playAs(t, acking())
				f := p.fleet
				if where == "elsewhere" {
					f = addNeighbor(t, p).fleet
				}
				done := make(chan error, 1)
				go func() { done <- call(p.ctx, f) }()
				a.next()
				_ = a.conn.CloseNow()
				if name == "exec" {
					if err := come(p, "an answer", done); mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), "node n1 disconnected before it answered") {
						t.Errorf("%v", err)
					}
					return
				}
				pipe, _ := p.dial()
				defer pipe.Close()
				asked := make(chan struct{}, 1)
				pipe.Accept(func(s *wire.Stream) {
					defer s.Close()
					if m, err := s.Receive(); err == nil && m.Open.Ack {
						_ = s.Send(wire.Message{Ack: true})
						_ = s.Send(wire.Message{Bytes: []byte("{}")})
						_ = s.Send(wire.Message{Last: true})
						asked <- struct{}{}
					}
				})
				pipe.Send(wire.Frame{Seq: 1, Hello: acking()})
				go func() {
					for {
						if _, err := pipe.Read(p.ctx); err != nil {
							return
						}
					}
				}()
				come(p, "the request", asked)
				if err := come(p, "an answer", done); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

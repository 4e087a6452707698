package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

// feed simulates a feed that disconnects where the script says, and repeats some events.
func feed(t *testing.T, total int, breaks []int, repeat int) http.HandlerFunc {
	t.Helper()
	var calls atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		call := int(calls.Add(1)) - 1
		var since int
		if _, err := fmt.Sscan(r.Header.Get("Last-Event-ID"), &since); err != nil {
			t.Errorf("no resume point in %v", r.Header)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": welcome\n\n")
		end := total
		if call < len(breaks) {
			end = min(total, breaks[call])
		}
		for rev := max(1, since+1-repeat); rev <= end; rev++ {
			_, _ = fmt.Fprintf(w, "id: %d\nevent: change\ndata: {\"revision\":%d,\ndata: \"kind\":\"task.progress\",\"object\":{\"id\":\"t%d\"}}\n\n", rev, rev, rev)
		}
		w.(http.Flusher).Flush()
		if end == total {
			<-r.Context().Done()
		}
	}
}

func TestAStreamMissesAndDoublesNothingAcrossDisconnects(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		total := rapid.IntRange(1, 20).Draw(rt, "total")
		breaks := rapid.SliceOfN(rapid.IntRange(0, total-1), 0, 5).Draw(rt, "breaks")
		since := rapid.IntRange(0, total-1).Draw(rt, "since")
		repeat := rapid.IntRange(0, 3).Draw(rt, "repeat")
		c := serve(t, feed(t, total, breaks, repeat))
		var got, want []int64
		for rev := since + 1; rev <= total; rev++ {
			want = append(want, int64(rev))
		}
		lost, found := 0, 0
		o := StreamOptions{Since: int64(since), Lost: func(error, time.Duration) { lost++ }, Found: func() { found++ }}
		for e, err := range c.Stream(context.Background(), o) {
			if err != nil {
				rt.Fatal(err)
			}
			if task := e.AsTask(); task == nil || task.ID != fmt.Sprint("t", e.Revision) {
				rt.Fatalf("event %d carries %s", e.Revision, e.Object)
			}
			if got = append(got, e.Revision); e.Revision == int64(total) {
				break
			}
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("got %v, want %v", got, want)
		}
		if lost != found {
			rt.Fatalf("Lost was called %d times and Found %d times", lost, found)
		}
	})
}

func TestTheFirstConnectionMustSucceed(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	n := 0
	for _, err := range c.Stream(context.Background(), StreamOptions{}) {
		if n++; mariposa.CodeOf(err) != mariposa.Unavailable {
			t.Errorf("got %v", err)
		}
	}
	if n != 1 {
		t.Errorf("called %d times", n)
	}
}

func TestARefusalEndsAStreamAndAnOutageDoesNot(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case 1:
			w.Header().Set("Content-Type", "text/event-stream")
		case 2, 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusGone)
			_, _ = io.WriteString(w, `{"code":"TooOld","message":"the feed begins at 90"}`)
		}
	})
	var last error
	for _, err := range c.Stream(context.Background(), StreamOptions{Since: 3}) {
		last = err
	}
	if mariposa.CodeOf(last) != mariposa.TooOld || calls.Load() != 4 {
		t.Errorf("got %v after %d calls", last, calls.Load())
	}
}

func TestAStreamEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := serve(t, feed(t, 1, nil, 0))
	var last error
	for _, err := range c.Stream(ctx, StreamOptions{}) {
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("got %v", last)
	}
}

func TestWhatIsNoStreamIsNotTakenForOne(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	for _, err := range c.Stream(context.Background(), StreamOptions{}) {
		if err == nil || !strings.Contains(err.Error(), "instead of an event stream") {
			t.Errorf("got %v", err)
		}
	}
}

func TestPausesGrowToALimit(t *testing.T) {
	t.Parallel()
	s := &stream{}
	for n, most := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause} {
		if d := s.backoff(); d < most/2 || d > most {
			t.Errorf("pause %d is %v, want at most %v", n, d, most)
		}
	}
	s.failures = 1000
	if d := s.backoff(); d > lastPause {
		t.Errorf("a pause of %v", d)
	}
}

// For any input, reading ends and passes on no partial block.
func FuzzReadEvents(f *testing.F) {
	f.Add("id: 1\ndata: {}\n\n")
	f.Add("retry: 99999999999999999999\n\n:\n\ndata")
	f.Fuzz(func(t *testing.T, text string) {
		blocks := 0
		err := readEvents(strings.NewReader(text), func() {}, func(message) error { blocks++; return nil })
		if err == nil || blocks > strings.Count(text, "\n")+1 {
			t.Errorf("%d blocks, %v", blocks, err)
		}
	})
}

// A connection that breaks is described in words, without the error of the library.
func TestABrokenStreamIsDescribedInWords(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": hello\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	var lost error
	for range c.Stream(ctx, StreamOptions{Lost: func(err error, _ time.Duration) { lost = err; cancel() }}) {
	}
	if lost == nil || !errors.Is(lost, io.ErrUnexpectedEOF) || !strings.Contains(lost.Error(), "the connection to the server broke while it sent events") || strings.Contains(lost.Error(), "EOF") {
		t.Errorf("it says %v", lost)
	}
}

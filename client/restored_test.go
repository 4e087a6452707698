package client

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

// sendEvents sends events of an incarnation with these revisions, and ends the stream.
func sendEvents(w http.ResponseWriter, incarnation string, now int64, revisions ...int64) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set(contract.IncarnationHeader, incarnation)
	w.Header().Set(contract.RevisionHeader, fmt.Sprint(now))
	for _, r := range revisions {
		fmt.Fprintf(w, "id: %d\ndata: {\"revision\":%d,\"kind\":\"node.running\"}\n\n", r, r)
	}
}

// The store is restored while a stream is interrupted. Its position is unknown there, or
// belongs to another event.
func TestAStreamGoesOnAfterARestore(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"the revision is unknown there": false, "the revision is that of another event": true} {
		for _, goesOn := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", goes on: ", goesOn), func(t *testing.T) {
				t.Parallel()
				var calls atomic.Int32
				c := serve(t, func(w http.ResponseWriter, r *http.Request) {
					switch n := calls.Add(1); {
					case n == 1:
						sendEvents(w, "first", 10, 11, 12)
					case n == 2 && !known:
						w.Header().Set(contract.IncarnationHeader, "second")
						w.WriteHeader(http.StatusGone)
						_, _ = io.WriteString(w, `{"code":"TooOld","message":"the feed begins at 1000"}`)
					case n == 2:
						sendEvents(w, "second", 15, 13, 14)
					case n == 3 && r.URL.Query().Has("since") || r.Header.Get("Last-Event-ID") == "12":
						t.Errorf("request %d asks for events after %s", n, r.Header.Get("Last-Event-ID"))
					case n == 3:
						sendEvents(w, "second", 1000) // nothing happens
					default:
						if r.Header.Get("Last-Event-ID") != "1000" {
							t.Errorf("it continues after %s", r.Header.Get("Last-Event-ID"))
						}
						sendEvents(w, "second", 1000, 1001)
					}
				})
				restored, o := 0, StreamOptions{Since: 10}
				if goesOn {
					o.Restored = func() { restored++ }
				}
				var got []int64
				var last error
				for e, err := range c.Stream(t.Context(), o) {
					if last = err; err != nil {
						break
					}
					if got = append(got, e.Revision); e.Revision == 1001 {
						break
					}
				}
				if !goesOn {
					if mariposa.CodeOf(last) != mariposa.TooOld || fmt.Sprint(got) != "[11 12]" {
						t.Errorf("got %v, then %v", got, last)
					}
					return
				}
				if fmt.Sprint(got) != "[11 12 1001]" || restored != 1 || last != nil {
					t.Errorf("got %v, restored %d times, %v", got, restored, last)
				}
			})
		}
	}
}

// A server dies in the middle of a log that is not followed.
func TestALogContinuesAtAnotherServer(t *testing.T) {
	t.Parallel()
	send := func(w http.ResponseWriter, from, to int) {
		w.Header().Set("Content-Type", "text/event-stream")
		for n := from; n <= to; n++ {
			fmt.Fprintf(w, "id: p:%d\ndata: {\"text\":\"line %d\"}\n\n", n, n)
		}
		_ = http.NewResponseController(w).Flush()
	}
	var calls atomic.Int32
	a := newReplica(t, "one", func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			send(w, 1, 2)
		}
		panic(http.ErrAbortHandler)
	})
	b := newReplica(t, "one", func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Last-Event-ID"); got != "p:2" || r.URL.Query().Has("follow") {
			t.Errorf("it continues after %q, %s", got, r.URL.RawQuery)
		}
		send(w, 3, 4)
		fmt.Fprint(w, "event: end\ndata: {}\n\n")
	})
	c, _ := among(t, Options{}, a, b)
	log, err := c.Logs(t.Context(), "i", LogOptions{Tail: -1})
	must(t, err)
	defer log.Close()
	text, err := io.ReadAll(log)
	if err != nil || string(text) != "line 1\nline 2\nline 3\nline 4\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// What a log lacks after an interruption is said with its times: lines that the node has
// deleted, and what an agent cannot prove to be complete because its lines have no positions.
func TestALogSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, then, says string
	}{
		"the node has deleted lines": {
			"id: p:1\ndata: {\"text\":\"one\"}\n\n", "event: gap\ndata: {\"message\":\"gone\"}\n\nid: q:1\ndata: {\"text\":\"two\"}\n\n",
			`^lines between \d\d:\d\d:\d\d UTC and \d\d:\d\d:\d\d UTC are missing: the node has deleted them$`,
		},
		"the agent knows no positions": {
			"data: {\"text\":\"one\"}\n\n", "data: {\"text\":\"two\"}\n\n",
			`^some lines between \d\d:\d\d:\d\d UTC and \d\d:\d\d:\d\d UTC may be missing or repeated: the agent of the node is of an earlier release$`,
		},
		"nothing is missing": {"id: p:1\ndata: {\"text\":\"one\"}\n\n", "id: p:2\ndata: {\"text\":\"two\"}\n\n", `^$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			a := newReplica(t, "one", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				if calls.Add(1) == 1 {
					fmt.Fprint(w, c.first)
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
				fmt.Fprint(w, c.then, "event: end\ndata: {}\n\n")
			})
			cl, _ := among(t, Options{}, a)
			var gaps []string
			log, err := cl.Logs(t.Context(), "i", LogOptions{Tail: -1, Follow: true, Gap: func(why string) { gaps = append(gaps, why) }})
			must(t, err)
			defer log.Close()
			text, err := io.ReadAll(log)
			if err != nil || string(text) != "one\ntwo\n" {
				t.Errorf("%q, %v", text, err)
			}
			if said := strings.Join(gaps, "; "); !regexp.MustCompile(c.says).MatchString(said) {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// A log of the last minutes that was interrupted before its first line begins at the same time
// as before, not later.
func TestARepeatedRequestForALogBeginsAtTheSameTime(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []time.Duration
	a := newReplica(t, "one", func(w http.ResponseWriter, r *http.Request) {
		age, err := time.ParseDuration(r.URL.Query().Get("since"))
		if err != nil {
			t.Errorf("since %q", r.URL.Query().Get("since"))
		}
		mu.Lock()
		asked = append(asked, age)
		isFirst := len(asked) == 1
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		if isFirst {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "event: end\ndata: {}\n\n")
	})
	began := time.Now()
	c, _ := among(t, Options{}, a)
	log, err := c.Logs(t.Context(), "i", LogOptions{Tail: -1, Since: "5m", Follow: true})
	must(t, err)
	defer log.Close()
	if _, err := io.ReadAll(log); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 2 || asked[0] != 5*time.Minute || asked[1] <= asked[0] || asked[1] > 5*time.Minute+time.Since(began) {
		t.Errorf("it asked for the last %v", asked)
	}
}

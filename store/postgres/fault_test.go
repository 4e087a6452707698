package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"mariposa/store"
)

// faults controls the faults of a writer's connections. A group takes two round trips:
// one that locks and reads, one that writes and commits.
type faults struct {
	mu       sync.Mutex
	down     bool // connecting fails
	armed    bool
	sent     int    // round trips since it was armed
	at       int    // the round trip that fails
	part     int    // how much of it is sent, in percent
	deaf     func() // it is sent, but its response is lost; called before that
	numb     bool   // the server does not notice
	dials    int
	leftOver []net.Conn
}

func (f *faults) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials++
	if f.down {
		return nil, errors.New("the cable is out")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return &wire{Conn: conn, faults: f}, err
}

// arm makes one round trip of the next group fail.
func (f *faults) arm(change func(*faults)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.sent, f.at, f.part, f.deaf, f.numb = true, 0, 0, 0, nil, false
	change(f)
}

func (f *faults) set(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

type wire struct {
	net.Conn
	faults *faults
	mu     sync.Mutex
	broken func() error // the result of reading
}

func (w *wire) Write(b []byte) (int, error) {
	f := w.faults
	f.mu.Lock()
	f.sent++
	hit := f.armed && f.sent == f.at
	part, deaf, numb := f.part, f.deaf, f.numb
	if hit {
		f.armed = false
	}
	f.mu.Unlock()
	switch {
	case w.howBroken() != nil:
		return len(b), nil // not even a FIN gets through
	case !hit:
		return w.Conn.Write(b)
	}
	// Break it before anything is sent: if sending is slow, pgx already reads meanwhile.
	w.mu.Lock()
	w.broken = sync.OnceValue(func() error {
		if deaf != nil {
			deaf()
		}
		if numb {
			f.mu.Lock()
			f.leftOver = append(f.leftOver, w.Conn)
			f.mu.Unlock()
		} else {
			w.Conn.Close()
		}
		return io.ErrUnexpectedEOF
	})
	broken := w.broken
	w.mu.Unlock()
	n, err := w.Conn.Write(b[:len(b)*part/100])
	if err == nil && part < 100 {
		err = broken()
	}
	return n, err
}

func (w *wire) Read(b []byte) (int, error) {
	if broken := w.howBroken(); broken != nil {
		return 0, broken()
	}
	n, err := w.Conn.Read(b)
	if broken := w.howBroken(); broken != nil { // meanwhile
		return 0, broken()
	}
	return n, err
}

// howBroken returns how reading fails, or nil while the connection works.
func (w *wire) howBroken() func() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
}

func (w *wire) Close() error {
	w.faults.mu.Lock()
	defer w.faults.mu.Unlock()
	for _, c := range w.faults.leftOver {
		if c == w.Conn {
			return nil
		}
	}
	return w.Conn.Close()
}

// faulty opens a store whose writer has breakable connections, warmed up with one
// commit.
func faulty(t *testing.T) (*Store, *faults, func(revision int64) func()) {
	t.Helper()
	target := database(t)
	s := open(t, target, Options{})
	f := new(faults)
	s.writer.config.DialFunc = f.dial // it has not connected yet
	commit(t, s, node("warm", ""))
	conn := dial(t, target)
	t.Cleanup(func() {
		for _, c := range f.leftOver {
			c.Close()
		}
	})
	var mu sync.Mutex
	committed := func(revision int64) func() {
		return func() {
			mu.Lock()
			defer mu.Unlock()
			for ask[int64](t, conn, "SELECT revision FROM counter") < revision {
				time.Sleep(time.Millisecond)
			}
		}
	}
	return s, f, committed
}

// whole expects the log to contain exactly these objects, in order.
func whole(t *testing.T, s *Store, ids ...string) {
	t.Helper()
	changes, err := s.Changes(t.Context(), 1, 0)
	if err != nil || len(changes) != len(ids) {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
	for i, id := range ids {
		if changes[i].Record.ID != id {
			t.Fatalf("change %d is of %s", i, changes[i].Record.ID)
		}
	}
}

func TestACommitWhoseAnswerIsLostIsFound(t *testing.T) {
	t.Parallel()
	s, f, committed := faulty(t)
	f.arm(func(f *faults) { f.at, f.part, f.deaf = 2, 100, committed(2) })
	if r := commit(t, s, node("a", "1")); r[0].First != 2 || r[0].Last != 2 {
		t.Fatalf("%+v", r)
	}
	whole(t, s, "a")
	// Leases and claims are not in the log; they must not be applied twice either.
	claim := store.Unit{Claims: []store.Claim{{Node: "n", Take: resources(1)}}}
	commit(t, s, claim)
	f.arm(func(f *faults) {
		f.at, f.part, f.deaf = 2, 100, func() {
			for l, err := s.Ledger(context.Background()); err != nil || l["n"].Instances == 1; l, err = s.Ledger(context.Background()) {
				time.Sleep(time.Millisecond)
			}
		}
	})
	commit(t, s, claim)
	if ledger, err := s.Ledger(t.Context()); err != nil || ledger["n"] != resources(2) {
		t.Fatalf("%v, %v", ledger, err)
	}
}

func TestACommitThatDoesNotArriveIsSentAgain(t *testing.T) {
	t.Parallel()
	s, f, _ := faulty(t)
	var ids []string
	for name, change := range map[string]func(*faults){
		"nothing of the beginning":  func(f *faults) { f.at, f.part = 1, 0 },
		"a part of the beginning":   func(f *faults) { f.at, f.part = 1, 50 },
		"no answer to it":           func(f *faults) { f.at, f.part = 1, 100 },
		"nothing of the commit":     func(f *faults) { f.at, f.part = 2, 0 },
		"a part of the commit":      func(f *faults) { f.at, f.part = 2, 50 },
		"nearly all of the commit":  func(f *faults) { f.at, f.part = 2, 99 },
		"no answer, whatever it is": func(f *faults) { f.at, f.part = 2, 100 },
	} {
		f.arm(change)
		commit(t, s, node(name, "1"))
		ids = append(ids, name)
		if f.armed {
			t.Fatalf("%s: nothing was hurt", name)
		}
	}
	whole(t, s, ids...)
}

// The server still considers the connection alive, and waits in the middle of a
// transaction that holds the lock of all objects, which every other writer needs.
func TestATransactionThatFellSilentIsEnded(t *testing.T) {
	for name, part := range map[string]int{"in the middle of an exchange": 50, "between two": 0} {
		for _, who := range []string{"itself", "another"} {
			t.Run(name+", by "+who, func(t *testing.T) {
				t.Parallel()
				s, f, _ := faulty(t)
				f.arm(func(f *faults) {
					f.at, f.part, f.numb = 2, part, true
					f.deaf = func() { f.set(who == "another") }
				})
				start := time.Now()
				answer := make(chan store.Result, 1)
				go func() { answer <- s.Commit(context.Background(), node("a", "1"))[0] }()
				if who == "another" {
					awaitDials(t, f)
					other := open(t, s.readers.Config().ConnString(), Options{})
					commit(t, other, node("b", "1"))
					f.set(false)
				}
				if r := <-answer; r.Err != nil {
					t.Fatal(r.Err)
				}
				if took := time.Since(start); took > 3*idleTimeout {
					t.Errorf("it took %v", took)
				}
				if who == "another" {
					whole(t, s, "b", "a")
				} else {
					whole(t, s, "a")
				}
			})
		}
	}
}

func TestACommitWaitsForALockThatEndsJustAfterTheTimeout(t *testing.T) {
	t.Parallel()
	target := database(t)
	s, other, conn := open(t, target, Options{}), dial(t, target), dial(t, target)
	commit(t, s, node("warm", ""))
	do(t, other, "BEGIN")
	do(t, other, "SELECT 1 FROM counter FOR UPDATE")
	answer := make(chan store.Result, 1)
	go func() { answer <- s.Commit(context.Background(), node("a", "1"))[0] }()
	// waiting returns the process that waits for the lock, and is not this one.
	waiting := func(not int) (pid int) {
		for deadline := time.Now().Add(2 * time.Minute); pid == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nobody waits for the lock")
			}
			pid = ask[int](t, conn, `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> $1`, not)
		}
		return pid
	}
	waiting(waiting(0)) // the writer connects anew after each timeout
	do(t, other, "ROLLBACK")
	if r := <-answer; r.Err != nil {
		t.Fatal(r.Err)
	}
	whole(t, s, "a")
}

func TestNoResultIsReportedThatIsNotKnown(t *testing.T) {
	t.Parallel()
	s, f, committed := faulty(t)
	f.arm(func(f *faults) {
		f.at, f.part = 2, 100
		done := committed(2)
		f.deaf = func() {
			done()
			f.set(true)
		}
	})
	answer := make(chan store.Result, 1)
	go func() { answer <- s.Commit(context.Background(), node("a", "1"))[0] }()
	awaitDials(t, f) // it has tried and failed to reach the server
	for range 3 {    // other callers do not wait
		if r := s.Commit(t.Context(), node("b", "1")); !errors.Is(r[0].Err, store.ErrUnavailable) {
			t.Fatalf("%+v", r)
		}
	}
	if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
	select {
	case r := <-answer:
		t.Fatalf("told %+v", r)
	default:
	}
	f.set(false)
	if r := <-answer; r.Err != nil || r.First != 2 {
		t.Fatalf("%+v", r)
	}
	commit(t, s, node("c", "1"))
	whole(t, s, "a", "c")
}

// awaitDials waits until the writer has tried again to reach the server, and failed.
func awaitDials(t *testing.T, f *faults) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); dials(f) < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the writer has connected only %d times within a minute", dials(f))
		}
	}
}

func dials(f *faults) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dials
}

func TestCloseDoesNotWaitForAServerForEver(t *testing.T) {
	t.Parallel()
	s, f, committed := faulty(t)
	s.writer.patience = 100 * time.Millisecond
	f.arm(func(f *faults) {
		f.at, f.part = 2, 100
		done := committed(2)
		f.deaf = func() {
			done()
			f.set(true)
		}
	})
	answer := make(chan store.Result, 1)
	go func() { answer <- s.Commit(context.Background(), node("a", "1"))[0] }()
	awaitDials(t, f)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-answer; !errors.Is(r.Err, store.ErrClosed) || errors.Is(r.Err, store.ErrUnavailable) {
		t.Fatalf("%+v", r)
	}
}

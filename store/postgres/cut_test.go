package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/storetest"
)

func resources(instances int) mariposa.Resources { return mariposa.Resources{Instances: instances} }

// writeUnder runs eight writers on several replicas for a while, under the faults of the
// test, and until one of them succeeded: a busy machine may get nothing done between the
// faults. It expects the store to match the results they got. A writer waits for its server
// as long as necessary, so after a failure, such as a server that does not start again, the
// stores are closed.
func writeUnder(t *testing.T, handles []*Store, harm func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var units acknowledged
	var wg sync.WaitGroup
	var some atomic.Bool
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil || !some.Load() && !t.Failed(); i++ {
				name := fmt.Sprintf("%d.%d", w, i)
				r := handles[w%len(handles)].Commit(context.Background(), named(name, w))[0]
				if r.Err != nil && !errors.Is(r.Err, store.ErrUnavailable) && !t.Failed() {
					t.Errorf("unit %s: %v", name, r.Err)
				}
				if r.Err != nil {
					time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
				} else {
					some.Store(true)
				}
				units.add(name, r)
			}
		})
	}
	wg.Go(func() {
		defer func() { // it may end by a Fatal
			if t.Failed() {
				cancel()
				for _, s := range handles {
					_ = s.Close() // only to end the writers; the test has failed
				}
			}
		}()
		harm(ctx)
	})
	wg.Wait()
	if t.Failed() {
		t.FailNow() // the rest would only repeat it
	}
	s := handles[0]
	log := allOf(t, s)
	done := units.exactlyOnce(t, log, 3)
	if verified := calmly(t, func() (int64, error) { return int64(len(log)), s.Ping(context.Background()) }); verified == 0 || done == 0 {
		t.Fatalf("nothing was done")
	}
	t.Logf("%d of %d units done, %d changes", done, len(units.units), len(log))
}

// calmly retries until the call succeeds.
func calmly[T any](t *testing.T, ask func() (T, error)) T {
	t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		answer, err := ask()
		if err == nil {
			return answer
		}
		if !errors.Is(err, store.ErrUnavailable) || time.Since(start) > 30*time.Second {
			t.Fatal(err)
		}
	}
}

func allOf(t *testing.T, s *Store) []store.Change {
	t.Helper()
	log := calmly(t, func() ([]store.Change, error) { return s.History(context.Background(), store.HistoryQuery{}) })
	for i, j := 0, len(log)-1; i < j; i, j = i+1, j-1 {
		log[i], log[j] = log[j], log[i]
	}
	return log
}

func TestNothingIsLostOrDoubledWhenBackendsAreEnded(t *testing.T) {
	t.Parallel()
	target := database(t)
	conn := dial(t, target)
	writeUnder(t, replicas(t, target, 3), func(ctx context.Context) {
		for ctx.Err() == nil {
			do(t, conn, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.3`)
			time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
		}
	})
	storetest.VerifyLog(t, open(t, target, Options{}))
}

// cuttingProxy is a proxy that cuts each connection after a random number of bytes, in
// the middle of a request.
type cuttingProxy struct {
	net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	blunt bool // if set, it does not cut connections
	conns []net.Conn
}

func newCuttingProxy(t *testing.T, target string) (*cuttingProxy, string) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &cuttingProxy{Listener: l, to: u.Host}
	s.wg.Go(s.serve)
	t.Cleanup(func() {
		l.Close()
		s.cut()
		s.wg.Wait()
	})
	u.Host = l.Addr().String()
	return s, u.String()
}

func (s *cuttingProxy) serve() {
	for {
		in, err := s.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", s.to)
		if err != nil {
			in.Close()
			continue
		}
		s.mu.Lock()
		s.conns = append(s.conns, in, out)
		s.mu.Unlock()
		s.wg.Go(func() { s.carry(in, out) })
		s.wg.Go(func() { s.carry(out, in) })
	}
}

func (s *cuttingProxy) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	left := 1 + rand.IntN(1<<(8+rand.IntN(10))) // from 1 to 128 kB, mostly small
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		s.mu.Lock()
		sharp := !s.blunt
		s.mu.Unlock()
		cut := sharp && n >= left
		if cut {
			n = left
		} else if sharp {
			left -= n
		}
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			return
		}
		if cut {
			if rand.IntN(2) == 0 {
				to.(*net.TCPConn).SetLinger(0) // not even a FIN
			}
			return
		}
	}
}

func (s *cuttingProxy) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
}

func TestNothingIsLostOrDoubledWhenConnectionsAreCut(t *testing.T) {
	t.Parallel()
	target := database(t)
	var handles []*Store
	var proxies []*cuttingProxy
	for range 3 {
		p, through := newCuttingProxy(t, target)
		p.blunt = true
		proxies = append(proxies, p)
		handles = append(handles, open(t, through, Options{RecentChanges: 200}))
	}
	writeUnder(t, handles, func(ctx context.Context) {
		for _, p := range proxies {
			p.mu.Lock()
			p.blunt = false
			p.mu.Unlock()
			p.cut()
		}
		<-ctx.Done()
		for _, p := range proxies {
			p.mu.Lock()
			p.blunt = true
			p.mu.Unlock()
		}
	})
	storetest.VerifyLog(t, open(t, target, Options{}))
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/codec"
	"mariposa/store/storetest"
)

// replicas opens a database several times, as several processes would.
func replicas(t testing.TB, target string, n int) []*Store {
	t.Helper()
	handles := make([]*Store, n)
	for i := range handles {
		handles[i] = open(t, target, Options{RecentChanges: 200})
	}
	return handles
}

// acknowledged contains the results of units, by the names in their events.
type acknowledged struct {
	mu    sync.Mutex
	units map[string]store.Result
}

func (d *acknowledged) add(name string, r store.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.units == nil {
		d.units = make(map[string]store.Result)
	}
	d.units[name] = r
}

// exactlyOnce checks the log against the results that callers got: a unit reported as
// done is there once and completely, at its revisions; any other unit is not there.
func (d *acknowledged) exactlyOnce(t testing.TB, log []store.Change, writes int) (done int) {
	t.Helper()
	found := make(map[string][]int64)
	for i, c := range log {
		if c.Revision != int64(i+1) {
			t.Fatalf("change %d has revision %d", i, c.Revision)
		}
		found[c.Event.Actor] = append(found[c.Event.Actor], c.Revision)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, r := range d.units {
		at := found[name]
		if r.Err != nil {
			if len(at) > 0 {
				t.Errorf("unit %s was told %v and is at %v", name, r.Err, at)
			}
			continue
		}
		done++
		if len(at) != writes || at[0] != r.First || at[len(at)-1] != r.Last || r.Last-r.First+1 != int64(writes) {
			t.Errorf("unit %s was told %d to %d and is at %v", name, r.First, r.Last, at)
		}
	}
	return done
}

// named returns a unit of three writes, a claim, and an audit entry for each write. Other
// writers write two of the objects too.
func named(name string, writer int) store.Unit {
	shared := func() store.Write {
		return store.Write{Kind: mariposa.KindNode, ID: fmt.Sprint("n", rand.IntN(20)), Spec: &mariposa.NodeSpec{Name: name}}
	}
	u := store.Unit{
		Writes: []store.Write{shared(), shared(), {Kind: mariposa.KindNode, ID: fmt.Sprint("own", writer), Spec: &mariposa.NodeSpec{Name: name}}},
		Claims: []store.Claim{{Node: "n", Take: mariposa.Resources{Instances: 3}}},
	}
	for i := range u.Writes {
		u.Writes[i].Event.Actor = name
		u.Writes[i].Event.Reason = mariposa.TextReason("claimed")
		u.Audit = append(u.Audit, mariposa.Audit{Action: "node.update", Object: u.Writes[i].ID, Reason: name})
	}
	return u
}

// Eight writers on four replicas, each replica followed by a reader, while
// transactions stay open in this database and in another one.
func TestReplicasWriteAtOnceInOneOrder(t *testing.T) {
	t.Parallel()
	target := database(t)
	for _, other := range []string{target, database(t)} {
		conn := dial(t, other)
		do(t, conn, "BEGIN ISOLATION LEVEL REPEATABLE READ")
		do(t, conn, "SELECT pg_current_xact_id()")
	}
	handles := replicas(t, target, 4)
	feeds := make([][]store.Change, len(handles))
	var readers sync.WaitGroup
	for i, s := range handles {
		readers.Go(func() { feeds[i] = followTo(t, s, "the end") })
	}
	var units acknowledged
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			s := handles[w%len(handles)]
			for i := range 40 {
				name := fmt.Sprintf("%d.%d", w, i)
				r := s.Commit(context.Background(), named(name, w))[0]
				if r.Err != nil {
					t.Error(r.Err)
				}
				units.add(name, r)
				seen, err := s.Changes(context.Background(), r.First-1, 3)
				if err != nil || len(seen) != 3 || seen[0].Event.Actor != name {
					t.Errorf("after %s was done its replica shows %v, %v", name, seen, err)
				}
			}
		})
	}
	writers.Wait()
	commit(t, handles[0], node("the end", ""))
	readers.Wait()
	log := feeds[0]
	if done := units.exactlyOnce(t, log[:len(log)-1], 3); done != 8*40 {
		t.Errorf("%d units done", done)
	}
	for i, s := range handles {
		if len(feeds[i]) != len(log) {
			t.Fatalf("replica %d read %d changes of %d", i, len(feeds[i]), len(log))
		}
		for j := range log {
			if feeds[i][j].Revision != log[j].Revision || !reflect.DeepEqual(feeds[i][j].Event, log[j].Event) || !feeds[i][j].Time.Equal(log[j].Time) {
				t.Fatalf("replica %d read %+v, replica 0 %+v", i, feeds[i][j], log[j])
			}
		}
		storetest.VerifyLog(t, s)
	}
}

// followTo reads the feed in small steps until an object of that id.
func followTo(t *testing.T, s *Store, id string) (all []store.Change) {
	for after := int64(0); ; after = all[len(all)-1].Revision {
		if err := s.Wait(context.Background(), after); err != nil {
			t.Error(err)
			return all
		}
		changes, err := s.Changes(context.Background(), after, 17)
		if err != nil || len(changes) == 0 {
			t.Errorf("after %d: %d changes, %v", after, len(changes), err)
			return all
		}
		all = append(all, changes...)
		if all[len(all)-1].Record.ID == id {
			return all
		}
	}
}

// race runs one unit on each replica at the same time and counts who won.
func race(t *testing.T, handles []*Store, lost error, unit func(i int) store.Unit) (won int) {
	t.Helper()
	var n atomic.Int64
	var wg sync.WaitGroup
	for i, s := range handles {
		wg.Go(func() {
			switch r := s.Commit(context.Background(), unit(i))[0]; {
			case r.Err == nil:
				n.Add(1)
			case !errors.Is(r.Err, lost):
				t.Error(r.Err)
			}
		})
	}
	wg.Wait()
	return int(n.Load())
}

func TestOfReplicasWithTheSameRequirementOneWins(t *testing.T) {
	t.Parallel()
	handles := replicas(t, database(t), 4)
	for round := range 20 {
		fresh := fmt.Sprint("fresh", round)
		if won := race(t, handles, store.ErrConflict, func(i int) store.Unit {
			u := node(fresh, fmt.Sprint(i))
			u.Require = []store.Require{{Kind: mariposa.KindNode, ID: fresh, Absent: true}}
			return u
		}); won != 1 {
			t.Fatalf("%d made the same object", won)
		}
		at, err := handles[round%4].Get(t.Context(), mariposa.KindNode, fresh)
		if err != nil {
			t.Fatal(err)
		}
		if won := race(t, handles, store.ErrConflict, func(i int) store.Unit {
			u := node(fresh, fmt.Sprint(i))
			u.Require = []store.Require{{Kind: mariposa.KindNode, ID: fresh, SpecRevision: at.SpecRevision, StatusRevision: -1}}
			return u
		}); won != 1 {
			t.Fatalf("%d changed the same object", won)
		}
		// Each creates its own object on condition that none of the others exists.
		// Locking existing objects would not prevent the conflict.
		if won := race(t, handles, store.ErrConflict, func(i int) store.Unit {
			u := node(fmt.Sprint("skewed", round, i), "")
			for j := range handles {
				u.Require = append(u.Require, store.Require{Kind: mariposa.KindNode, ID: fmt.Sprint("skewed", round, j), Absent: true})
			}
			return u
		}); won != 1 {
			t.Fatalf("%d were the first", won)
		}
	}
}

func TestLeasesAndClaimsHoldAcrossReplicas(t *testing.T) {
	t.Parallel()
	handles := replicas(t, database(t), 4)
	var holders atomic.Int64
	var wg sync.WaitGroup
	for i, s := range handles {
		wg.Go(func() {
			held, err := s.Hold(context.Background(), fmt.Sprint("replica", i), time.Hour, "b", "a", "c")
			if err != nil {
				t.Error(err)
			}
			holders.Add(int64(len(held)))
		})
	}
	wg.Wait()
	if holders.Load() != 3 {
		t.Fatalf("three leases have %d holders", holders.Load())
	}
	fenced := func(epoch int64) store.Unit {
		u := node("x", "")
		u.Fences = []store.Fence{{Lease: "a", Epoch: epoch}}
		return u
	}
	for i := range 10 {
		s := handles[i%4]
		l, err := s.Seize(t.Context(), "me", "a")
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range handles {
			commit(t, other, fenced(l.Epoch))
			if r := other.Commit(t.Context(), fenced(l.Epoch-1))[0]; !errors.Is(r.Err, store.ErrFenced) {
				t.Fatalf("%+v", r)
			}
		}
	}
	taken := 0
	for range 10 {
		taken += race(t, handles, store.ErrNoCapacity, func(int) store.Unit {
			limit := mariposa.Resources{Instances: 25}
			return store.Unit{Claims: []store.Claim{
				{Node: fmt.Sprint("side", rand.IntN(5)), Take: mariposa.Resources{Instances: 1}},
				{Node: "n", Take: mariposa.Resources{Instances: 1}, Limit: limit},
			}}
		})
	}
	if ledger, err := handles[1].Ledger(t.Context()); err != nil || taken != 25 || ledger["n"].Instances != 25 {
		t.Fatalf("%d taken, %v, %v", taken, ledger, err)
	}
}

// A planner and its successor: everything that the former commits is committed before the
// latter has the lease.
func TestNothingIsCommittedUnderALeaseThatWasLost(t *testing.T) {
	t.Parallel()
	handles := replicas(t, database(t), 2)
	for round := range 10 {
		lease := fmt.Sprint("shard", round)
		held, err := handles[0].Hold(t.Context(), "old", time.Hour, lease)
		if err != nil || len(held) != 1 {
			t.Fatalf("%v, %v", held, err)
		}
		last := make(chan int64)
		go func() {
			var at int64
			for {
				u := node("planned", lease)
				u.Fences = []store.Fence{{Lease: lease, Epoch: held[0].Epoch}}
				r := handles[0].Commit(context.Background(), u)[0]
				if r.Err != nil {
					if !errors.Is(r.Err, store.ErrFenced) {
						t.Error(r.Err)
					}
					last <- at
					return
				}
				at = r.Last
			}
		}()
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
		seized, err := handles[1].Seize(t.Context(), "new", lease)
		if err != nil {
			t.Fatal(err)
		}
		u := node("planned", "by the new one")
		u.Fences = []store.Fence{{Lease: lease, Epoch: seized.Epoch}}
		first := commit(t, handles[1], u)[0].First
		if at := <-last; at >= first {
			t.Fatalf("the old holder wrote revision %d, the new one had %d", at, first)
		}
	}
}

// On a busy machine a notification may take long, so a few quick rounds are enough. Replicas
// that only poll would have one such round in a hundred.
func TestOtherReplicasAreNotifiedAtOnce(t *testing.T) {
	t.Parallel()
	handles := replicas(t, database(t), 3)
	var revision int64
	quick := 0
	for round := 0; quick < 5; round++ {
		if round == 100 {
			t.Fatalf("in %d rounds, replicas were notified at once only %d times", round, quick)
		}
		woken, after := make(chan time.Time, 2), revision
		for _, s := range handles[1:] {
			go func() {
				if err := s.Wait(context.Background(), after); err != nil {
					t.Error(err)
				}
				woken <- time.Now()
			}()
		}
		start := time.Now()
		revision = commit(t, handles[0], node("a", fmt.Sprint(round)))[0].Last
		if first, second := (<-woken).Sub(start), (<-woken).Sub(start); max(first, second) < pollInterval/10 {
			quick++
		}
	}
}

// A notification can be lost; the log is read anyway.
func TestChangesWithoutANotificationAreFound(t *testing.T) {
	t.Parallel()
	target := database(t)
	s := open(t, target, Options{})
	commit(t, s, node("a", "1"))
	changes, err := s.Changes(t.Context(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	silently(t, s, target, changes[0])
	ctx, cancel := context.WithTimeout(t.Context(), max(time.Minute, 10*pollInterval))
	defer cancel()
	if err := s.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if changes, err = s.Changes(t.Context(), 1, 0); err != nil || len(changes) != 1 || changes[0].Record.ID != "a" {
		t.Fatalf("%+v, %v", changes, err)
	}
}

// silently commits a change again, as another replica would, without a notification.
func silently(t *testing.T, s *Store, target string, c store.Change) {
	t.Helper()
	other, err := codec.New()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, newest := s.feed.Bounds()
	c.Revision = newest + 1
	chunk, err := other.Chunk([]store.Change{c}, []*codec.Object{{Record: c.Record}})
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, target)
	do(t, conn, "BEGIN")
	do(t, conn, addChanges, c.Revision, c.Revision, c.Time, chunk.Body)
	do(t, conn, setCounter, 1)
	do(t, conn, "COMMIT")
}

// A replica that was disconnected for a long time loads only the newest part of the log.
func TestAReplicaFarBehindSkipsWhatItWouldNotKeep(t *testing.T) {
	t.Parallel()
	target := database(t)
	handles := replicas(t, target, 2)
	for range 30 {
		var units []store.Unit
		for i := range 50 {
			units = append(units, node(fmt.Sprint("n", i), "x"))
		}
		commit(t, handles[0], units...)
	}
	other := open(t, target, Options{RecentChanges: 100})
	other.feed.Reset(0, 0)
	conn := dial(t, target)
	if err := (&log{feed: other.feed, codec: other.codec, guard: other.guard, recent: 100}).follow(t.Context(), conn, everything); err != nil {
		t.Fatal(err)
	}
	if _, at := other.feed.Bounds(); at != 1500 {
		t.Fatalf("at %d", at)
	}
	if _, ok, err := other.feed.Recent(1450, 0); !ok || err != nil {
		t.Fatalf("the newest part is not at hand: %v", err)
	}
	for _, after := range []int64{0, 700, 1499} {
		if changes, err := other.Changes(t.Context(), after, 0); err != nil || int64(len(changes)) != 1500-after {
			t.Fatalf("after %d: %d changes, %v", after, len(changes), err)
		}
	}
	if _, err := handles[0].Trim(t.Context(), 0, 100); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{handles[1], other} { // they notice when they next read the log
		for _, err := s.Changes(t.Context(), 700, 0); !errors.Is(err, store.ErrTooOld); _, err = s.Changes(t.Context(), 700, 0) {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// A replica that was disconnected while the log was thinned continues after the thinned
// part.
func TestAReplicaFarBehindSkipsWhatWasThinned(t *testing.T) {
	t.Parallel()
	target := database(t)
	s := open(t, target, Options{})
	write := func(project string) store.Write {
		return store.Write{Kind: mariposa.KindInstance, ID: "i-" + project, Project: project, Spec: &mariposa.InstanceSpec{Project: project}}
	}
	const commits = 3 * pageSize
	for range commits {
		commit(t, s, store.Unit{Writes: []store.Write{write("p"), write("q")}})
	}
	other := open(t, target, Options{})
	other.feed.Reset(0, 0)
	if point, err := s.Thin(t.Context(), "p", store.LogSize{Changes: 10}, 2*commits); err != nil || point != 2*(commits-10) {
		t.Fatalf("thinned up to %d, %v", point, err)
	}
	if err := (&log{feed: other.feed, codec: other.codec, guard: other.guard, recent: 10_000}).follow(t.Context(), dial(t, target), everything); err != nil {
		t.Fatal(err)
	}
	if trimmed, at := other.feed.Bounds(); at != 2*commits || trimmed != 2*(commits-10) {
		t.Fatalf("complete after %d, at %d", trimmed, at)
	}
	for after := int64(2 * (commits - 10)); after < 2*commits; after++ {
		if changes, err := other.Changes(t.Context(), after, 0); err != nil || int64(len(changes)) != 2*commits-after || changes[0].Revision != after+1 {
			t.Fatalf("after %d: %d changes, %v", after, len(changes), err)
		}
	}
}

// A database that lost commits is noticed, though no connection was lost: by whichever
// looks first.
func TestALogThatWentBackIsNoticed(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"writer", "listener"} {
		target := database(t)
		s := open(t, target, Options{})
		conn := dial(t, target)
		for range 5 {
			commit(t, s, node("a", first))
		}
		do(t, conn, "BEGIN")
		do(t, conn, "DELETE FROM changes WHERE first > $1", 3)
		do(t, conn, "DELETE FROM change_project WHERE first > $1", 3)
		do(t, conn, "UPDATE counter SET revision = $1", 3)
		do(t, conn, "COMMIT")
		if first == "writer" {
			if err := s.Commit(t.Context(), node("b", first))[0].Err; !errors.Is(err, store.ErrRewound) {
				t.Errorf("a commit answers %v", err)
			}
		}
		wantRewound(t, s)
	}
}

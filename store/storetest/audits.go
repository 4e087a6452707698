package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

var auditTests = map[string]func(*testing.T, Harness){
	"entries commit with their unit and take no revision": func(t *testing.T, h Harness) {
		u := unit(putNode("a", "1"))
		u.Audit = []mariposa.Audit{entry("one"), entry("two")}
		r := commit(t, h.Store, u, audited("three"), unit(putNode("b", "1")))
		same(t, "results", r, []store.Result{{First: 1, Last: 1}, {}, {First: 2, Last: 2}})
		same(t, "entries", objects(audit(t, h.Store, store.AuditQuery{})), []string{"three", "two", "one"})
		gapless(t, feed(t, h.Store, 0), 1)
		if u.Audit[0].ID != 0 || !u.Audit[0].Time.IsZero() {
			t.Errorf("the caller's unit was changed: %s", render(u.Audit[0]))
		}
	},

	"an entry comes back as it was, with an id and a time": func(t *testing.T, h Harness) {
		want := mariposa.Audit{
			Actor: "u1", ActorName: "alice", For: "u2", ForName: "bob", From: "192.0.2.7", Request: "r", Token: "t",
			Action: "project.update", Outcome: mariposa.AuditFailed, Kind: "project", Object: "p", ObjectName: "shop",
			Organization: "o", Project: "p", ProjectName: "shop", Version: "v", Number: 7, Task: "k", Reason: `says "why" <&> über`,
		}
		commit(t, h.Store, store.Unit{Audit: []mariposa.Audit{want}})
		got := audit(t, h.Store, store.AuditQuery{})[0]
		if got.ID <= 0 || got.Time.IsZero() || got.Time.Location() != time.UTC {
			t.Errorf("id %d, time %v", got.ID, got.Time)
		}
		want.ID, want.Time = got.ID, got.Time
		same(t, "entry", got, want)
	},

	"a dropped unit leaves no entry, and its neighbours keep theirs": func(t *testing.T, h Harness) {
		refused := audited("refused")
		refused.Require = []store.Require{{Kind: mariposa.KindNode, ID: "a", Absent: true}}
		refused.Writes = []store.Write{putNode("a", "2")}
		unreadable := audited("unreadable")
		unreadable.Writes = []store.Write{{Kind: "sofa", ID: "a"}}
		r := h.Store.Commit(t.Context(), unit(putNode("a", "1")), audited("before"), refused, unreadable, audited("after"))
		if r[1].Err != nil || !errors.Is(r[2].Err, store.ErrConflict) || r[3].Err == nil || r[4].Err != nil {
			t.Fatalf("%+v", r)
		}
		same(t, "entries", objects(audit(t, h.Store, store.AuditQuery{})), []string{"after", "before"})
	},

	"a context that has ended audits nothing": func(t *testing.T, h Harness) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r := h.Store.Commit(ctx, audited("late"))[0]; !errors.Is(r.Err, context.Canceled) {
			t.Fatalf("%+v", r)
		}
		if _, err := h.Store.Audit(ctx, store.AuditQuery{}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		same(t, "entries", len(audit(t, h.Store, store.AuditQuery{})), 0)
	},

	"ids grow in the order of commits": func(t *testing.T, h Harness) {
		const calls, each = 5, 300 // more than fit into one statement
		for c := range calls {
			var units []store.Unit
			for i := range each {
				units = append(units, audited(numbered("e", c*each+i)))
			}
			commit(t, h.Store, units...)
		}
		all := audit(t, h.Store, store.AuditQuery{})
		same(t, "number", len(all), calls*each)
		for i, a := range all {
			same(t, "entry", a.Object, numbered("e", calls*each-1-i))
			if i > 0 && a.ID >= all[i-1].ID {
				t.Fatalf("%d is listed after %d", a.ID, all[i-1].ID)
			}
		}
	},

	"every filter selects, alone and with others, page by page":     auditFilters,
	"any combination of filters selects what matches it":            auditCombinations,
	"a time selects to the instant":                                 auditTimes,
	"entries are forgotten by age, and ids go on above them":        auditTrim,
	"words that no store could keep are mended, never refused":      auditWords,
	"writers at once lose no entry, and none appears behind others": auditWriters,

	"entries are there after closing and opening again": func(t *testing.T, h Harness) {
		commit(t, h.Store, audited("one"), audited("two"))
		before := audit(t, h.Store, store.AuditQuery{})
		if h.Reopen != nil {
			h.Store = h.Reopen()
		}
		same(t, "after opening again", audit(t, h.Store, store.AuditQuery{}), before)
		commit(t, h.Store, audited("three"))
		same(t, "one more", objects(audit(t, h.Store, store.AuditQuery{})), []string{"three", "two", "one"})
	},
}

func entry(object string) mariposa.Audit {
	return mariposa.Audit{Action: "node.update", Outcome: mariposa.AuditDone, Kind: "node", Object: object}
}

func audited(object string) store.Unit { return store.Unit{Audit: []mariposa.Audit{entry(object)}} }

func audit(t testing.TB, s store.Store, q store.AuditQuery) []mariposa.Audit {
	t.Helper()
	found, err := s.Audit(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func objects(entries []mariposa.Audit) (names []string) {
	for _, a := range entries {
		names = append(names, a.Object)
	}
	return names
}

func auditFilters(t *testing.T, h Harness) {
	for i, a := range []mariposa.Audit{
		{Actor: "u1", ActorName: "alice", Action: "project.create", Outcome: "done", Organization: "o1", Project: "p1"},                                   // 0
		{Actor: "u1", ActorName: "alice", Action: "project.update", Outcome: "denied", Organization: "o1", Project: "p1"},                                 // 1
		{Actor: "u2", ActorName: "bob", For: "u1", ForName: "alice", Action: "project.update", Outcome: "done", Organization: "o2", Project: "p2"},        // 2
		{Actor: "mariposa", ActorName: "mariposa", Action: "instance.replace", Outcome: "done", Organization: "o2", Project: "p2"},                        // 3
		{Actor: "u2", ActorName: "bob", Action: "projects.list", Outcome: "denied"},                                                                       // 4
		{Actor: "u3", ActorName: "u1", Action: "user.create", Outcome: "failed", Organization: "o3"},                                                      // 5
		{Actor: "u1", ActorName: "alicia", Action: "project.", Outcome: "done", Organization: "o1", Project: "p2"},                                        // 6
		{Actor: "u1", ActorName: "u1", For: "u1", ForName: "u1", Action: "project", Outcome: "done", Organization: "o3", Project: "p3", Reason: "itself"}, // 7
	} {
		a.Object = fmt.Sprint(i)
		commit(t, h.Store, store.Unit{Audit: []mariposa.Audit{a}})
	}
	for _, c := range []struct {
		q    store.AuditQuery
		want string
	}{
		{store.AuditQuery{}, "7 6 5 4 3 2 1 0"},
		{store.AuditQuery{Organizations: []string{"o1"}}, "6 1 0"},
		{store.AuditQuery{Organizations: []string{"o3", "o1", "o3", "none"}}, "7 6 5 1 0"},
		{store.AuditQuery{Organizations: []string{""}}, "4"},
		{store.AuditQuery{Organizations: []string{}}, ""},
		{store.AuditQuery{Organizations: []string{"none"}}, ""},
		{store.AuditQuery{Project: "p2"}, "6 3 2"},
		{store.AuditQuery{Project: "p2", Organizations: []string{"o2", "o3"}}, "3 2"},
		{store.AuditQuery{Project: "p2", Organizations: []string{}}, ""},
		{store.AuditQuery{Actor: "u1"}, "7 6 5 2 1 0"},
		{store.AuditQuery{Actor: "alice"}, "2 1 0"},
		{store.AuditQuery{Actor: "mariposa"}, "3"},
		{store.AuditQuery{Actor: "nobody"}, ""},
		{store.AuditQuery{Actor: "u1", Organizations: []string{"o1", "o2"}}, "6 2 1 0"},
		{store.AuditQuery{Actor: "alice", Project: "p2"}, "2"},
		{store.AuditQuery{Action: "project.update"}, "2 1"},
		{store.AuditQuery{Action: "project"}, "7"},
		{store.AuditQuery{Action: "project."}, "6 2 1 0"},
		{store.AuditQuery{Action: "pro."}, ""},
		{store.AuditQuery{Action: "project.", Actor: "alice"}, "2 1 0"},
		{store.AuditQuery{Action: "project.", Outcome: "denied"}, "1"},
		{store.AuditQuery{Action: "user.create", Project: "p1"}, ""},
		{store.AuditQuery{Outcome: "denied"}, "4 1"},
		{store.AuditQuery{Outcome: "failed"}, "5"},
		{store.AuditQuery{Outcome: "done"}, "7 6 3 2 0"},
		{store.AuditQuery{Outcome: "done", Organizations: []string{"o1"}, Action: "project.", Project: "p1"}, "0"},
		{store.AuditQuery{Outcome: "lost"}, ""},
	} {
		want := strings.Fields(c.want)
		same(t, render(c.q), strings.Join(objects(audit(t, h.Store, c.q)), " "), c.want)
		for limit := 1; limit < 4; limit++ {
			q, rest := c.q, want
			for q.Limit = limit; ; {
				page := audit(t, h.Store, q)
				n := min(limit, len(rest))
				same(t, "page of "+render(q), strings.Join(objects(page), " "), strings.Join(rest[:n], " "))
				if rest = rest[n:]; len(page) == 0 {
					break
				}
				q.Before = page[len(page)-1].ID
			}
		}
	}
}

// auditCombinations runs random queries; the seed is fixed, so that they are the same
// each time.
func auditCombinations(t *testing.T, h Harness) {
	dice := rand.New(rand.NewPCG(7, 12)) //nolint:gosec // not a secret
	one := func(of ...string) string { return of[dice.IntN(len(of))] }
	var entries []mariposa.Audit
	for range 100 {
		entries = append(entries, mariposa.Audit{
			Organization: one("", "o1", "o2", "o3"), Project: one("", "p1", "p2"), Outcome: mariposa.AuditOutcome(one("done", "done", "denied", "failed")),
			Actor: one("", "u1", "u2"), ActorName: one("", "u1", "n1"), For: one("", "", "u2"), ForName: one("", "", "n1"),
			Action: one("a", "a.", "a.b", "a.b.c", "a.c", "b.c"),
		})
	}
	commit(t, h.Store, store.Unit{Audit: entries})
	all := audit(t, h.Store, store.AuditQuery{})
	for range 200 {
		q := store.AuditQuery{
			Project: one("", "", "p1", "p2"), Actor: one("", "", "u1", "u2", "n1"), Action: one("", "", "a", "a.", "a.b", "a.b.", "b."),
			Outcome: one("", "", "done", "denied", "failed"), Organizations: [][]string{nil, nil, {}, {"o1"}, {"o2", "o1"}, {"", "o3", "o3"}}[dice.IntN(6)],
			Limit: dice.IntN(8),
		}
		if dice.IntN(2) == 0 {
			q.Before = all[dice.IntN(len(all))].ID
		}
		var want []int64
		for i := range all {
			if q.Matches(&all[i]) && (q.Limit == 0 || len(want) < q.Limit) {
				want = append(want, all[i].ID)
			}
		}
		var got []int64
		for _, a := range audit(t, h.Store, q) {
			got = append(got, a.ID)
		}
		same(t, render(q), got, want)
	}
}

func auditTimes(t *testing.T, h Harness) {
	for i := range 5 {
		commit(t, h.Store, store.Unit{Audit: []mariposa.Audit{
			{Object: fmt.Sprint(i, "a"), Action: "a.b", Organization: "o"}, {Object: fmt.Sprint(i, "b"), Action: "a.b", Organization: "o"},
		}})
		h.Advance(10 * time.Millisecond)
	}
	all := audit(t, h.Store, store.AuditQuery{}) // 4b 4a 3b 3a 2b 2a 1b 1a 0b 0a
	at := func(i int) time.Time { return all[9-2*i].Time }
	for _, c := range []struct {
		since, until time.Time
		want         string
	}{
		{at(3), time.Time{}, "4b 4a 3b 3a"},
		{at(3).Add(1), time.Time{}, "4b 4a"},
		{at(3).Add(-1), time.Time{}, "4b 4a 3b 3a"},
		{time.Time{}, at(1), "0b 0a"},
		{time.Time{}, at(1).Add(1), "1b 1a 0b 0a"},
		{at(1), at(3), "2b 2a 1b 1a"},
		{at(1), at(1), ""},
		{at(3), at(1), ""},
		{at(4).Add(1), time.Time{}, ""},
		{time.Time{}, at(0), ""},
		{time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "4b 4a 3b 3a 2b 2a 1b 1a 0b 0a"},
		{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}, ""},
		{time.Time{}, time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), ""},
	} {
		for _, q := range []store.AuditQuery{{}, {Organizations: []string{"o"}}, {Action: "a."}, {Limit: 10, Organizations: []string{"o", "p"}}} {
			q.Since, q.Until = c.since, c.until
			same(t, render(q), strings.Join(objects(audit(t, h.Store, q)), " "), c.want)
		}
	}
}

func auditTrim(t *testing.T, h Harness) {
	trim := func(age time.Duration, removed int64) {
		t.Helper()
		if n, err := h.Store.TrimAudit(t.Context(), age); err != nil || n != removed {
			t.Fatalf("removed %d, want %d, %v", n, removed, err)
		}
	}
	trim(24*time.Hour, 0)
	commit(t, h.Store, audited("one"), unit(putNode("a", "1")))
	commit(t, h.Store, audited("two"))
	h.Advance(3 * time.Hour)
	commit(t, h.Store, audited("three"))
	trim(0, 0)
	trim(24*time.Hour, 0)
	trim(2*time.Hour, 2)
	left := audit(t, h.Store, store.AuditQuery{})
	same(t, "left", objects(left), []string{"three"})
	trim(2*time.Hour, 0)
	h.Advance(3 * time.Hour)
	trim(2*time.Hour, 1)
	same(t, "left", len(audit(t, h.Store, store.AuditQuery{})), 0)
	same(t, "feed", len(feed(t, h.Store, 0)), 1)
	if h.Reopen != nil {
		h.Store = h.Reopen()
	}
	commit(t, h.Store, audited("four"))
	if next := audit(t, h.Store, store.AuditQuery{}); len(next) != 1 || next[0].ID <= left[0].ID {
		t.Errorf("after %d came %s", left[0].ID, render(next))
	}
}

func auditWords(t *testing.T, h Harness) {
	odd := "a\x00b\xffc"
	long := strings.Repeat("ü", 5000)
	commit(t, h.Store, store.Unit{Audit: []mariposa.Audit{
		{Object: odd, ObjectName: long, Actor: odd, ActorName: long, Organization: odd, Project: long, Action: odd, Outcome: "denied", Reason: long},
	}})
	got := audit(t, h.Store, store.AuditQuery{})[0]
	same(t, "odd", got.Object, "a\uFFFDb\uFFFDc")
	same(t, "long", got.ObjectName, strings.Repeat("ü", 250))
	same(t, "reason", got.Reason, strings.Repeat("ü", 2000))
	for want, qs := range map[int][]store.AuditQuery{
		1: {{Actor: got.Actor}, {Actor: got.ActorName}, {Organizations: []string{got.Organization}}, {Project: got.Project}, {Action: got.Action}},
		0: {{Actor: odd}, {Actor: long}, {Organizations: []string{odd}}, {Project: long}, {Action: odd}, {Action: odd + "."}, {Outcome: "\x00"}},
	} {
		for _, q := range qs {
			same(t, render(q), len(audit(t, h.Store, q)), want)
		}
	}
}

// auditWriters also reads all the time: once a reader has seen the newest entry, new
// ones may only appear above it.
func auditWriters(t *testing.T, h Harness) {
	done := make(chan struct{})
	var readers, all sync.WaitGroup
	for _, q := range []store.AuditQuery{{}, {Organizations: []string{"0", "1", "2", "3", "4", "5", "6", "7"}}} {
		readers.Go(func() { watchAudit(t, h.Store, q, done) })
	}
	for w := range writers {
		all.Go(func() {
			for i := range rounds {
				u := unit(putNode(numbered("n", w), fmt.Sprint(i)))
				if i%3 == 0 {
					u = store.Unit{}
				}
				for _, part := range []string{"a", "b"} {
					u.Audit = append(u.Audit, mariposa.Audit{Organization: fmt.Sprint(w), Number: i, Object: part})
				}
				if r := h.Store.Commit(context.Background(), u)[0]; r.Err != nil {
					t.Error(r.Err)
				}
			}
		})
	}
	all.Wait()
	close(done)
	readers.Wait()
	for w := range writers {
		mine := audit(t, h.Store, store.AuditQuery{Organizations: []string{fmt.Sprint(w)}})
		same(t, "entries of one writer", len(mine), 2*rounds)
		slices.Reverse(mine)
		for i, a := range mine {
			same(t, "entry", []any{a.Number, a.Object}, []any{i / 2, string("ab"[i%2])})
		}
	}
}

func watchAudit(t *testing.T, s store.Store, q store.AuditQuery, done <-chan struct{}) {
	var seen []mariposa.Audit
	for stop := false; !stop; {
		select {
		case <-done:
			stop = true
		default:
		}
		now, err := s.Audit(context.Background(), q)
		if err != nil {
			t.Error(err)
			return
		}
		if added := len(now) - len(seen); added < 0 || !slices.Equal(now[added:], seen) {
			t.Errorf("of %d entries, then %d, the older ones differ", len(seen), len(now))
			return
		}
		seen = now
	}
}

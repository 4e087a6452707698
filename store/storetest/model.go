package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/store"
	"mariposa/store/memory"
)

// compareWithModel applies the same random operations to a store and to the memory model
// and expects the same results. Times are not compared, and time does not pass: a store
// may have its own clock.
func compareWithModel(t *testing.T, open Factory) {
	rapid.Check(t, func(rt *rapid.T) {
		h := open(t)
		m := &machine{store: h.Store, model: memory.New(NewClock())}
		defer func() { m.store.Close() }()
		actions := map[string]func(*rapid.T){
			"commit":  m.commit,
			"leases":  m.leases,
			"changes": m.changes,
			"history": m.history,
			"list":    m.list,
			"trim":    m.trim,
			"thin":    m.thin,
			"audit":   m.audit,
		}
		if h.Reopen != nil {
			actions["reopen"] = func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom, because it is slow") == 0 {
					m.store = h.Reopen()
				}
			}
		}
		rt.Repeat(actions)
		m.everything(rt)
	})
}

type machine struct {
	store store.Store
	model *memory.Store
}

// Few names, so that units conflict.
var (
	ids      = rapid.SampledFrom([]string{"a", "b", "c", "d"})
	projects = rapid.SampledFrom([]string{"", "p", "q"})
	tasks    = rapid.SampledFrom([]string{"", "t", "u"})
	words    = rapid.StringMatching(`[a-zé"\\]{0,6}`)
	kinds    = rapid.SampledFrom(mariposa.Kinds)
	leases   = rapid.SampledFrom([]string{"l", "m"})
	nodes    = rapid.SampledFrom([]string{"n", "o"})
	holders  = rapid.SampledFrom([]string{"me", "you"})
	users    = rapid.SampledFrom([]string{"", "u", "v"})
	actions  = rapid.SampledFrom([]string{"a.b", "a.c", "a", "ab.c", "a.b.c"})
	outcomes = rapid.SampledFrom([]string{"", "done", "denied", "failed"})
)

func (m *machine) commit(t *rapid.T) {
	units := rapid.SliceOfN(rapid.Custom(m.unit), 1, 4).Draw(t, "units")
	got := m.store.Commit(context.Background(), units...)
	want := m.model.Commit(context.Background(), units...)
	for i := range want {
		if got[i].First != want[i].First || got[i].Last != want[i].Last || kindOf(got[i].Err) != kindOf(want[i].Err) {
			t.Fatalf("unit %d: got %+v, want %+v", i, got[i], want[i])
		}
	}
}

func (m *machine) unit(t *rapid.T) store.Unit {
	u := store.Unit{
		Writes: rapid.SliceOfN(rapid.Custom(write), 0, 4).Draw(t, "writes"),
		Urgent: rapid.Bool().Draw(t, "urgent"),
	}
	if rapid.IntRange(0, 3).Draw(t, "fenced") == 0 {
		u.Fences = []store.Fence{{Lease: leases.Draw(t, "lease"), Epoch: rapid.Int64Range(0, 4).Draw(t, "epoch")}}
	}
	if rapid.IntRange(0, 2).Draw(t, "claiming") == 0 {
		u.Claims = rapid.SliceOfN(rapid.Custom(anyClaim), 1, 3).Draw(t, "claims")
	}
	if rapid.IntRange(0, 2).Draw(t, "requiring") == 0 {
		u.Require = []store.Require{m.require(t)}
	}
	if rapid.IntRange(0, 2).Draw(t, "auditing") == 0 {
		u.Audit = rapid.SliceOfN(rapid.Custom(anyAudit), 1, 3).Draw(t, "audit")
	}
	return u
}

// require returns a requirement that is met about half of the time: it starts from the
// model's state.
func (m *machine) require(t *rapid.T) store.Require {
	q := store.Require{Kind: kinds.Draw(t, "kind"), ID: ids.Draw(t, "id"), Absent: rapid.Bool().Draw(t, "absent")}
	r, err := m.model.Get(context.Background(), q.Kind, q.ID)
	if err == nil {
		q.Absent = rapid.IntRange(0, 4).Draw(t, "wrongly absent") == 0
	}
	off := rapid.SampledFrom([]int64{0, 0, 0, 1})
	q.SpecRevision, q.StatusRevision = r.SpecRevision+off.Draw(t, "off"), r.StatusRevision+off.Draw(t, "off")
	if rapid.Bool().Draw(t, "any status") {
		q.StatusRevision = -1
	}
	return q
}

func write(t *rapid.T) store.Write {
	w := store.Write{
		Kind:    kinds.Draw(t, "kind"),
		ID:      ids.Draw(t, "id"),
		Project: projects.Draw(t, "project"),
		Archive: rapid.IntRange(0, 9).Draw(t, "archive") == 0,
		Delete:  rapid.IntRange(0, 5).Draw(t, "delete") == 0,
		Event:   mariposa.Event{Kind: "x", Project: projects.Draw(t, "event project"), Task: tasks.Draw(t, "task"), Reason: anyReason(t)},
	}
	word := words.Draw(t, "word")
	if rapid.Bool().Draw(t, "spec") {
		w.Spec = specOf(w.Kind, word)
	}
	if rapid.Bool().Draw(t, "status") {
		w.Status = statusOf(w.Kind, word)
	}
	return w
}

// anyReason returns no reason, a text, or one with a code.
func anyReason(t *rapid.T) *mariposa.Reason {
	r := mariposa.TextReason(words.Draw(t, "reason"))
	if r != nil && rapid.Bool().Draw(t, "coded") {
		r.Code, r.Subject, r.Until = mariposa.ReasonBackingOff, r.Detail, time.Unix(1, 2).UTC()
	}
	return r
}

func specOf(k mariposa.Kind, word string) any {
	switch s := mariposa.NewSpec(k).(type) {
	case *mariposa.NodeSpec:
		s.Name, s.Traits = word, map[string]string{word: word}
		return s
	case *mariposa.ProjectSpec:
		s.Name = word
		return s
	case *mariposa.VersionSpec:
		s.Manifest = []byte(word)
		return s
	case *mariposa.InstanceSpec:
		s.Name, s.Created = word, time.Unix(1, 2).UTC()
		s.Reason = mariposa.TextReason(word).Because(&mariposa.Reason{Code: mariposa.ReasonIsFrozen})
		return s
	case *mariposa.TaskSpec:
		s.Reason = mariposa.TextReason(word)
		return s
	default:
		return s
	}
}

func statusOf(k mariposa.Kind, word string) any {
	switch s := mariposa.NewStatus(k).(type) {
	case *mariposa.NodeStatus:
		s.Reason = mariposa.TextReason(word)
		return s
	case *mariposa.InstanceStatus:
		s.Reason, s.Details = word, map[string]string{"d": word}
		return s
	case *mariposa.TaskStatus:
		s.Reason = mariposa.TextReason(word)
		for _, first := range word {
			s.State = mariposa.TaskState(first)
			break
		}
		return s
	default:
		return s
	}
}

func anyClaim(t *rapid.T) store.Claim {
	n := rapid.Int64Range(-3, 3)
	return store.Claim{
		Node:  nodes.Draw(t, "node"),
		Take:  mariposa.Resources{Instances: int(n.Draw(t, "instances")), MilliCPU: n.Draw(t, "cpu"), Memory: n.Draw(t, "memory")},
		Limit: mariposa.Resources{Instances: int(max(0, n.Draw(t, "limit"))), MilliCPU: max(0, n.Draw(t, "limit")), Memory: 0},
	}
}

func (m *machine) leases(t *rapid.T) {
	holder, name := holders.Draw(t, "holder"), leases.Draw(t, "lease")
	choice := rapid.IntRange(0, 3).Draw(t, "act")
	got, want := leaseAct(m.store, choice, holder, name), leaseAct(m.model, choice, holder, name)
	if got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func leaseAct(s store.Store, choice int, holder, name string) string {
	switch choice {
	case 1:
		l, err := s.Seize(context.Background(), holder, name)
		return fmt.Sprint(timeless(l), err)
	case 2:
		return fmt.Sprint(s.Release(context.Background(), holder, name))
	case 3:
		return fmt.Sprint(s.Announce(context.Background(), holder, name, "of "+holder))
	}
	held, err := s.Hold(context.Background(), holder, time.Hour, name, "l")
	return fmt.Sprint(timeless(held...), err)
}

func timeless(held ...store.Lease) []store.Lease {
	var out []store.Lease
	for _, l := range held {
		l.Until = time.Time{}
		out = append(out, l)
	}
	return out
}

func (m *machine) changes(t *rapid.T) {
	after, limit := rapid.Int64Range(0, 30).Draw(t, "after"), rapid.IntRange(0, 20).Draw(t, "limit")
	got, gotErr := m.store.Changes(context.Background(), after, limit)
	want, wantErr := m.model.Changes(context.Background(), after, limit)
	equal(t, "changes", undated(got), undated(want), gotErr, wantErr)
}

func (m *machine) history(t *rapid.T) {
	q := store.HistoryQuery{
		Project: projects.Draw(t, "project"),
		Task:    tasks.Draw(t, "task"),
		Before:  rapid.Int64Range(0, 30).Draw(t, "before"),
		Limit:   rapid.IntRange(0, 10).Draw(t, "limit"),
	}
	got, gotErr := m.store.History(context.Background(), q)
	want, wantErr := m.model.History(context.Background(), q)
	equal(t, "history", undated(got), undated(want), gotErr, wantErr)
}

func (m *machine) list(t *rapid.T) {
	q := store.Query{
		Kind:    kinds.Draw(t, "kind"),
		Project: projects.Draw(t, "project"),
		Before:  rapid.SampledFrom([]string{"", "b", "bb", "d"}).Draw(t, "before"),
		Limit:   rapid.IntRange(0, 3).Draw(t, "limit"),
	}
	if rapid.Bool().Draw(t, "several") {
		q.Project, q.Projects = "", rapid.SliceOfN(projects, 0, 3).Draw(t, "projects")
	}
	if rapid.IntRange(0, 3).Draw(t, "ended") == 0 {
		q.State = mariposa.TaskState(rapid.SampledFrom([]string{"a", "b", `"`}).Draw(t, "state"))
	}
	got, gotErr := m.store.List(context.Background(), q)
	want, wantErr := m.model.List(context.Background(), q)
	equal(t, "list", got, want, gotErr, wantErr)
}

func (m *machine) trim(t *rapid.T) {
	keep := rapid.Int64Range(0, 40).Draw(t, "keep")
	got, gotErr := m.store.Trim(context.Background(), 0, keep)
	want, wantErr := m.model.Trim(context.Background(), 0, keep)
	equal(t, "point", got, want, gotErr, wantErr)
}

func (m *machine) thin(t *rapid.T) {
	project := projects.Draw(t, "project")
	keep := store.LogSize{Changes: rapid.Int64Range(0, 20).Draw(t, "keep")}
	upTo := rapid.Int64Range(0, 60).Draw(t, "up to")
	got, gotErr := m.store.Thin(context.Background(), project, keep, upTo)
	want, wantErr := m.model.Thin(context.Background(), project, keep, upTo)
	equal(t, "point", got, want, gotErr, wantErr)
	sizes := func(s store.Store) (map[string]int64, error) {
		found, err := s.LogSizes(context.Background())
		changes := make(map[string]int64)
		for p, n := range found {
			changes[p] = n.Changes
		}
		return changes, err
	}
	gotSizes, gotErr := sizes(m.store)
	wantSizes, wantErr := sizes(m.model)
	equal(t, "sizes", gotSizes, wantSizes, gotErr, wantErr)
}

func anyAudit(t *rapid.T) mariposa.Audit {
	return mariposa.Audit{
		Actor: users.Draw(t, "actor"), ActorName: users.Draw(t, "actor name"), For: users.Draw(t, "for"), ForName: users.Draw(t, "for name"),
		Action: actions.Draw(t, "action"), Outcome: mariposa.AuditOutcome(outcomes.Draw(t, "outcome")),
		Organization: projects.Draw(t, "organization"), Project: projects.Draw(t, "project"), Reason: words.Draw(t, "reason"),
	}
}

// audit runs the same query on both, below the same entry. Each store has its own ids.
func (m *machine) audit(t *rapid.T) {
	q := store.AuditQuery{
		Project: projects.Draw(t, "project"), Actor: users.Draw(t, "actor"), Outcome: outcomes.Draw(t, "outcome"),
		Action: rapid.OneOf(actions, rapid.SampledFrom([]string{"", "a.", "a.b.", "x."})).Draw(t, "action"),
		Limit:  rapid.IntRange(0, 5).Draw(t, "limit"),
	}
	if rapid.Bool().Draw(t, "of organizations") {
		q.Organizations = rapid.SliceOfN(projects, 0, 3).Draw(t, "organizations")
	}
	below := rapid.IntRange(0, 20).Draw(t, "below")
	ask := func(s store.Store) (found []mariposa.Audit, err error) {
		q := q
		all, err := s.Audit(context.Background(), store.AuditQuery{})
		if err != nil {
			return nil, err
		}
		if below < len(all) {
			q.Before = all[below].ID
		}
		found, err = s.Audit(context.Background(), q)
		for i := range found {
			found[i].ID, found[i].Time = 0, time.Time{}
		}
		return found, err
	}
	got, gotErr := ask(m.store)
	want, wantErr := ask(m.model)
	equal(t, "audit", got, want, gotErr, wantErr)
}

// everything compares everything that can be read.
func (m *machine) everything(t *rapid.T) {
	ask := func(s store.Store) []any {
		ledger, err := s.Ledger(context.Background())
		answers := []any{ledger, kindOf(err)}
		var records []store.Record
		revision, err := s.Snapshot(context.Background(), func(r store.Record) error {
			records = append(records, r)
			return nil
		})
		answers = append(answers, records, revision, kindOf(err))
		for after := range revision + 2 {
			changes, err := s.Changes(context.Background(), after, 0)
			answers = append(answers, undated(changes), kindOf(err))
		}
		for _, k := range mariposa.Kinds {
			for _, id := range []string{"a", "b", "c", "d"} {
				r, err := s.Get(context.Background(), k, id)
				answers = append(answers, r, kindOf(err))
			}
		}
		return answers
	}
	equal(t, "everything", ask(m.store), ask(m.model), nil, nil)
}

func undated(changes []store.Change) []store.Change {
	var out []store.Change
	for _, c := range changes {
		c.Time = time.Time{}
		out = append(out, c)
	}
	return out
}

func equal(t *rapid.T, what string, got, want any, gotErr, wantErr error) {
	t.Helper()
	if kindOf(gotErr) != kindOf(wantErr) {
		t.Fatalf("%s: got %v, want %v", what, gotErr, wantErr)
	}
	if g, w := render(got), render(want); g != w {
		t.Fatalf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// kindOf makes errors comparable across stores, whatever text they wrap.
func kindOf(err error) string {
	for _, known := range []error{store.ErrNotFound, store.ErrConflict, store.ErrFenced, store.ErrNoCapacity, store.ErrTooOld, store.ErrUnavailable, store.ErrClosed} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

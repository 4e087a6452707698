package memory_test

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/store/storetest"
)

// dump is a dump in memory.
type dump struct {
	head  store.DumpHead
	items []*store.DumpItem
	next  int
}

func dumpOf(t *testing.T, st store.Store) *dump {
	t.Helper()
	d := &dump{}
	err := st.Dump(t.Context(), store.Dump{
		Head: func(h store.DumpHead) error { d.head = h; return nil },
		Item: func(it *store.DumpItem) error { d.items = append(d.items, it); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *dump) Head() store.DumpHead { return d.head }

func (d *dump) Next() (*store.DumpItem, error) {
	if d.next == len(d.items) {
		return nil, io.EOF
	}
	d.next++
	return d.items[d.next-1], nil
}

// fill writes some of everything.
func fill(t *testing.T, st store.Store, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		id := fmt.Sprint("i", i)
		u := store.Unit{
			Writes: []store.Write{
				{Kind: mariposa.KindInstance, ID: id, Project: "p", Spec: &mariposa.InstanceSpec{Name: id, Project: "p", Node: "n"}, Status: &mariposa.InstanceStatus{State: mariposa.StateRunning}},
				{Kind: mariposa.KindTask, ID: id, Project: "p", Spec: &mariposa.TaskSpec{Project: "p"}, Status: &mariposa.TaskStatus{State: mariposa.TaskCompleted}, Archive: true},
			},
			Claims: []store.Claim{{Node: "n", Take: mariposa.Resources{Instances: 1}}},
			Audit:  []mariposa.Audit{{Actor: "u", Action: "project.update", Outcome: mariposa.AuditDone, Reason: id}},
		}
		if err := st.Commit(t.Context(), u)[0].Err; err != nil {
			t.Fatal(err)
		}
		if _, err := st.Seize(t.Context(), "h", "node/n"); err != nil {
			t.Fatal(err)
		}
	}
}

// content is what clients of a store can read, except its log.
func content(t *testing.T, st store.Store) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, k := range mariposa.Kinds {
		rs, err := st.List(t.Context(), store.Query{Kind: k})
		if err != nil {
			t.Fatal(err)
		}
		all[string(k)] = rs
	}
	var err error
	if all["ledger"], err = st.Ledger(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all["audit"], err = st.Audit(t.Context(), store.AuditQuery{}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestARestoredStoreIsANewIncarnation(t *testing.T) {
	ctx := t.Context()
	clk := storetest.NewClock()
	old := memory.New(clk)
	fill(t, old, 0, 5)
	before := content(t, old)
	saved := dumpOf(t, old)
	fill(t, old, 5, 9)
	newest, _ := old.Revision(ctx)
	st, err := memory.Restore(ctx, clk, saved, newest)
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, st); !reflect.DeepEqual(got, before) {
		t.Errorf("restored\n%v, want\n%v", got, before)
	}
	was, _ := old.Identity(ctx)
	is, _ := st.Identity(ctx)
	if is.Cluster != was.Cluster || is.Incarnation == was.Incarnation {
		t.Errorf("%+v after %+v", is, was)
	}
	if revision, _ := st.Revision(ctx); revision <= newest {
		t.Errorf("it continues at revision %d, and %d was there before", revision, newest)
	}
	if _, err := st.Changes(ctx, newest, 0); err == nil {
		t.Error("the feed goes back to the time that is lost")
	}
	if held, err := st.Leases(ctx, ""); err != nil || len(held) > 0 {
		t.Errorf("leases are held: %v, %v", held, err)
	}
	if l, err := st.Seize(ctx, "h", "node/n"); err != nil || l.Epoch != 6 {
		t.Errorf("the sixth epoch is %+v, %v", l, err)
	}
}

func TestACopyAndItsOriginalAreIndependent(t *testing.T) {
	ctx := context.Background()
	old := memory.New(storetest.NewClock())
	fill(t, old, 0, 5)
	before := content(t, old)
	c := old.Copy()
	fill(t, old, 5, 9)
	if got := content(t, c); !reflect.DeepEqual(got, before) {
		t.Errorf("the copy has\n%v, want\n%v", got, before)
	}
	both := content(t, old)
	revision, _ := c.Revision(ctx)
	fill(t, c, 20, 22)
	if got := content(t, old); !reflect.DeepEqual(got, both) {
		t.Errorf("the original has\n%v, want\n%v", got, both)
	}
	for _, st := range []store.Store{old, c} {
		news, err := st.Changes(ctx, revision, 0)
		if err != nil || len(news) == 0 {
			t.Fatalf("%v, %v", news, err)
		}
		want := map[bool]string{true: "i20", false: "i5"}[st == store.Store(c)]
		if news[0].Record.ID != want || news[0].Revision != revision+1 {
			t.Errorf("%s follows at revision %d, want %s", news[0].Record.ID, news[0].Revision, want)
		}
	}
	a, _ := old.Identity(ctx)
	b, _ := c.Identity(ctx)
	if a != b {
		t.Errorf("%+v is a copy of %+v", b, a)
	}
	if _, err := c.Trim(ctx, time.Hour, 1); err != nil {
		t.Fatal(err)
	}
	if all, err := old.Changes(ctx, 0, 0); err != nil || len(all) != 18 {
		t.Errorf("%d changes, %v", len(all), err)
	}
}

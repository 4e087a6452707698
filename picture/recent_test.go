package picture_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/memory"
)

// The picture has the same newest changes as the store.
func TestThePictureKeepsTheNewestChanges(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	commit(t, st, project("p0", "before"))
	p := open(t, st)
	first := p.Revision()
	if _, ok := p.Changes(first-1, 10); ok {
		t.Error("the picture has changes from before it was opened")
	}
	if got, ok := p.Changes(first, 10); !ok || len(got) != 0 {
		t.Errorf("at its own revision it has %d changes, %v", len(got), ok)
	}
	if _, ok := p.Changes(first+1, 10); ok {
		t.Error("the picture has changes from the future")
	}
	const n = 20_000
	for i := range n {
		commit(t, st, project("p1", fmt.Sprint("name-", i)))
		if i%100 == 0 {
			advance(t, p)
		}
	}
	advance(t, p)
	after, kept := p.Revision()-1000, 0
	for {
		got, ok := p.Changes(after, 7)
		if !ok {
			t.Fatalf("no changes after %d of %d", after, p.Revision())
		}
		if len(got) == 0 {
			break
		}
		want, err := st.Changes(t.Context(), after, len(got))
		if err != nil || !slices.EqualFunc(got, want, func(a, b store.Change) bool { return a.Revision == b.Revision && a.Record.ID == b.Record.ID }) {
			t.Fatalf("after %d, the picture has other changes than the store", after)
		}
		after, kept = got[len(got)-1].Revision, kept+len(got)
	}
	if kept != 1000 {
		t.Errorf("%d of the last 1000 changes", kept)
	}
	if _, ok := p.Changes(p.Revision()-n/2, 10); ok {
		t.Error("the picture keeps too many changes")
	}
}

// setClock shows the time that it is set to.
type setClock struct {
	clock.Real
	now time.Time
}

func (c *setClock) Now() time.Time { return c.now }

// While somebody follows the changes, those of the last seconds are kept, however many there are.
func TestThePictureKeepsMoreChangesWhileTheyAreFollowed(t *testing.T) {
	t.Parallel()
	at := &setClock{now: time.Now()}
	st := memory.New(at)
	t.Cleanup(func() { _ = st.Close() })
	p := open(t, st)
	p.FollowChanges(true)
	first := p.Revision()
	more := func() {
		writes := make([]store.Write, 1000)
		for i := range writes {
			writes[i] = project(fmt.Sprint("p", i), fmt.Sprint("name-", i))
		}
		commit(t, st, writes...)
		advance(t, p)
	}
	for range 10 {
		more()
	}
	if _, ok := p.Changes(first, 1); !ok {
		t.Error("a change of the last seconds is forgotten")
	}
	at.now = at.now.Add(time.Minute)
	more()
	if _, ok := p.Changes(first, 1); ok {
		t.Error("a change is kept for a minute")
	}
	if _, ok := p.Changes(p.Revision()-4000, 1); !ok {
		t.Error("the newest changes are forgotten")
	}
}

func TestThePictureKnowsWhichProjectsHaveChanged(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	commit(t, st, project("p1", "one"), project("p2", "two"))
	p := open(t, st)
	at := p.Revision()
	since := func(revision int64) []string {
		touched, now := p.TouchedSince(revision)
		if now != p.Revision() {
			t.Errorf("the revision is %d", now)
		}
		slices.Sort(touched)
		return touched
	}
	wants := func(revision int64, want ...string) {
		t.Helper()
		if got := since(revision); !slices.Equal(got, want) {
			t.Errorf("changed after %d: %v, not %v", revision, got, want)
		}
	}
	wants(at)
	wants(at-1, "p1", "p2") // it is not known
	commit(t, st, instance("i1", "p2", "n1"))
	advance(t, p)
	wants(at, "p2")
	if p.TouchedAt("p1") != at || p.TouchedAt("p2") != p.Revision() {
		t.Errorf("changed at %d and %d, now is %d", p.TouchedAt("p1"), p.TouchedAt("p2"), p.Revision())
	}
	at = p.Revision()
	commit(t, st, store.Write{Kind: mariposa.KindProject, ID: "p2", Delete: true})
	advance(t, p)
	wants(at)
	commit(t, st, store.Write{Kind: mariposa.KindNode, ID: "n1", Spec: &mariposa.NodeSpec{Name: "host"}})
	advance(t, p)
	wants(at, "p1") // instances of any project may be there
}

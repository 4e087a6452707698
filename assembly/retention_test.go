package assembly

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/clock"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/store/storetest"
)

// Whatever the projects have, all of it is within the bounds once those who have too
// much keep what they are given, and nobody loses changes who has no more than an equal
// share and no more bytes than they may.
func TestOnlyThoseOverTheirShareLoseHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes, limits := make(map[string]store.LogSize), make(map[string]int64)
		for i := range rapid.IntRange(0, 8).Draw(t, "projects") {
			p := fmt.Sprint("p", i)
			sizes[p] = store.LogSize{Changes: rapid.Int64Range(1, 1000).Draw(t, "changes"), Bytes: rapid.Int64Range(1, 1000).Draw(t, "bytes")}
			limits[p] = rapid.Int64Range(10, 1500).Draw(t, "limit")
		}
		if rapid.Bool().Draw(t, "of none") {
			sizes[""] = store.LogSize{Changes: rapid.Int64Range(1, 1000).Draw(t, "changes"), Bytes: 1 << 40}
		}
		most := rapid.Int64Range(10, 3000).Draw(t, "most")
		keep := overShare(sizes, most, func(p string) int64 { return limits[p] })
		total := int64(0)
		for p, size := range sizes {
			kept, over := keep[p]
			within := size.Changes*int64(len(sizes)) <= most && (p == "" || size.Bytes <= limits[p])
			switch {
			case over && within:
				t.Fatalf("%q has %+v of %d among %d and loses some: %+v", p, size, most, len(sizes), kept)
			case over && size.Within(kept):
				t.Fatalf("%q is over its share with %+v and may keep %+v", p, size, kept)
			case !over && p != "" && size.Bytes > limits[p]:
				t.Fatalf("%q keeps %d bytes of %d", p, size.Bytes, limits[p])
			case over:
				total += min(size.Changes, kept.Changes)
			default:
				total += size.Changes
			}
		}
		if total > most {
			t.Fatalf("%d changes of %d are kept", total, most)
		}
	})
}

// One project with very many changes once pushed the history of all others out of the
// feed.
func TestABusyProjectDoesNotPushOutTheHistoryOfOthers(t *testing.T) {
	t.Parallel()
	st := memory.New(clock.Real{})
	write := func(project string) {
		t.Helper()
		w := store.Write{
			Kind: mariposa.KindInstance, ID: "i-" + project, Project: project, Spec: &mariposa.InstanceSpec{Project: project},
			Event: mariposa.Event{Kind: "instance.made", Project: project},
		}
		if err := st.Commit(t.Context(), store.Unit{Writes: []store.Write{w}})[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	kept := func(project string) int {
		t.Helper()
		changes, err := st.History(t.Context(), store.HistoryQuery{Project: project})
		if err != nil {
			t.Fatal(err)
		}
		return len(changes)
	}
	for range 100 {
		write("quiet")
	}
	for range 2000 {
		write("busy")
	}
	pic, err := picture.Open(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	c := &plane{cfg: Config{KeepRows: 1000, KeepWhole: 50}, store: st, pic: pic}
	if err := c.trimOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if quiet, busy := kept("quiet"), kept("busy"); quiet != 100 || busy < 500 || busy > 900 {
		t.Errorf("%d changes of the quiet project are left and %d of the busy one", quiet, busy)
	}
	c.cfg.KeepRows, c.cfg.KeepWhole = 10, 500
	if err := c.trimOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := kept("busy"); n != 500 {
		t.Errorf("of the newest 500 changes, %d are left", n)
	}
}

// Large changes of one project do not exceed its bytes, however few they are. The newest
// ones stay, and so do those of others.
func TestTheBytesOfAProjectCountMoreThanItsChanges(t *testing.T) {
	t.Parallel()
	st := memory.New(clock.Real{})
	var least int64 = mariposa.MinStoredPerProject // of which events may have 1 MiB
	write := func(project string, n, size int) {
		for i := range n {
			noise := storetest.RandomWord(size)
			res := st.Commit(t.Context(), store.Unit{Writes: []store.Write{{
				Kind: mariposa.KindProject, ID: project, Project: project, Spec: &mariposa.ProjectSpec{Name: project, Organization: "default"},
				Status: &mariposa.ProjectStatus{Status: mariposa.StatusBlocked, Reason: &mariposa.Reason{Detail: noise, Count: i}},
				Event:  mariposa.Event{Kind: "project.blocked", Project: project},
			}}})[0]
			if res.Err != nil {
				t.Fatal(res.Err)
			}
		}
	}
	if res := st.Commit(t.Context(), store.Unit{Writes: []store.Write{{Kind: mariposa.KindSettings, ID: mariposa.SettingsID, Spec: &mariposa.SettingsSpec{StoredPerProject: &least}}}})[0]; res.Err != nil {
		t.Fatal(res.Err)
	}
	write("quiet", 20, 10)
	write("loud", 4000, 2000)
	pic, err := picture.Open(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	c := &plane{store: st, pic: pic}
	if err := c.trimOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	sizes, err := st.LogSizes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := sizes["loud"].Changes; n < 1000 || n > 1500 {
		t.Errorf("the loud project keeps %d changes, %d bytes", n, sizes["loud"].Bytes)
	}
	if n := sizes["quiet"].Changes; n != 20 {
		t.Errorf("the quiet project keeps %d changes", n)
	}
}

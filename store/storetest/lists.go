package storetest

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"mariposa"
	"mariposa/store"
)

var listTests = map[string]func(*testing.T, Harness){
	"List pages down by id, by project too": func(t *testing.T, h Harness) {
		for _, k := range []mariposa.Kind{mariposa.KindTask, mariposa.KindVersion, mariposa.KindMetadata, mariposa.KindPart, mariposa.KindAnswer, mariposa.KindInstance} {
			listPages(t, h.Store, k)
		}
		if list, err := h.Store.List(t.Context(), store.Query{Kind: mariposa.KindProject}); err != nil || len(list) != 0 {
			t.Fatalf("list of nothing: %s, %v", render(list), err)
		}
	},

	"Sizes adds up what a project's versions and values take": func(t *testing.T, h Harness) {
		sizes := func(project string) map[mariposa.Kind]int64 {
			t.Helper()
			got, err := h.Store.Sizes(t.Context(), project)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		part := func(id, project string, bytes int) store.Write {
			return store.Write{Kind: mariposa.KindPart, ID: id, Project: project, Spec: &mariposa.PartSpec{Sealed: make([]byte, bytes)}}
		}
		if got := sizes("p"); len(got) > 0 {
			t.Fatalf("nothing takes %v", got)
		}
		commit(t, h.Store, unit(
			part("a", "p", 3000), part("b", "p", 300_000), part("c", "q", 30), store.Write{Kind: mariposa.KindTask, ID: "t", Project: "p", Spec: &mariposa.TaskSpec{}},
			store.Write{Kind: mariposa.KindVersion, ID: "v", Project: "p", Spec: &mariposa.VersionSpec{Manifest: make([]byte, 6000)}, Status: &mariposa.VersionStatus{}}))
		const wrapped = len(`{"sealed":""}`)
		want := map[mariposa.Kind]int64{mariposa.KindPart: int64(4000 + 400_000 + 2*wrapped)}
		got := sizes("p")
		if want[mariposa.KindVersion] = got[mariposa.KindVersion]; !maps.Equal(got, want) || got[mariposa.KindVersion] < 8000 || got[mariposa.KindVersion] > 8400 {
			t.Errorf("p takes %v, want %v", got, want)
		}
		commit(t, h.Store, unit(store.Write{Kind: mariposa.KindPart, ID: "b", Delete: true}))
		if got := sizes("p")[mariposa.KindPart]; got != int64(4000+wrapped) {
			t.Errorf("without b, its parts take %d", got)
		}
		if got := sizes("q"); len(got) != 1 || got[mariposa.KindPart] != int64(40+wrapped) {
			t.Errorf("q takes %v", got)
		}
	},

	"The feed tells that values changed, and holds none of them": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(
			store.Write{Kind: mariposa.KindPart, ID: "a", Project: "p", Spec: &mariposa.PartSpec{Sealed: []byte("sealed")}},
			store.Write{Kind: mariposa.KindMetadata, ID: "b", Project: "p", Spec: &mariposa.MetadataSpec{Number: 7, Sealed: []byte("sealed")}}))
		commit(t, h.Store, unit(store.Write{Kind: mariposa.KindPart, ID: "a", Delete: true}))
		if h.Reopen != nil { // from disk, not from memory
			h.Store = h.Reopen()
		}
		changes, err := h.Store.Changes(t.Context(), 0, 0)
		if err != nil || len(changes) != 3 {
			t.Fatalf("%s, %v", render(changes), err)
		}
		for _, c := range changes {
			if c.Record.Spec != nil || c.Record.ID == "" || c.Record.Project != "p" || c.Spec == c.Deleted {
				t.Errorf("the feed tells %s", render(c))
			}
		}
		if r, err := h.Store.Get(t.Context(), mariposa.KindMetadata, "b"); err != nil || r.Spec.(*mariposa.MetadataSpec).Number != 7 {
			t.Errorf("it is %s, %v", render(r), err)
		}
	},

	"List finds tasks by how they ended": func(t *testing.T, h Harness) {
		task := func(id, project string, state mariposa.TaskState, archive bool) store.Write {
			return store.Write{
				Kind: mariposa.KindTask, ID: id, Project: project, Spec: &mariposa.TaskSpec{Reason: mariposa.TextReason(id)},
				Status: &mariposa.TaskStatus{State: state}, Archive: archive,
			}
		}
		list := func(q store.Query) []string {
			q.Kind, q.State = mariposa.KindTask, mariposa.TaskFailed
			return listed(t, h.Store, q)
		}
		commit(t, h.Store, unit(
			task("a", "p", mariposa.TaskFailed, true), task("b", "q", mariposa.TaskFailed, true), task("c", "p", mariposa.TaskCompleted, true),
			task("d", "p", mariposa.TaskActive, false), task("e", "p", mariposa.TaskFailed, false)))
		same(t, "failed", list(store.Query{}), []string{"b", "a"}) // a task that is not archived may still change its state
		same(t, "failed, of a project", list(store.Query{Project: "p"}), []string{"a"})
		same(t, "failed, of some", list(store.Query{Projects: []string{"q", "p", "r"}, Limit: 1}), []string{"b"})
		commit(t, h.Store, unit(store.Write{Kind: mariposa.KindTask, ID: "d", Status: &mariposa.TaskStatus{State: mariposa.TaskFailed}, Archive: true}))
		same(t, "one more has failed", list(store.Query{Project: "p"}), []string{"d", "a"})
		commit(t, h.Store, unit(task("a", "p", mariposa.TaskTerminated, true), store.Write{Kind: mariposa.KindTask, ID: "b", Delete: true}))
		same(t, "one has not after all, one is gone", list(store.Query{}), []string{"d"})
		if found, err := h.Store.List(t.Context(), store.Query{Kind: mariposa.KindVersion, State: mariposa.TaskFailed}); err != nil || len(found) > 0 {
			t.Fatalf("versions that failed: %s, %v", render(found), err)
		}
	},

	"List finds the newest of any number of projects": func(t *testing.T, h Harness) {
		names, tasks := longPast(t, h.Store)
		chance := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same queries each time
		for range 120 {
			q := store.Query{Kind: mariposa.KindTask, Limit: []int{0, 1, 7, 50, 201}[chance.IntN(5)]}
			if n := []int{0, 1, 2, 9, 99, 120, len(names)}[chance.IntN(7)]; n > 0 {
				chance.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				q.Projects = append(slices.Clone(names[:n]), names[0], "nobody's", "")
			}
			if chance.IntN(3) == 0 {
				q.State = []mariposa.TaskState{mariposa.TaskFailed, mariposa.TaskCompleted, mariposa.TaskActive}[chance.IntN(3)]
			}
			if chance.IntN(2) == 0 {
				q.Before = tasks[chance.IntN(len(tasks))].ID
			}
			var want []string
			for i := range tasks {
				if (q.Limit == 0 || len(want) < q.Limit) && (q.Before == "" || tasks[i].ID < q.Before) && q.Matches(&tasks[i]) {
					want = append(want, tasks[i].ID)
				}
			}
			if got := listed(t, h.Store, q); !slices.Equal(got, want) {
				t.Fatalf("%d projects, state %q, before %q, limit %d:\n got %v\nwant %v", len(q.Projects), q.State, q.Before, q.Limit, got, want)
			}
		}
		same(t, "of no project", listed(t, h.Store, store.Query{Kind: mariposa.KindTask, Projects: []string{}}), []string(nil))
		both := store.Query{Kind: mariposa.KindTask, Project: names[0], Projects: names[1:]}
		same(t, "of one project that is not among them", listed(t, h.Store, both), []string(nil))
	},
}

// longPast writes tasks of 150 projects, most of them ended, and returns them, newest
// first. One project in five has all its tasks in the oldest tenth; one has a hundred
// times as many as the others.
func longPast(t *testing.T, s store.Store) (projects []string, tasks []store.Record) {
	const n = 3600
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same history each time
	for i := range 150 {
		projects = append(projects, numbered("p", i))
	}
	var writes []store.Write
	for i := range n {
		p := chance.IntN(len(projects))
		if i > n/10 && p%5 == 0 {
			p = 1
		}
		st := &mariposa.TaskStatus{State: []mariposa.TaskState{mariposa.TaskCompleted, mariposa.TaskCompleted, mariposa.TaskFailed}[chance.IntN(3)]}
		archive := chance.IntN(10) > 0
		if !archive {
			st.State = mariposa.TaskActive
		}
		w := store.Write{Kind: mariposa.KindTask, ID: numbered("t", i), Project: projects[p], Spec: &mariposa.TaskSpec{Project: projects[p]}, Status: st, Archive: archive}
		tasks = append(tasks, store.Record{Kind: w.Kind, ID: w.ID, Project: w.Project, Archived: archive, Halves: store.Halves{Spec: w.Spec, Status: st}})
		if writes = append(writes, w); len(writes) == 400 {
			commit(t, s, unit(writes...))
			writes = nil
		}
	}
	slices.Reverse(tasks)
	return projects, tasks
}

// listed returns the ids of a list.
func listed(t *testing.T, s store.Store, q store.Query) []string {
	t.Helper()
	records, err := s.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i := range records {
		if r := &records[i]; r.Kind != q.Kind || !q.Matches(r) {
			t.Fatalf("%+v lists %s", q, render(*r))
		}
		ids = append(ids, records[i].ID)
	}
	return ids
}

func listPages(t *testing.T, s store.Store, k mariposa.Kind) {
	for i := range 20 {
		project := []string{"even", "odd"}[i%2]
		commit(t, s, unit(store.Write{Kind: k, ID: numbered("x", i), Project: project, Spec: mariposa.NewSpec(k)}))
	}
	list := func(q store.Query) []string {
		q.Kind = k
		return listed(t, s, q)
	}
	same(t, "top", list(store.Query{Limit: 2}), []string{"x-0019", "x-0018"})
	same(t, "next", list(store.Query{Limit: 2, Before: "x-0018"}), []string{"x-0017", "x-0016"})
	same(t, "before what is not there", list(store.Query{Limit: 1, Before: "x-0017z"}), []string{"x-0017"})
	same(t, "below the lowest", list(store.Query{Before: "x-0000"}), []string(nil))
	same(t, "of a project", list(store.Query{Project: "even", Limit: 2, Before: "x-0017"}), []string{"x-0016", "x-0014"})
	same(t, "of no project", list(store.Query{Project: "none"}), []string(nil))
	same(t, "without limit", len(list(store.Query{})), 20)
	same(t, "of a project without limit", len(list(store.Query{Project: "odd"})), 10)
	same(t, "of two projects", list(store.Query{Projects: []string{"odd", "even"}, Limit: 3, Before: "x-0018"}), []string{"x-0017", "x-0016", "x-0015"})
}

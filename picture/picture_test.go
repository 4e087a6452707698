package picture_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/leaktest"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func newStore(t *testing.T) *memory.Store {
	t.Helper()
	st := memory.New(clock.Real{})
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func open(t *testing.T, st store.Store) *picture.Picture {
	t.Helper()
	p, err := picture.Open(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tester is implemented by *testing.T and *rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
	Errorf(format string, args ...any)
}

func commit(t tester, st store.Store, ws ...store.Write) int64 {
	t.Helper()
	res := st.Commit(context.Background(), store.Unit{Writes: ws})[0]
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	return res.Last
}

func advance(t *testing.T, p *picture.Picture) {
	t.Helper()
	for {
		n, err := p.Advance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
	}
}

func project(id, name string) store.Write {
	return store.Write{Kind: mariposa.KindProject, ID: id, Project: id, Spec: &mariposa.ProjectSpec{Name: name, Organization: "default"}}
}

func instance(id, project, node string) store.Write {
	return store.Write{Kind: mariposa.KindInstance, ID: id, Project: project, Spec: &mariposa.InstanceSpec{Project: project, Node: node}}
}

func runs(id string) store.Write {
	return store.Write{Kind: mariposa.KindInstance, ID: id, Status: &mariposa.InstanceStatus{State: mariposa.StateRunning}}
}

func task(id, project string) store.Write {
	return store.Write{Kind: mariposa.KindTask, ID: id, Project: project, Spec: &mariposa.TaskSpec{Project: project}}
}

func remove(kind mariposa.Kind, id string) store.Write {
	return store.Write{Kind: kind, ID: id, Delete: true}
}

func ids[S, T any](rs []*store.Of[S, T]) []string {
	out := []string{}
	for _, r := range rs {
		out = append(out, r.ID)
	}
	return out
}

func want[S, T any](t tester, what string, got []*store.Of[S, T], wanted ...string) {
	t.Helper()
	if !slices.Equal(ids(got), append([]string{}, wanted...)) {
		t.Errorf("%s: %v, want %v", what, ids(got), wanted)
	}
}

func TestTheFeedGoesOnWhereTheSnapshotEnds(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	commit(t, st, project("p", "shop"), instance("i1", "p", "n1"))
	p := open(t, st)
	var notified []int64
	p.Subscribe(func(cs []store.Change) {
		for _, c := range cs {
			notified = append(notified, c.Revision)
		}
	})
	if p.Revision() != 2 || p.Instances.Get("i1") == nil {
		t.Fatalf("at %d without the instance", p.Revision())
	}
	commit(t, st, instance("i2", "p", "n1"))
	commit(t, st, runs("i1"))
	advance(t, p)
	if !slices.Equal(notified, []int64{3, 4}) || p.Revision() != 4 {
		t.Errorf("heard of %v at %d", notified, p.Revision())
	}
	want(t, "instances", p.InstancesOf("p"), "i1", "i2")
	if p.Instances.Len() != 2 || p.CountOn("n1") != 2 {
		t.Error("the counts do not say so")
	}
}

func TestAHalfThatIsWrittenLeavesTheOtherAsItWas(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	p := open(t, st)
	commit(t, st, instance("i1", "p", "n1"), runs("i1"))
	advance(t, p)
	next := &mariposa.InstanceSpec{Project: "p", Node: "n1", Goal: mariposa.GoalGone}
	commit(t, st, store.Write{Kind: mariposa.KindInstance, ID: "i1", Spec: next})
	advance(t, p)
	r := p.Instances.Get("i1")
	if r.Spec().Goal != mariposa.GoalGone || r.Status().State != mariposa.StateRunning {
		t.Errorf("got %+v", r)
	}
	if r.SpecRevision != 3 || r.StatusRevision != 2 || r.Revision != 3 {
		t.Errorf("revisions %d, %d, %d", r.SpecRevision, r.StatusRevision, r.Revision)
	}
}

func TestWhatIsArchivedOrDeletedLeavesThePicture(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	commit(t, st, project("p", "shop"), task("t1", "p"), task("t2", "p"), instance("i1", "p", "n1"))
	p := open(t, st)
	want(t, "tasks", p.TasksOf("p"), "t1", "t2")
	commit(t, st,
		store.Write{Kind: mariposa.KindTask, ID: "t1", Status: &mariposa.TaskStatus{State: mariposa.TaskCompleted}, Archive: true},
		remove(mariposa.KindInstance, "i1"))
	advance(t, p)
	want(t, "tasks", p.TasksOf("p"), "t2")
	want(t, "instances of the project", p.InstancesOf("p"))
	want(t, "instances on the node", p.InstancesOn("n1"))
	if p.Tasks.Get("t1") != nil || p.CountOn("n1") != 0 {
		t.Error("what ended is still shown")
	}
	if again := open(t, st); again.Tasks.Get("t1") != nil {
		t.Error("a new picture shows what is archived")
	}
}

func TestVersionsAreNotInThePicture(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	p := open(t, st)
	notified := 0
	p.Subscribe(func(cs []store.Change) { notified += len(cs) })
	commit(t, st, store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", 1), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: 1}})
	advance(t, p)
	if v := p.Get(mariposa.KindVersion, mariposa.VersionID("p", 1)); v != nil || notified != 1 || p.Revision() != 1 {
		t.Errorf("it has %v, heard %d times, at %d", v, notified, p.Revision())
	}
}

func TestANameFollowsItsProject(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	p := open(t, st)
	named := func(name, id string) {
		t.Helper()
		advance(t, p)
		got := ""
		if r := p.ProjectNamed("default", name); r != nil {
			got = r.ID
		}
		if got != id {
			t.Errorf("%s is %q, want %q", name, got, id)
		}
	}
	commit(t, st, project("p1", "shop"))
	named("shop", "p1")
	commit(t, st, project("p1", "store"))
	named("shop", "")
	named("store", "p1")
	commit(t, st, project("p2", "shop"))
	named("shop", "p2")
	commit(t, st, store.Write{Kind: mariposa.KindProject, ID: "p2", Spec: &mariposa.ProjectSpec{Name: "shop", Organization: "default", Deleting: true}})
	named("shop", "")
	commit(t, st, project("p3", "shop"))
	named("shop", "p3")
	commit(t, st, store.Write{Kind: mariposa.KindProject, ID: "p2", Status: &mariposa.ProjectStatus{Status: mariposa.StatusConverging}})
	named("shop", "p3") // the removed one does not take the name with it
	commit(t, st, remove(mariposa.KindProject, "p2"))
	named("shop", "p3")
	if p.ProjectNamed("other", "shop") != nil {
		t.Error("another organization has the name too")
	}
}

func TestAProjectIsReadWhole(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	commit(t, st, project("p", "shop"), task("t1", "p"), instance("i2", "p", "n1"), instance("i1", "p", "n2"), instance("i3", "q", "n1"))
	got := open(t, st).Project("p")
	if got.Revision != 5 || got.Record == nil {
		t.Errorf("got %+v", got)
	}
	want(t, "tasks", got.Tasks, "t1")
	want(t, "instances", got.Instances, "i1", "i2")
	if none := open(t, st).Project("nobody"); none.Record != nil || len(none.Tasks)+len(none.Instances) > 0 {
		t.Errorf("of nobody: %+v", none)
	}
}

func TestAProjectWhoseLastServiceIsGoneReadsAsIfItNeverHadAny(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	started := store.Write{Kind: mariposa.KindProject, ID: "p", Status: &mariposa.ProjectStatus{Status: mariposa.StatusConverged}}
	commit(t, st, project("p", "shop"), started, service("p", "web", 1))
	p := open(t, st)
	status := func(p *picture.Picture) *mariposa.ProjectStatus {
		return p.Projects.Get("p").Status()
	}
	if len(status(p).Services) != 1 {
		t.Fatalf("the project starts with %v", status(p).Services)
	}
	commit(t, st, remove(mariposa.KindService, mariposa.ServiceID("p", "web")))
	advance(t, p)
	if got, want := status(p), status(open(t, st)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, and a new picture %+v", got, want)
	}
}

func TestAwaitReturnsWhenEverybodyWasTold(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	p := open(t, st)
	var mu sync.Mutex
	notified := int64(0)
	p.Subscribe(func(cs []store.Change) {
		mu.Lock()
		defer mu.Unlock()
		notified = cs[len(cs)-1].Revision
	})
	rev := commit(t, st, project("p", "shop"))
	if err := p.Await(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	moved := p.Moved(0)
	select {
	case <-moved:
		t.Fatal("it has not moved yet")
	default:
	}
	done := make(chan error, 1)
	go func() { done <- p.Await(t.Context(), rev) }()
	advance(t, p)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if notified < rev {
		t.Error("who waited was first to know")
	}
	<-moved
	<-p.Moved(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Await(ctx, rev+1); !errors.Is(err, context.Canceled) {
		t.Errorf("an await that was called off: %v", err)
	}
}

// forgetful is a store whose feed leaves out changes.
type forgetful struct {
	store.Store
	mu   sync.Mutex
	hide map[int64]bool
	fail error
}

func (f *forgetful) Changes(ctx context.Context, after int64, limit int) ([]store.Change, error) {
	cs, err := f.Store.Changes(ctx, after, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	cs = slices.DeleteFunc(cs, func(c store.Change) bool { return f.hide[c.Revision] })
	if limit > 0 && len(cs) > limit {
		cs = cs[:limit]
	}
	return cs, err
}

func (f *forgetful) Snapshot(ctx context.Context, visit func(store.Record) error) (int64, error) {
	f.mu.Lock()
	err := f.fail
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.Store.Snapshot(ctx, visit)
}

func TestARereadMendsWhatTheFeedHasLost(t *testing.T) {
	t.Parallel()
	st := &forgetful{Store: newStore(t), hide: map[int64]bool{}}
	commit(t, st, project("p", "shop"), instance("i1", "p", "n1"), instance("i2", "p", "n1"), task("t1", "p"))
	p := open(t, st)
	var notified []store.Change
	p.Subscribe(func(cs []store.Change) { notified = append(notified, cs...) })
	lose := func(w store.Write) { st.hide[commit(t, st, w)] = true }
	lose(instance("i3", "p", "n2"))           // never in the feed
	lose(runs("i1"))                          // only the status changes
	lose(remove(mariposa.KindInstance, "i2")) // removed
	commit(t, st, project("q", "other"))      // the feed works in between
	lose(store.Write{Kind: mariposa.KindTask, ID: "t1", Status: &mariposa.TaskStatus{State: mariposa.TaskCompleted}, Archive: true})
	advance(t, p)
	want(t, "before", p.InstancesOf("p"), "i1", "i2")
	notified = nil
	if n, err := p.Reread(t.Context()); err != nil || n != 4 {
		t.Fatalf("mended %d, %v; 4 were lost", n, err)
	}
	want(t, "after", p.InstancesOf("p"), "i1", "i3")
	want(t, "on n2", p.InstancesOn("n2"), "i3")
	want(t, "tasks", p.TasksOf("p"))
	if mariposa.StateOf(p.Instances.Get("i1").Spec(), p.Instances.Get("i1").Status()) != mariposa.StateRunning {
		t.Error("the lost half is still lost")
	}
	got := map[string]bool{}
	for _, c := range notified {
		got[c.Record.ID] = c.Deleted
	}
	if len(notified) != 4 || got["i3"] || got["i1"] || !got["i2"] || !got["t1"] {
		t.Errorf("listeners heard %v", got)
	}
	if p.Revision() != 9 {
		t.Errorf("at %d, want 9: the newest change was lost and is known now", p.Revision())
	}
	if n, err := p.Reread(t.Context()); err != nil || n != 0 {
		t.Errorf("the second time it mended %d, %v", n, err)
	}
}

func TestARereadOfASoundPictureTellsNobodyAnything(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	commit(t, st, project("p", "shop"))
	p := open(t, st)
	commit(t, st, instance("i1", "p", "n1"), runs("i1"))
	notified := 0
	p.Subscribe(func(cs []store.Change) { notified += len(cs) })
	if n, err := p.Reread(t.Context()); err != nil || n != 0 || notified != 2 {
		t.Errorf("mended %d, %v, heard %d; it had only to catch up", n, err, notified)
	}
}

func TestAPictureThatFellBehindATrimmedFeedReadsEverythingAnew(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	commit(t, st, project("p", "shop"), instance("i1", "p", "n1"), instance("i2", "p", "n1"))
	p := open(t, st)
	var notified []store.Change
	p.Subscribe(func(cs []store.Change) { notified = append(notified, cs...) })
	commit(t, st, remove(mariposa.KindInstance, "i1"))
	commit(t, st, instance("i3", "p", "n1"))
	commit(t, st, runs("i2"))
	if _, err := st.Trim(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Advance(t.Context()); !errors.Is(err, store.ErrTooOld) {
		t.Fatalf("got %v", err)
	}
	if n, err := p.Reread(t.Context()); err != nil || n != 3 {
		t.Fatalf("mended %d, %v", n, err)
	}
	want(t, "instances", p.InstancesOf("p"), "i2", "i3")
	if i := slices.IndexFunc(notified, func(c store.Change) bool { return c.Deleted && c.Record.ID == "i1" }); i < 0 {
		t.Errorf("nobody was told of the deletion: %+v", notified)
	}
	commit(t, st, runs("i3"))
	advance(t, p)
	if p.Revision() != 7 {
		t.Errorf("at %d after going on", p.Revision())
	}
}

func TestFollowKeepsUpMendsAndEndsWithItsContext(t *testing.T) {
	t.Parallel()
	st := &forgetful{Store: newStore(t), hide: map[int64]bool{2: true}}
	p := open(t, st)
	ctx, cancel := context.WithCancel(t.Context())
	found := make(chan int, 100)
	ended := make(chan error, 1)
	go func() { ended <- p.Follow(ctx, time.Millisecond, func(n int) { found <- n }) }()
	commit(t, st, project("p", "shop"))
	rev := commit(t, st, instance("i1", "p", "n1"))
	wait, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := p.Await(wait, rev); err != nil {
		t.Fatal(err)
	}
	for mended := 0; mended == 0; {
		select {
		case mended = <-found:
		case <-wait.Done():
			t.Fatal("the reread never told what it found")
		}
	}
	want(t, "instances", p.InstancesOf("p"), "i1")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestFollowRecoversFromATrimmedFeed(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	p := open(t, st)
	commit(t, st, project("p", "shop"))
	rev := commit(t, st, instance("i1", "p", "n1"))
	if _, err := st.Trim(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- p.Follow(ctx, time.Hour, func(int) {}) }()
	if err := p.Await(ctx, rev); err != nil {
		t.Fatal(err)
	}
	want(t, "instances", p.InstancesOf("p"), "i1")
	cancel()
	<-ended
}

func TestARereadThatFailsSaysSo(t *testing.T) {
	t.Parallel()
	st := &forgetful{Store: newStore(t), fail: store.ErrUnavailable}
	if _, err := picture.Open(t.Context(), st); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("open: %v", err)
	}
	st.fail = nil
	p := open(t, st)
	st.fail = store.ErrUnavailable
	if _, err := p.Reread(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("reread: %v", err)
	}
}

func TestReadersAndTheFeedGetAlong(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	p := open(t, st)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { _ = p.Follow(ctx, 2*time.Millisecond, func(int) {}) })
	for range 4 {
		all.Go(func() {
			for at := int64(0); ctx.Err() == nil; at = p.Revision() {
				if w := p.Project("p"); w.Record == nil && len(w.Instances) > 0 {
					t.Error("instances without their project")
				}
				p.InstancesOn("n1")
				p.TasksOf("p")
				p.ProjectNamed("default", "shop")
				p.Instances.All()
				p.CountOn("n1")
				select {
				case <-p.Moved(at):
				case <-ctx.Done():
				}
			}
		})
	}
	var rev int64
	for i := range 300 {
		id := fmt.Sprint("i", i%20)
		rev = commit(t, st, project("p", "shop"), instance(id, "p", "n1"), runs(id), task(id, "p"))
		if i%3 == 0 {
			rev = commit(t, st, remove(mariposa.KindInstance, id), remove(mariposa.KindTask, id))
		}
	}
	if err := p.Await(ctx, rev); err != nil {
		t.Error(err)
	}
	cancel()
	all.Wait()
}

const manifestBody = "services:\n  web:\n    compute_type: dummy\n"

func TestAVersionIsReadOnceAndSharedByAll(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	cache := picture.NewVersionCache(st, seal.NewVault(seal.NewRing(), st))
	if _, err := cache.Version(t.Context(), "p", 1); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
	version := func(n int, body string) store.Write {
		return store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", n), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: n, Manifest: []byte(body)}}
	}
	commit(t, st, version(1, manifestBody), version(2, "services: ["), version(3, manifestBody+"    tags: [at={{ .project.name }}]\n"))
	a, err := cache.Version(t.Context(), "p", 1)
	if err != nil || a.Manifest.ByName["web"] == nil {
		t.Fatalf("%+v, %v", a, err)
	}
	if b, err := cache.Version(t.Context(), "p", 1); err != nil || a != b {
		t.Errorf("read again: %v", err)
	}
	_, first := cache.Version(t.Context(), "p", 2)
	_, second := cache.Version(t.Context(), "p", 2)
	if !errors.Is(first, picture.ErrUnreadable) || !errors.Is(second, first) {
		t.Errorf("of an unreadable one: %v, then %v", first, second)
	}
	old, err := cache.Version(t.Context(), "p", 3)
	if err != nil || old.Manifest.ByName["web"] == nil {
		t.Errorf("of one that an earlier release took: %v", err)
	}
}

package codec

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/store"
)

func sample() ([]store.Change, []*Object) {
	at := time.Unix(5, 6).UTC()
	coded := (&mariposa.Reason{Code: mariposa.ReasonBackingOff, Count: 3, Until: at}).Because(mariposa.TextReason("exited with 1"))
	spec, status := &mariposa.NodeSpec{Name: "n", Traits: map[string]string{"a": "b"}}, &mariposa.NodeStatus{Reason: mariposa.TextReason("ré\x00son")}
	changes := []store.Change{
		{Revision: 7, Time: at, Spec: true, Record: store.Record{Kind: mariposa.KindNode, ID: "a", Revision: 7, SpecRevision: 7, Halves: store.Halves{Spec: spec}}},
		{
			Revision: 8, Time: at, Status: true, Record: store.Record{
				Kind: mariposa.KindNode, ID: "a", Project: "p", Archived: true,
				Revision: 8, SpecRevision: 7, StatusRevision: 8, Halves: store.Halves{Spec: spec, Status: status},
			},
			Event: mariposa.Event{Kind: "1", Project: "2", Service: "3", Instance: "4", Node: "5", Task: "6", Actor: "7", Reason: mariposa.TextReason("8")},
		},
		{
			Revision: 9, Time: at, Deleted: true, Record: store.Record{Kind: mariposa.KindNode, ID: "a", Revision: 8, SpecRevision: 7, StatusRevision: 8, Halves: store.Halves{Spec: spec, Status: status}},
			Event: mariposa.Event{Kind: "1", Reason: coded},
		},
		{
			Revision: 10, Time: at, Deleted: true, Record: store.Record{Kind: mariposa.KindNode, ID: "b", Revision: 9, SpecRevision: 9, Halves: store.Halves{Spec: spec}},
			Event: mariposa.Event{Kind: "1", Reason: coded},
		},
	}
	var objects []*Object
	for _, c := range changes {
		objects = append(objects, &Object{Record: c.Record})
	}
	return changes, objects
}

func TestAChunkSurvivesTheWayThere(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want, objects := sample()
	chunk, err := c.Chunk(want, objects)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := c.Entries(7, want[0].Time, chunk.Body)
	if err != nil || len(entries) != len(want) {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i := range entries {
		if got, err := entries[i].Change(); err != nil || !reflect.DeepEqual(got, want[i]) {
			t.Errorf("got %+v, want %+v, %v", got, want[i], err)
		}
	}
}

// Removing projects from a chunk keeps the other changes and their revisions, however
// often it is done.
func TestAThinnedChunkKeepsTheOtherProjects(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"", "p", "q", "r"})
		var left []store.Change
		var objects []*Object
		for i := range rapid.IntRange(1, 12).Draw(t, "changes") {
			change := store.Change{Revision: 100 + int64(i), Time: time.Unix(5, 6).UTC(), Spec: true, Record: store.Record{
				Kind: mariposa.KindNode, ID: "n", Project: name.Draw(t, "project"), Revision: 100 + int64(i), Halves: store.Halves{Spec: &mariposa.NodeSpec{Name: "n"}},
			}, Event: mariposa.Event{Project: name.Draw(t, "event's project"), Task: name.Draw(t, "task")}}
			left, objects = append(left, change), append(objects, &Object{Record: change.Record})
		}
		chunk, err := c.Chunk(left, objects)
		if err != nil {
			t.Fatal(err)
		}
		body := chunk.Body
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			project, tasks := name.Draw(t, "thinned"), tasksOf(left)
			left = slices.DeleteFunc(left, func(c store.Change) bool { return c.Owner() == project })
			rest, err := c.Thin(100, body, project)
			if err != nil {
				t.Fatal(err)
			}
			for task := range tasksOf(left) {
				delete(tasks, task)
			}
			slices.Sort(rest.Tasks)
			if gone := slices.Sorted(maps.Keys(tasks)); !slices.Equal(rest.Tasks, gone) {
				t.Fatalf("without %q the tasks %q are gone, not %q", project, gone, rest.Tasks)
			}
			if mentions := project != "" && slices.ContainsFunc(left, func(c store.Change) bool { return c.Event.Project == project }); rest.Mentions != mentions {
				t.Fatalf("without %q it is mentioned: %v, want %v", project, rest.Mentions, mentions)
			}
			if (rest.Body == nil) != (len(left) == 0) {
				t.Fatalf("%d bytes for %d changes", len(rest.Body), len(left))
			}
			if body = rest.Body; body == nil {
				return
			}
			entries, err := c.Entries(100, time.Unix(5, 6).UTC(), body)
			if err != nil || len(entries) != len(left) {
				t.Fatalf("%d of %d, %v", len(entries), len(left), err)
			}
			for i := range entries {
				if got, err := entries[i].Change(); err != nil || !reflect.DeepEqual(got, left[i]) {
					t.Fatalf("got %+v, want %+v, %v", got, left[i], err)
				}
			}
		}
	})
}

func tasksOf(changes []store.Change) map[string]bool {
	tasks := make(map[string]bool)
	for i := range changes {
		tasks[changes[i].Event.Task] = true
	}
	delete(tasks, "")
	return tasks
}

func FuzzEntries(f *testing.F) {
	c, err := New()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(c.Close)
	changes, objects := sample()
	if _, err := c.Chunk(changes, objects); err != nil {
		f.Fatal(err)
	}
	whole := append([]byte(nil), c.plain...)
	for n := range whole {
		f.Add(whole[:n])
	}
	thinned, err := c.Thin(7, c.encoder.EncodeAll(whole, nil), "p")
	if err != nil {
		f.Fatal(err)
	}
	if whole, err = c.decoder.DecodeAll(thinned.Body, nil); err != nil {
		f.Fatal(err)
	}
	for n := range whole {
		f.Add(whole[:n])
	}
	f.Fuzz(func(t *testing.T, plain []byte) {
		entries, err := c.Entries(1, time.Time{}, c.encoder.EncodeAll(plain, nil))
		if err != nil && !errors.Is(err, errDamaged) {
			t.Fatal(err)
		}
		for i := range entries {
			_, _ = entries[i].Change() // must not panic
		}
		if _, err := c.Entries(1, time.Time{}, plain); err != nil && !errors.Is(err, errDamaged) {
			t.Fatal(err)
		}
	})
}

// Instances that were created together share one copy of their reason, and so do the
// events of a chunk.
func TestEqualReasonsAreShared(t *testing.T) {
	read := func(count int) *mariposa.Reason {
		o := Object{Record: store.Record{Kind: mariposa.KindInstance, Halves: store.Halves{Spec: &mariposa.InstanceSpec{Reason: &mariposa.Reason{Code: mariposa.ReasonScale, Count: count}}}}}
		if err := o.Encode(); err != nil {
			t.Fatal(err)
		}
		o.Spec = nil
		if err := o.Decode(); err != nil {
			t.Fatal(err)
		}
		return o.Spec.(*mariposa.InstanceSpec).Reason
	}
	three := read(3)
	if read(3) != three || read(4) == three || three.Count != 3 {
		t.Error("equal reasons are not one, or different ones are")
	}
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	changes, objects := sample()
	chunk, err := c.Chunk(changes, objects)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := c.Entries(7, changes[0].Time, chunk.Body)
	if err != nil || entries[2].Head().Event.Reason == nil || entries[2].Head().Event.Reason != entries[3].Head().Event.Reason {
		t.Errorf("events that follow each other have copies: %v", err)
	}
}

// Chunks of releases that stored reasons as sentences are read as text, even if a
// sentence looks like JSON.
func TestReasonsOfOldChunksAreWords(t *testing.T) {
	r := reader{rest: append([]byte{11}, `{"code":"x"}`[:11]...)}
	if got := r.reason(false); got.Code != "" || got.Detail != `{"code":"x"` || r.bad {
		t.Errorf("read %+v", got)
	}
	if r = (reader{rest: append([]byte{11}, `{"code":"x"}`[:11]...)}); r.reason(true) != nil || !r.bad {
		t.Error("half a reason was read")
	}
}

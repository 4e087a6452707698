package codec

import (
	"errors"
	"reflect"
	"testing"
	"time"

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
	body, _, err := c.Chunk(want, objects)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := c.Entries(7, want[0].Time, body)
	if err != nil || len(entries) != len(want) {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i := range entries {
		if got, err := entries[i].Change(); err != nil || !reflect.DeepEqual(got, want[i]) {
			t.Errorf("got %+v, want %+v, %v", got, want[i], err)
		}
	}
}

func FuzzEntries(f *testing.F) {
	c, err := New()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(c.Close)
	changes, objects := sample()
	if _, _, err := c.Chunk(changes, objects); err != nil {
		f.Fatal(err)
	}
	whole := append([]byte(nil), c.plain...)
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

// Instances that were made together keep one copy of their reason, and so do the
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
	body, _, err := c.Chunk(changes, objects)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := c.Entries(7, changes[0].Time, body)
	if err != nil || entries[2].Head().Event.Reason == nil || entries[2].Head().Event.Reason != entries[3].Head().Event.Reason {
		t.Errorf("events that follow each other have copies: %v", err)
	}
}

// Chunks of releases before reasons were data hold a sentence, whatever it looks like.
func TestReasonsOfOldChunksAreWords(t *testing.T) {
	r := reader{rest: append([]byte{11}, `{"code":"x"}`[:11]...)}
	if got := r.reason(false); got.Code != "" || got.Detail != `{"code":"x"` || r.bad {
		t.Errorf("read %+v", got)
	}
	if r = (reader{rest: append([]byte{11}, `{"code":"x"}`[:11]...)}); r.reason(true) != nil || !r.bad {
		t.Error("half a reason was read")
	}
}

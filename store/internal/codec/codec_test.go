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
	spec, status := &mariposa.NodeSpec{Name: "n", Traits: map[string]string{"a": "b"}}, &mariposa.NodeStatus{Reason: "ré\x00son"}
	changes := []store.Change{
		{Revision: 7, Time: at, Spec: true, Record: store.Record{Kind: mariposa.KindNode, ID: "a", Revision: 7, SpecRevision: 7, Spec: spec}},
		{
			Revision: 8, Time: at, Status: true, Record: store.Record{
				Kind: mariposa.KindNode, ID: "a", Project: "p", Archived: true,
				Revision: 8, SpecRevision: 7, StatusRevision: 8, Spec: spec, Status: status,
			},
			Event: mariposa.Event{Kind: "1", Project: "2", Service: "3", Instance: "4", Node: "5", Task: "6", Actor: "7", Reason: "8"},
		},
		{Revision: 9, Time: at, Deleted: true, Record: store.Record{Kind: mariposa.KindNode, ID: "a", Revision: 8, SpecRevision: 7, StatusRevision: 8, Spec: spec, Status: status}},
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

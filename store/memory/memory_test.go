package memory

import (
	"context"
	"errors"
	"testing"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
)

func TestACommitIsInTheFeedWhenItReturns(t *testing.T) {
	s := New(clock.Real{}, WithIdentity(store.Identity{Cluster: "c", Incarnation: "i"}))
	r := s.Commit(context.Background(), store.Unit{Writes: []store.Write{
		{Kind: mariposa.KindNode, ID: "n", Spec: &mariposa.NodeSpec{Name: "n"}},
		{Kind: mariposa.KindNode, ID: "gone", Status: &mariposa.NodeStatus{}},
		{Kind: mariposa.KindNode, ID: "n", Status: &mariposa.NodeStatus{}},
	}})
	if len(r) != 1 || r[0].Err != nil || r[0].First != 1 || r[0].Last != 2 {
		t.Fatalf("result: %+v", r)
	}
	changes, err := s.Changes(t.Context(), 1, 10)
	if err != nil || len(changes) != 1 || !changes[0].Status || changes[0].Spec {
		t.Fatalf("changes: %+v, %v", changes, err)
	}
	if id, err := s.Identity(t.Context()); err != nil || id.Cluster != "c" {
		t.Fatalf("identity: %+v, %v", id, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(t.Context(), 0); !errors.Is(err, store.ErrClosed) {
		t.Fatalf("wait after close: %v", err)
	}
}

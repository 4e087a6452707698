package memory_test

import (
	"testing"

	"mariposa/leaktest"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/store/storetest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		clk := storetest.NewClock()
		s := memory.New(clk)
		t.Cleanup(func() { s.Close() })
		return storetest.Harness{Store: s, Advance: clk.Advance}
	})
}

func TestTheIdentityCanBeChosen(t *testing.T) {
	want := store.Identity{Cluster: "c", Incarnation: "i"}
	s := memory.New(storetest.NewClock(), memory.WithIdentity(want))
	defer s.Close()
	if got, err := s.Identity(t.Context()); err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
}

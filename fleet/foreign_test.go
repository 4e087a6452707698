package fleet_test

import (
	"encoding/json"
	"strings"
	"testing"

	"mariposa"
	"mariposa/wire"
)

type foreignAnswer struct {
	all   []mariposa.ForeignContainer
	total int
	err   error
}

// A node may be hostile: what it says of its foreign containers has bounds.
func TestTheForeignContainersOfANodeAreBounded(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	id := strings.Repeat("ab", 32)
	answer := func(said any) foreignAnswer {
		t.Helper()
		got := make(chan foreignAnswer, 1)
		go func() {
			all, total, err := p.fleet.ForeignContainers(p.ctx, "n1")
			got <- foreignAnswer{all, total, err}
		}()
		s := a.next()
		if s.open.Foreign == nil || s.open.Foreign.Container != "" {
			t.Errorf("asked %+v", s.open)
		}
		b, err := json.Marshal(said)
		must(t, err)
		_, _ = s.Write(b) // the reader may have had enough
		_ = s.Send(wire.Message{Last: true})
		return come(p, "the answer", got)
	}
	got := answer(wire.Foreign{Total: 1 << 40, Containers: []mariposa.ForeignContainer{
		{ID: "../../secrets", Name: "bad"},
		{
			ID: id, Name: "d\x1b[31mb" + strings.Repeat("x", 1000), Image: "db:1", State: "running", Running: true, Memory: -5, MilliCPU: 1 << 60,
			Ports: append([]int{0, -1, 70000, 443}, make([]int, 500)...), Addresses: make([]string, 100),
		},
	}})
	if got.err != nil || len(got.all) != 1 || got.total > 1<<20 {
		t.Fatalf("got %+v", got)
	}
	c := got.all[0]
	if c.ID != id || strings.Contains(c.Name, "\x1b") || len(c.Name) > 256 || c.Memory != 0 || c.MilliCPU > 1<<50 || len(c.Ports) != 1 || c.Ports[0] != 443 || len(c.Addresses) > 16 || !c.Created.IsZero() {
		t.Errorf("got %+v", c)
	}
	if got := answer(wire.Foreign{Containers: []mariposa.ForeignContainer{{ID: id, Name: strings.Repeat("x", 3<<20)}}}); got.err == nil {
		t.Error("an answer of 3 MiB was read")
	}
	many := wire.Foreign{}
	for range wire.MaxForeign + 10 {
		many.Containers = append(many.Containers, mariposa.ForeignContainer{ID: id})
	}
	if got := answer(many); len(got.all) != wire.MaxForeign {
		t.Errorf("%d containers were taken", len(got.all))
	}
}

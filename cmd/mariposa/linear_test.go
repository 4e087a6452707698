package main_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"mariposa/contract"
)

// asked is a change that a client asked for, and told what it was told.
type asked struct {
	do    string // set, incr, create or delete
	with  string // for set: the CAS that the key must have
	scale int    // for create
}

type told struct {
	status int // 0: nothing, so it was done or not
	answer contract.Changed
}

func (w told) isDone() bool { return w.status/100 == 2 }

// history collects what clients did to one object, at replicas in turn.
type history struct {
	c     *cluster
	began time.Time

	mu  sync.Mutex
	ops []porcupine.Operation
}

// do sends a request and records it. A request without a result may take effect at any
// later time.
func (h *history) do(client int, ask asked, method, path string, body any) told {
	from := time.Since(h.began)
	status, text := h.c.send(rand.IntN(len(h.c.replicas)), h.c.admin, method, path, body)
	out := told{status: status}
	if status/100 == 5 || status/100 == 2 && json.Unmarshal(text, &out.answer) != nil {
		out.status = 0
	}
	to := time.Since(h.began)
	if out.status == 0 {
		to = 24 * time.Hour
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: ask, Call: int64(from), Output: out, Return: int64(to)})
	return out
}

// model returns a model whose state is text: step returns the state after an operation
// that was done, and whether it could be done.
func model(initial string, step func(state string, in asked, out told) (next string, ok bool)) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Init:  func() []any { return []any{initial} },
		Equal: func(a, b any) bool { return a == b },
		Step: func(state, input, output any) []any {
			in, out := input.(asked), output.(told)
			next, ok := step(state.(string), in, out)
			switch {
			case out.status == 0 && ok:
				return []any{state, next}
			case out.status == 0, ok != out.isDone():
				if out.status == 0 {
					return []any{state}
				}
				return nil
			case ok:
				return []any{next}
			default:
				return []any{state}
			}
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %d", input, output.(told).status) },
	}
}

// What clients are told by two replicas, one of which is killed, agrees with an order in
// which everything was done one after the other.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.create("shop", "services: {d: {compute_type: dummy, scale: 0}}\n")
	c.must(c.CreateOrganization(t.Context(), contract.NewOrganization{Name: "small"}))
	const limit = 25
	if status, body := c.send(0, c.admin, "PUT", "/v1/organizations/small/quota", map[string]any{"instances": limit}); status != 200 {
		t.Fatalf("quota: %d %s", status, body)
	}
	for i := range c.replicas {
		c.ask(i)
		c.await("the replica knows what there is", func() bool {
			q, err := c.Quota(t.Context(), "small")
			_, there := c.Project(t.Context(), "shop")
			return err == nil && there == nil && q.Limits.Instances != nil
		})
	}
	began := time.Now()
	newHistory := func() *history { return &history{c: c, began: began} }
	values, counts, names, quota := newHistory(), newHistory(), newHistory(), newHistory()
	first := values.do(0, asked{do: "set", with: "0"}, "PUT", "/v1/projects/shop/metadata/k?cas=0", map[string]any{"value": "0"})
	if !first.isDone() {
		t.Fatalf("the first value: %+v", first)
	}
	var all sync.WaitGroup
	const clients, rounds = 6, 12
	for i := range clients {
		all.Go(func() {
			cas := first.answer.CAS
			for n := range rounds {
				if i == 0 && n == rounds/2 {
					end(c.replicas[0].cmd)
				}
				out := values.do(i, asked{do: "set", with: cas}, "PUT", "/v1/projects/shop/metadata/k?cas="+cas, map[string]any{"value": fmt.Sprintf("%d-%d", i, n)})
				if out.isDone() {
					cas = out.answer.CAS
				} else if key, err := c.MetadataKey(t.Context(), "shop", "k", false); err == nil {
					cas = key.CAS
				}
				counts.do(i, asked{do: "incr"}, "POST", "/v1/projects/shop/metadata/n/incr", nil)
				names.do(i, asked{do: "create"}, "POST", "/v1/projects?name=one", "services: {d: {compute_type: dummy, scale: 0}}\n")
				names.do(i, asked{do: "delete"}, "DELETE", "/v1/projects/one?force=true", nil)
				scale := 1 + rand.IntN(3)
				quota.do(i, asked{do: "create", scale: scale}, "POST", fmt.Sprintf("/v1/projects?organization=small&name=p-%d-%d", i, n),
					fmt.Sprintf("services: {d: {compute_type: dummy, scale: %d}}\n", scale))
			}
		})
	}
	all.Wait()
	for name, check := range map[string]struct {
		*history
		model porcupine.NondeterministicModel
	}{
		"values of a key": {values, model("0", func(cas string, in asked, out told) (string, bool) {
			if out.status == 0 {
				return "unknown", true
			}
			return out.answer.CAS, cas == in.with || cas == "unknown"
		})},
		"a counter": {counts, model("0", func(at string, _ asked, out told) (string, bool) {
			next := itoa(atoi(at) + 1)
			return next, out.status == 0 || out.answer.Value == next
		})},
		"a name": {names, model("free", func(at string, in asked, _ told) (string, bool) {
			if in.do == "create" {
				return "taken", at == "free"
			}
			return "free", at == "taken"
		})},
		"a quota": {quota, model("0", func(used string, in asked, _ told) (string, bool) {
			next := atoi(used) + in.scale
			return strconv.Itoa(next), next <= limit
		})},
	} {
		done := 0
		for _, op := range check.ops {
			if op.Output.(told).isDone() {
				done++
			}
		}
		t.Logf("%s: %d of %d changes were accepted", name, done, len(check.ops))
		if done == 0 {
			t.Errorf("%s: no change was accepted", name)
		}
		m := check.model.ToModel()
		if result := porcupine.CheckOperationsTimeout(m, check.ops, time.Minute); result != porcupine.Ok {
			for _, op := range check.ops {
				t.Logf("%6.0f to %6.0f ms, client %d: %s", float64(op.Call)/1e6, float64(op.Return)/1e6, op.ClientId, m.DescribeOperation(op.Input, op.Output))
			}
			t.Errorf("%s: the history is %s", name, result)
		}
	}
}

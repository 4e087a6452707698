package api_test

import (
	"fmt"
	"sync"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

func TestAChangeRepeatedWithItsKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	f := &failing{}
	h := newHouse(t, over(func(s store.Store) store.Store { f.Store = s; return f }))
	post := func(name, key string) reply {
		return h.call("POST", "/v1/projects?name="+name, hello, "Idempotency-Key", key)
	}
	answers := make([]reply, 10)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = post("shop", "k1") })
	}
	all.Wait()
	replayed := 0
	for _, r := range answers {
		want[contract.Changed](r, 201)
		if string(r.body) != string(answers[0].body) {
			t.Errorf("another answer: %s", r.body)
		}
		if r.header.Get("Idempotency-Replayed") != "" {
			replayed++
		}
	}
	if replayed != 9 || h.picture.Count(mariposa.KindProject) != 1 {
		t.Errorf("%d answers were given again, %d projects are there", replayed, h.picture.Count(mariposa.KindProject))
	}
	post("shop", "k2").wantError(409, mariposa.Conflict, "already")
	post("other", "k1").wantError(409, mariposa.Conflict, "Idempotency-Key")
	post("other", fmt.Sprintf("%0300d", 1)).wantError(400, mariposa.InvalidArgument)

	f.fail(store.ErrUnavailable)
	post("later", "k3").wantError(503, mariposa.Unavailable)
	f.err.Store(nil)
	want[contract.Changed](post("later", "k3"), 201) // what failed is tried anew
}

func TestAKeyDoesNotLetLargeBodiesIn(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	huge := "services: {}\n#" + string(make([]byte, 10<<20))
	h.call("POST", "/v1/projects?name=big", huge, "Idempotency-Key", "k").wantError(413, mariposa.TooLarge)
}

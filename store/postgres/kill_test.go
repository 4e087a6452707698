package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"mariposa/store/storetest"
)

// childVariable contains the URL of a store. If it is set, this binary runs as a child
// that writes to the store until it is killed.
const childVariable = "MARIPOSA_TEST_WRITE_TO"

func child(target string) int {
	s, err := Open(context.Background(), target, Options{})
	if err == nil {
		err = storetest.WriteForever(s)
	}
	fmt.Println(err)
	return 1
}

// Three concurrent writers are killed: no acknowledged write is lost, and no leftover
// blocks other writers.
func TestWhatWasAcknowledgedOutlivesKill9(t *testing.T) {
	t.Parallel()
	target := database(t)
	s := open(t, target, Options{})
	var known int64
	for round := range 3 {
		var wg sync.WaitGroup
		highest := make([]int64, 3)
		for i := range highest {
			wg.Go(func() { highest[i] = storetest.WriteAndKill(t, childVariable, target, 20+rand.IntN(300)) })
		}
		wg.Wait()
		known = max(known, highest[0], highest[1], highest[2])
		r := commit(t, s, node("verified", fmt.Sprint(round)))
		revision := storetest.VerifyLog(t, s)
		if revision < known || r[0].First <= known {
			t.Fatalf("round %d: revision %d was acknowledged, %d is there, %+v followed", round, known, revision, r)
		}
	}
}

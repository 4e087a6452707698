package mailbox_test

import (
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"mariposa/mailbox"
)

func TestABoxWakesItsOwnerOnceHoweverMuchArrives(t *testing.T) {
	t.Parallel()
	woken := 0
	b := mailbox.New[int](func() { woken++ })
	b.Put()
	if woken != 0 {
		t.Error("nothing was sent, and the owner was woken")
	}
	b.Put(1, 2)
	b.Put(3)
	if woken != 1 || b.Len() != 3 {
		t.Errorf("woken %d times with %d waiting; want once with 3", woken, b.Len())
	}
	if got := b.Take(); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("took %v", got)
	}
	if got := b.Take(); len(got) != 0 || b.Len() != 0 {
		t.Errorf("an empty box gave %v", got)
	}
	b.Put(4)
	if woken != 2 {
		t.Error("the owner was not woken again after it had taken everything")
	}
}

func TestWakingMayLookIntoTheBox(t *testing.T) {
	t.Parallel()
	var b *mailbox.Box[string]
	var got []string
	b = mailbox.New[string](func() { got = append(got, b.Take()...) })
	b.Put("a")
	b.Put("b", "c")
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("got %v", got)
	}
}

func TestNothingIsLostDoubledOrTurnedAround(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pending := false
		b := mailbox.New[int](func() { pending = true })
		sent, next := 0, 0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "put") {
				items := make([]int, rapid.IntRange(1, 4).Draw(t, "n"))
				for i := range items {
					items[i] = sent
					sent++
				}
				b.Put(items...)
			} else if pending {
				pending = false
				for _, v := range b.Take() {
					if v != next {
						t.Fatalf("took %d where %d was next", v, next)
					}
					next++
				}
			}
			if b.Len() > 0 && !pending {
				t.Fatal("a message waits and the owner was not woken")
			}
		}
	})
}

func TestManySendersLoseNothing(t *testing.T) {
	t.Parallel()
	wake := make(chan struct{}, 1)
	b := mailbox.New[[2]int](func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	const senders, each = 8, 500
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for i := range each {
				b.Put([2]int{s, i})
			}
		})
	}
	var next [senders]int
	for got := 0; got < senders*each; {
		<-wake
		for _, v := range b.Take() {
			if v[1] != next[v[0]] {
				t.Fatalf("sender %d: %d came where %d was next", v[0], v[1], next[v[0]])
			}
			next[v[0]]++
			got++
		}
	}
	all.Wait()
}

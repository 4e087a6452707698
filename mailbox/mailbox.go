// Package mailbox is how actors are told things: senders never wait, the owner
// takes everything at once, and one call wakes it however much has arrived. It
// owns no goroutine; who runs the owner, and when, is decided elsewhere.
package mailbox

import "sync"

// Box holds what was sent and not yet taken, in order.
type Box[T any] struct {
	mu    sync.Mutex
	items []T
	wake  func()
}

// New makes a box that calls wake whenever something arrives in an empty box.
func New[T any](wake func()) *Box[T] { return &Box[T]{wake: wake} }

// Put adds items.
func (b *Box[T]) Put(items ...T) {
	if len(items) == 0 {
		return
	}
	b.mu.Lock()
	first := len(b.items) == 0
	b.items = append(b.items, items...)
	b.mu.Unlock()
	if first {
		b.wake()
	}
}

// Take empties the box.
func (b *Box[T]) Take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items = nil
	return items
}

// Len says how much is waiting.
func (b *Box[T]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.items)
}

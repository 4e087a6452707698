// Package mailbox passes messages to actors. Senders never block. The owner takes all
// messages at once, and is woken once however many have arrived. The package starts no
// goroutine: the caller decides who runs the owner, and when.
package mailbox

import "sync"

// Box contains the messages not yet taken, in order.
type Box[T any] struct {
	mu    sync.Mutex
	items []T
	wake  func()
}

// New returns a box that calls wake whenever an item arrives in an empty box.
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

// Take removes and returns all items.
func (b *Box[T]) Take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items = nil
	return items
}

// Len returns how many items are waiting.
func (b *Box[T]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.items)
}

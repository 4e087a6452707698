package agent

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"

	"mariposa"
	"mariposa/wire"
)

// Keys are the keys of a node. It presents both, and the control plane admits it with the
// one that it knows: the current one, or the former one if it has not heard of the current
// one yet, or has forgotten it because its database was restored.
type Keys struct {
	Current string
	Former  string // empty if the key was never rotated
}

// noteKey notes which key the control plane admitted the node with. If that was not the
// current one, it offers the current one.
func (n *Node) noteKey(hash string) {
	n.keyHash = hash
	if keys := n.keys.Load(); hash == "" || hash == mariposa.HashKey(keys.Current) {
		return
	}
	n.send(wire.Frame{Rotate: &wire.Rotate{KeyHash: mariposa.HashKey(n.keys.Load().Current)}})
}

// offerKey offers a key to the control plane that differs from the one that it knows. It
// generates one only if the control plane knows the current one: so one of the two that are
// stored is always valid. The key is stored before it is offered.
func (n *Node) offerKey() {
	keys := n.keys.Load()
	if n.keyHash == mariposa.HashKey(keys.Current) {
		if n.StoreKeys == nil {
			slog.Warn("the key of this node cannot be rotated: it is not stored", "node", n.Hello.Name)
			return
		}
		next := &Keys{Current: newKey(), Former: keys.Current}
		if err := n.StoreKeys(*next); err != nil {
			slog.Error("cannot store a new key for this node; it keeps its key", "node", n.Hello.Name, "err", err)
			return
		}
		n.keys.Store(next)
		keys = next
		slog.Info("this node has a new key", "node", n.Hello.Name, "key", mariposa.Fingerprint(mariposa.HashKey(keys.Current)))
	}
	n.send(wire.Frame{Rotate: &wire.Rotate{KeyHash: mariposa.HashKey(keys.Current)}})
}

// newKey generates a key.
func newKey() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

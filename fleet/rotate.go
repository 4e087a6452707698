package fleet

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// The rotation of node keys. An operator asks for it in the node's spec. Whichever replica
// has the session asks the agent for a new key. The agent stores one, next to the current
// one, and sends its hash. From the commit of that hash on, both keys are valid. The session
// then ends, and the agent opens one with the new key: the same commit that opens it makes
// the new key the only one. Until then, the agent presents both keys, so that it is admitted
// whatever was lost on the way.

// rotateTimeout is how long a session with open streams lasts after its node got a new key.
const rotateTimeout = time.Minute

// admittingKey returns the hash of the key that admits a node; false if none does.
func admittingKey(spec *mariposa.NodeSpec, h *wire.Hello) (hash string, ok bool) {
	for _, key := range []string{h.Key, h.FormerKey} {
		if hash := mariposa.HashKey(key); key != "" && spec.HasKey(hash) {
			return hash, true
		}
	}
	return "", false
}

// admittedWith returns the hash of the key that the node opened its session with.
func admittedWith(spec *mariposa.NodeSpec, h *wire.Hello) string {
	hash, _ := admittingKey(spec, h)
	return hash
}

// adoptKey makes the new key of a node its only one, as part of the commit that opens a
// session with it.
func adoptKey(unit *store.Unit, spec *mariposa.NodeSpec, h *wire.Hello, by Admission) {
	spec.AdoptKey()
	is := mariposa.Fingerprint(spec.KeyHash)
	event := nodeEvent("node.key_rotated", h)
	event.Reason = &mariposa.Reason{Code: mariposa.ReasonKeyRotated, Subject: is}
	unit.Put(store.Write{Kind: mariposa.KindNode, ID: h.Node, Spec: spec, Event: event})
	unit.Audit = append(unit.Audit, nodeAudit("node.key-rotated", h, by, "the fingerprint of its new key is "+is))
}

// requestKey asks the agent for a new key, once for each request of an operator.
func (s *Session) requestKey(spec *mariposa.NodeSpec) {
	if !s.snapshotSent || spec.RotateKey.IsZero() || spec.RotateKey.Equal(s.keyRequested) {
		return
	}
	s.keyRequested = spec.RotateKey
	s.send(wire.Frame{Rotate: &wire.Rotate{}})
}

// handleRotate notes the hash of a new key that the agent has stored.
func (s *Session) handleRotate(r *wire.Rotate) error {
	if b, err := hex.DecodeString(r.KeyHash); err != nil || len(b) != 32 {
		return errors.New("the agent sent an invalid hash of a key")
	}
	s.offeredKey = r.KeyHash
	return nil
}

// storeKey stores the hash of a new key that the agent offered. From then on the node can
// open a session with it.
func (s *Session) storeKey(ctx context.Context) error {
	r := s.f.Picture.Nodes.Get(s.node)
	if s.offeredKey == "" || r == nil {
		return nil
	}
	spec := *r.Spec()
	switch {
	case spec.HasRetiredKey(s.offeredKey):
		return errors.New("the agent offered a key that was replaced before")
	case spec.KeyHash == s.offeredKey:
		s.offeredKey = ""
		return nil
	}
	if spec.NextKeyHash != s.offeredKey {
		spec.NextKeyHash = s.offeredKey
		unit := store.Unit{Fences: s.fence(), Urgent: true}
		unit.Unchanged(r)
		unit.Put(store.Write{Kind: mariposa.KindNode, ID: s.node, Spec: &spec})
		switch err := s.f.Store.Commit(ctx, unit)[0].Err; {
		case errors.Is(err, store.ErrFenced):
			return errors.New("the node opened another session")
		case err != nil: // a conflict too: the picture will show the change
			slog.Warn("cannot store the new key of a node; retrying", "node", s.hello.Name, "err", err)
			s.retryLater()
			return nil
		}
	}
	s.offeredKey = ""
	s.mu.Lock()
	s.renewBy = s.f.Clock.Now().Add(rotateTimeout)
	s.mu.Unlock()
	s.endToRenew(s.f.Clock.Now())
	return nil
}

// endToRenew ends the session of a node that has a new key, so that it opens one with that
// key. It waits a while for commands and logs that are in progress.
func (s *Session) endToRenew(now time.Time) {
	s.mu.Lock()
	by := s.renewBy
	s.mu.Unlock()
	if by.IsZero() || now.Before(by) && s.countStreams != nil && s.countStreams() > 0 {
		return
	}
	s.end("the node has a new key: it connects again with it")
}

// renewSessions ends the sessions of nodes that have a new key.
func (f *Fleet) renewSessions(now time.Time) {
	f.mu.Lock()
	all := make([]*Session, 0, len(f.sessions))
	for _, s := range f.sessions {
		all = append(all, s)
	}
	f.mu.Unlock()
	for _, s := range all {
		s.endToRenew(now)
	}
}

package fleet

import (
	"context"
	"fmt"
	"time"

	"mariposa"
)

const (
	// sessionTimeout is how long to wait for a new session to become ready.
	sessionTimeout = 2 * time.Second
	// reconnectTimeout is how long to wait for the session of a node that is about to
	// reconnect: its server, or its connection, has just come back.
	reconnectTimeout = 5 * time.Second
)

// awaitSession returns the session of an instance's node, once the node knows its
// instances. It waits a moment for a node that has just lost its session.
func (f *Fleet) awaitSession(ctx context.Context, node, instance string) (*Session, error) {
	waits, cancel := context.WithTimeout(ctx, reconnectTimeout)
	defer cancel()
	began := time.Now()
	for {
		s, joined := f.sessionOf(node)
		if s != nil {
			if s.awaitReady(ctx) {
				return s, nil
			}
			return nil, f.absenceError(node, instance, 0)
		}
		if !f.isReturning(node) {
			return nil, f.absenceError(node, instance, 0)
		}
		select {
		case <-joined:
		case <-waits.Done():
			return nil, f.absenceError(node, instance, time.Since(began))
		}
	}
}

// awaitReady waits for a session until its node knows its instances, and reports
// whether it does.
func (s *Session) awaitReady(ctx context.Context) bool {
	select {
	case <-s.ready:
		return true
	case <-ctx.Done():
	case <-time.After(sessionTimeout):
	}
	return false
}

// sessionOf returns the session of a node, and a channel that is closed when any node
// opens one.
func (f *Fleet) sessionOf(node string) (*Session, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions[node], f.joined
}

// isReturning reports whether a node without a session here is about to reconnect: the
// store has it as running, and it was connected here or to a replica that is gone, or
// this replica has just started.
func (f *Fleet) isReturning(node string) bool {
	r := f.Picture.Nodes.Get(node)
	if r == nil || r.Spec().Lost {
		return false
	}
	st := r.Status()
	if st == nil || st.State != mariposa.NodeRunning {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, dead := f.goneReplicas[st.Replica]
	return dead || st.Replica == "" || st.Replica == f.Replica || f.Clock.Now().Sub(f.began) < f.lifetime()
}

// absenceError reports where the node of an instance is, and how long the request waited
// for it.
func (f *Fleet) absenceError(node, instance string, waited time.Duration) error {
	where := f.describeAbsence(node)
	if waited > 0 {
		where += fmt.Sprintf(" (waited %s for it)", waited.Round(100*time.Millisecond))
	}
	return mariposa.Errorf(mariposa.Unavailable, "instance %s is on node %s", instance, where)
}

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"mariposa"
	"mariposa/relay"
)

const (
	// sessionTimeout is how long to wait for a new session to become ready.
	sessionTimeout = 2 * time.Second
	// reconnectTimeout is how long to wait for the session of a node that is about to
	// reconnect: its server, or its connection, has just come back.
	reconnectTimeout = 5 * time.Second
	// forwardTimeout is how long requests to other replicas may take in all. A replica
	// that has the session of a node waits for it no longer than sessionTimeout and
	// answerTimeout, and its own answer says more than the end of this time.
	forwardTimeout = reconnectTimeout + answerTimeout
	// askInterval is how often a replica is asked that did not answer, or did not have the
	// session of a node.
	askInterval = 250 * time.Millisecond
)

// errand is something to do at the replica that has the session of a node.
type errand struct {
	node, instance string
	what           string // it is about, if not an instance
	here           func(*Session) error
	there          func(ctx context.Context, replica string) error
	once           bool // it must not be repeated if it may have been done
}

// reach runs an errand where the node's session is, once the node knows its instances. It
// waits a moment for a node that has just lost its session, wherever it connects. Its
// errors name the node.
func (f *Fleet) reach(ctx context.Context, e errand) error {
	err := f.tryToReach(ctx, e)
	var known *mariposa.Error
	if errors.As(err, &known) && known.Code == mariposa.Unavailable {
		known.Node = e.node
	}
	return err
}

func (f *Fleet) tryToReach(ctx context.Context, e errand) error {
	waits, cancel := context.WithTimeout(ctx, reconnectTimeout)
	defer cancel()
	forwards, cancelForwards := context.WithTimeout(ctx, forwardTimeout)
	defer cancelForwards()
	began := time.Now()
	var failed error // of the last attempt at another replica
	for {
		s, joined := f.sessionOf(e.node)
		again := (<-chan time.Time)(nil)
		if s != nil {
			err := e.runHere(ctx, s)
			if err == nil || !e.canRepeat(err) {
				return f.explainFailure(e, err)
			}
			again = time.After(askInterval)
		} else if replica := f.holder(e.node); replica != "" {
			err := e.there(forwards, replica)
			if err == nil || !e.canRepeat(err) {
				return f.explainFailure(e, err)
			}
			if failed == nil || forwards.Err() == nil { // the end of the wait explains less than what came before
				failed = err
			}
			again = time.After(askInterval)
		} else if !f.isReturning(e.node) {
			return f.absenceError(e, 0, nil)
		}
		select {
		case <-joined:
		case <-again:
		case <-waits.Done():
			return f.absenceError(e, time.Since(began), failed)
		}
	}
}

// runHere runs an errand with a session, once that is ready.
func (e *errand) runHere(ctx context.Context, s *Session) error {
	if !s.awaitReady(ctx) {
		return s.notReadyError()
	}
	return e.here(s)
}

func (s *Session) notReadyError() *mariposa.Error {
	return mariposa.Errorf(mariposa.Unavailable, "node %s has just connected and is not ready yet: try again", s.hello.Name)
}

// canRepeat reports whether an errand can be run again after it failed: the node may have
// connected elsewhere.
func (e *errand) canRepeat(err error) bool {
	var unreachable *relay.UnreachableError
	if errors.As(err, &unreachable) {
		return !(e.once && unreachable.Sent) && !errors.Is(err, relay.ErrNoAddress)
	}
	var gone *disconnectedError
	if errors.As(err, &gone) {
		return !(e.once && gone.sent)
	}
	return errors.Is(err, relay.ErrAbsent)
}

// explainFailure converts the error of an errand that is not repeated.
func (f *Fleet) explainFailure(e errand, err error) error {
	var unreachable *relay.UnreachableError
	if errors.As(err, &unreachable) {
		return f.absenceError(e, 0, err)
	}
	var gone *disconnectedError
	if errors.As(err, &gone) { // only what must not be repeated
		return gone.explain()
	}
	return err
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
// opens one, here or elsewhere.
func (f *Fleet) sessionOf(node string) (*Session, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions[node], f.joined
}

// holder returns the other replica that has the session of a node; empty if there is none,
// or it cannot be asked.
func (f *Fleet) holder(node string) string {
	r := f.Picture.Nodes.Get(node)
	if r == nil || r.Spec().Lost || f.Links == nil {
		return ""
	}
	st := r.Status()
	if st == nil || st.State != mariposa.NodeRunning || st.Replica == f.Replica {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, dead := f.goneReplicas[st.Replica]; dead {
		return ""
	}
	return st.Replica
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

// absenceError reports where the node of an instance is, how long the request waited for
// it, and why its replica could not be asked.
func (f *Fleet) absenceError(e errand, waited time.Duration, failed error) error {
	where := f.describeAbsence(e.node, failed)
	if waited > 0 {
		where += fmt.Sprintf(" (waited %s for it)", waited.Round(100*time.Millisecond))
	}
	return mariposa.Errorf(mariposa.Unavailable, "%s is on node %s", cmp.Or(e.what, f.instanceName(e.instance)), where)
}

func (f *Fleet) instanceName(id string) string {
	if r := f.Picture.Instances.Get(id); r != nil {
		return r.Spec().Name
	}
	return "instance " + id
}

// describeAbsence describes where a node without a session here is, as the end of a
// sentence.
func (f *Fleet) describeAbsence(node string, failed error) string {
	r := f.Picture.Nodes.Get(node)
	if r == nil {
		return node + ", which is not connected and no longer registered"
	}
	name := r.Spec().Name
	var unreachable *relay.UnreachableError
	switch st := r.Status(); {
	case errors.As(failed, &unreachable):
		return name + ", which is connected to another replica: " + failed.Error()
	case st != nil && st.State == mariposa.NodeRunning && st.Replica != "" && st.Replica != f.Replica && !f.isReturning(node) && f.holder(node) == "":
		return name + ", which is connected to another replica (" + st.Replica + "): send the request to that replica"
	}
	return name + ", which is not connected: try again when it is back"
}

package fleet

import (
	"log/slog"
	"slices"
	"time"

	"mariposa"
	"mariposa/relay"
)

// balancer moves nodes from this replica to others that have far fewer, one at a time. A
// new replica gets its share that way. It is used by Tick alone.
type balancer struct {
	moving string    // the node that is on its way
	after  time.Time // when the next one may be moved
}

const (
	// settleTime is how long replicas and sessions stay as they are after they have begun.
	settleTime = 30 * time.Second
	// balancePause is how long no node is moved after one came back or got lost: it cannot
	// reach the others, or something in between decides where nodes connect.
	balancePause = 10 * time.Minute
	moveReason   = "this server has more nodes than the others; connect to another one"
)

// balance asks one node to connect to another replica, if that seems to help.
func (f *Fleet) balance(all []relay.Replica, now time.Time) {
	b := &f.balancer
	switch {
	case f.Links == nil || now.Before(b.after) || now.Sub(f.began) < settleTime:
		return
	case b.moving != "" && f.isOnItsWay(b.moving):
		return
	}
	if b.moving != "" && !f.hasMoved(b.moving) {
		b.moving, b.after = "", now.Add(balancePause)
		return
	}
	b.moving = ""
	if least, ok := f.fewestElsewhere(all, now); !ok || !isUneven(f.Sessions(), least) {
		return
	}
	if s := f.pickIdle(now); s != nil {
		slog.Info("asking a node to connect to another server", "node", s.hello.Name, "reason", moveReason)
		b.moving = s.node
		s.end(moveReason)
	}
}

// isUneven reports whether one replica has so many more nodes than another that moving some
// is worth it.
func isUneven(here, there int) bool { return here-there >= 4 && 4*here >= 5*there }

// isOnItsWay reports whether a node that was asked to move has not connected yet.
func (f *Fleet) isOnItsWay(node string) bool {
	r := f.Picture.Nodes.Get(node)
	if _, s := f.LastHeard(node); r == nil || s != nil {
		return false
	}
	st := r.Status()
	return st != nil && st.State == mariposa.NodeRunning && st.Replica == f.Replica
}

// hasMoved reports whether a node is connected to another replica, or was removed.
func (f *Fleet) hasMoved(node string) bool {
	r := f.Picture.Nodes.Get(node)
	if r == nil {
		return true
	}
	st := r.Status()
	return st != nil && st.State == mariposa.NodeRunning && st.Replica != f.Replica
}

// fewestElsewhere returns the smallest number of nodes that another replica has; false if
// there is none, or one has just started or cannot be reached by agents.
func (f *Fleet) fewestElsewhere(all []relay.Replica, now time.Time) (least int, ok bool) {
	counts := map[string]int{}
	for _, r := range f.Picture.Nodes.All() {
		if st := r.Status(); st != nil && st.State == mariposa.NodeRunning {
			counts[st.Replica]++
		}
	}
	for _, r := range all {
		switch {
		case r.Name == f.Replica:
			continue
		case r.URL == "" || now.Sub(r.Since) < settleTime:
			return 0, false
		case !ok || counts[r.Name] < least:
			least, ok = counts[r.Name], true
		}
	}
	return least, ok
}

// pickIdle returns a session that has lasted for a while and has no streams; nil if there
// is none.
func (f *Fleet) pickIdle(now time.Time) *Session {
	f.mu.Lock()
	var all []*Session
	for _, s := range f.sessions {
		all = append(all, s)
	}
	f.mu.Unlock()
	i := slices.IndexFunc(all, func(s *Session) bool {
		return now.Sub(s.began) >= settleTime && (s.countStreams == nil || s.countStreams() == 0)
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

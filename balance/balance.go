// Package balance decides about load balancers: which members one should have, with which
// weights, and which commands bring what a balancer has to what it should have. It is pure: it
// gets everything as arguments, and it sends nothing. Agents carry the commands out, again and
// again, so a change made by hand or a lost command is corrected in the next round.
//
// The package knows the commands of HAProxy's control socket. It does not know connections,
// stores or nodes.
package balance

import (
	"cmp"
	"slices"
	"strconv"

	"mariposa"
)

// Server is a server of a balancer, as its control socket shows it.
type Server struct {
	Backend     string
	Name        string // that of ours is the id of the instance
	Address     string // host:port
	Weight      int
	State       State
	Connections int
}

// State is the administrative state of a server.
type State string

const (
	Ready State = "ready"
	Drain State = "drain"
	Maint State = "maint"
	// Stopped: it counts as failed, for example because somebody said so.
	Stopped State = "stopped"
)

// Key identifies a member: an instance may be in several backends.
type Key struct{ Backend, Instance string }

// KeyOf returns the key of a member.
func KeyOf(m *mariposa.Member) Key { return Key{m.Backend, m.Instance} }

// Commands returns the commands that bring a balancer closer to the desired members. Ours are
// the keys of all members that it was ever given: other servers are left alone. A server that
// still has connections is deleted in a later round.
func Commands(desired []mariposa.Member, actual []Server, ours map[Key]bool) []string {
	var all, later []string
	there := make(map[Key]*Server, len(actual))
	for i := range actual {
		there[Key{actual[i].Backend, actual[i].Name}] = &actual[i]
	}
	wanted := make(map[Key]bool, len(desired))
	for i := range desired {
		m := &desired[i]
		if m.Address == "" {
			continue
		}
		wanted[KeyOf(m)] = true
		if commands := change(m, there[KeyOf(m)]); stateOf(m) == Ready {
			all = append(all, commands...)
		} else { // a successor gets connections before its predecessor gets none
			later = append(later, commands...)
		}
	}
	all = append(all, later...)
	for i := range actual {
		s := &actual[i]
		k := Key{s.Backend, s.Name}
		if wanted[k] || !ours[k] {
			continue
		}
		if s.State != Maint {
			all = append(all, "set server "+k.path()+" state maint")
		}
		if s.Connections == 0 {
			all = append(all, "del server "+k.path())
		}
	}
	return all
}

// change returns the commands that make a server as a member should be.
func change(m *mariposa.Member, s *Server) []string {
	path, want := KeyOf(m).path(), stateOf(m)
	switch {
	case s == nil && want == Drain:
		return nil // it has no connections that could end
	case s == nil: // a new server is in maintenance until it is told otherwise
		return []string{"add server " + path + " " + m.Address + " weight " + strconv.Itoa(m.Weight), "set server " + path + " state ready"}
	}
	var all []string
	if s.Address != m.Address && want == Ready { // the connections of a leaving one are to its old address
		host, port := mariposa.SplitAddress(m.Address)
		all = append(all, "set server "+path+" addr "+host+" port "+port)
	}
	if s.Weight != m.Weight && want == Ready {
		all = append(all, "set server "+path+" weight "+strconv.Itoa(m.Weight))
	}
	switch {
	case s.State == Stopped && want == Ready:
		all = append(all, "set server "+path+" health up")
	case s.State != want:
		all = append(all, "set server "+path+" state "+string(want))
	}
	return all
}

func stateOf(m *mariposa.Member) State {
	if m.State == mariposa.MemberDrain {
		return Drain
	}
	return Ready
}

func (k Key) path() string { return k.Backend + "/" + k.Instance }

// Statuses returns the desired members as they are. If busy is set, connections may exist that
// actual does not show, so nothing counts as idle.
func Statuses(desired []mariposa.Member, actual []Server, busy bool) []mariposa.MemberStatus {
	there := make(map[Key]*Server, len(actual))
	for i := range actual {
		there[Key{actual[i].Backend, actual[i].Name}] = &actual[i]
	}
	all := make([]mariposa.MemberStatus, 0, len(desired))
	for i := range desired {
		all = append(all, status(&desired[i], there[KeyOf(&desired[i])], busy))
	}
	return all
}

func status(m *mariposa.Member, s *Server, busy bool) mariposa.MemberStatus {
	out := mariposa.MemberStatus{
		Backend: m.Backend, Instance: m.Instance, Name: m.Name, Address: m.Address, Weight: m.Weight, State: mariposa.MemberDown, Reason: m.Reason,
	}
	switch {
	case s == nil && m.State == mariposa.MemberDrain:
		out.State, out.Idle = mariposa.MemberDrain, !busy
		return out
	case s == nil:
		out.Reason = cmp.Or(m.Reason, "it is not in the balancer yet")
		return out
	}
	out.Address, out.Weight, out.Connections = s.Address, s.Weight, s.Connections
	switch s.State {
	case Ready:
		out.State = mariposa.MemberUp
	case Drain:
		out.State = mariposa.MemberDrain
	default:
		out.Reason = cmp.Or(m.Reason, "it is taken out of the balancer")
	}
	// One that should be up may get connections again at any time, even if it is taken out now.
	out.Idle = m.State == mariposa.MemberDrain && s.State != Ready && s.Connections == 0 && !busy
	return out
}

// fullWeight is the weight of a member among equals. Weights are at most 256.
const (
	fullWeight = 100
	maxWeight  = 256
)

// Candidate is an instance that may be a member.
type Candidate struct {
	mariposa.Member
	Number  int    // the version that it was created from
	Digest  string // of its definition
	Suspect bool   // it should be up, but its node cannot be reached
}

// Members returns the members of one backend, sorted by instance. Candidates on unreachable
// nodes are left out only if others are up: the servers may be the ones who cannot reach them.
// While two definitions are up, those of the newest version get a share of the requests, in
// percent; 0: every instance gets the same.
func Members(all []Candidate, share int) []mariposa.Member {
	newest, up := newestOf(all)
	fresh, old := 0, 0
	for i := range all {
		c := &all[i]
		switch {
		case c.State != mariposa.MemberUp || c.Suspect && up > 0 || c.Address == "":
		case c.Digest == newest:
			fresh++
		default:
			old++
		}
	}
	forFresh, forOld := Weights(fresh, old, share)
	var out []mariposa.Member
	for i := range all {
		c := &all[i]
		if c.Suspect && c.State == mariposa.MemberUp && up > 0 {
			continue
		}
		if c.Weight = forOld; c.Digest == newest {
			c.Weight = forFresh
		}
		out = append(out, c.Member)
	}
	slices.SortFunc(out, func(a, b mariposa.Member) int { return cmp.Compare(a.Instance, b.Instance) })
	return out
}

// newestOf returns the definition of the newest version, and how many candidates are up for
// certain.
func newestOf(all []Candidate) (digest string, up int) {
	number := -1
	for i := range all {
		c := &all[i]
		if c.State != mariposa.MemberUp {
			continue
		}
		if c.Number > number || c.Number == number && c.Digest > digest {
			number, digest = c.Number, c.Digest
		}
		if !c.Suspect && c.Address != "" {
			up++
		}
	}
	return digest, up
}

// Weights returns the weights of new and old members with which the new ones together get a
// share of the requests, in percent.
func Weights(fresh, old, share int) (forFresh, forOld int) {
	if share <= 0 || fresh == 0 || old == 0 {
		return fullWeight, fullWeight
	}
	a, b := share*old, (100-share)*fresh // one new one to one old one
	if b == 0 {
		return fullWeight, 0
	}
	scale := float64(maxWeight) / float64(max(a, b))
	if max(a, b) <= maxWeight {
		scale = float64(maxWeight / max(a, b))
	}
	return max(1, int(float64(a)*scale+0.5)), max(1, int(float64(b)*scale+0.5))
}

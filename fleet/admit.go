package fleet

import (
	"context"
	"crypto/subtle"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// Admission is what an agent authenticated with: a join token, or the key of a node that
// has joined before.
type Admission struct {
	Token *store.Token // a join token; nil if it sent no valid one
	Own   bool         // an agent in the server's own process, which needs neither record nor approval
	Node  string       // the node whose key it has; empty if none
	From  string       // its address
}

// canJoin reports whether it admits a new node.
func (a Admission) canJoin() bool { return a.Own || a.Token != nil }

var nodeID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

const (
	maxTraits  = 64
	maxPending = 1000 // nodes that wait for approval
)

func checkHello(h *wire.Hello, by Admission) *wire.Bye {
	switch {
	case h.Protocol != wire.Protocol:
		return finalError("the agent uses protocol %d and this server uses %d: run the same release on both", h.Protocol, wire.Protocol)
	case !nodeID.MatchString(h.Node):
		return finalError("invalid node id %q", h.Node)
	case !by.canJoin() && by.Node != h.Node:
		return finalError("the agent authenticated as node %s but reports to be node %s: give it a join token, or the data directory of that node", by.Node, h.Node)
	case len(h.Key) < 16:
		return finalError("the key of a node must have at least 16 characters")
	case !isShortText(h.Name):
		return finalError("the name of a node must have 1 to 253 characters")
	case !isShortText("-"+h.Rack) || !isShortText("-"+h.DC):
		return finalError("the rack and the data center of a node must have at most 252 characters, all of them printable")
	case len(h.Traits) > maxTraits:
		return finalError("a node can have at most %d traits", maxTraits)
	}
	for k, v := range h.Traits {
		if !isShortText(k) || !isShortText("-"+v) {
			return finalError("the traits of a node must have at most 252 characters, all of them printable")
		}
	}
	return nil
}

// isShortText reports whether a text can be stored and shown on any terminal.
func isShortText(s string) bool {
	return s != "" && len(s) <= 253 && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar })
}

// register prepares the node's record. The first hello of a node sets its key, which
// proves its identity from then on.
func (f *Fleet) register(h *wire.Hello, by Admission) (next *mariposa.NodeSpec, unit store.Unit, bye *wire.Bye) {
	hash := mariposa.HashKey(h.Key)
	r := f.Picture.Nodes.Get(h.Node)
	if r == nil {
		return f.registerNew(h, hash, by)
	}
	spec := *r.Spec()
	switch {
	case subtle.ConstantTimeCompare([]byte(spec.KeyHash), []byte(hash)) != 1:
		return nil, unit, finalError("node %s is registered with another key: its data directory was lost or copied; remove the node first (mariposa node rm)", h.Name)
	case spec.Approval != "":
		return &spec, unit, nil
	case spec.Lost:
		return nil, unit, &wire.Bye{Reason: "the node is simulating a failure"}
	case spec.Name != h.Name:
		if bye := f.checkName(h); bye != nil {
			return nil, unit, bye
		}
	}
	spec.Name, spec.Rack, spec.DC, spec.Traits = h.Name, h.Rack, h.DC, h.Traits
	unit.Unchanged(r)
	unit.Put(store.Write{Kind: mariposa.KindNode, ID: h.Node, Spec: &spec, Event: nodeEvent("node.running", h)})
	return &spec, unit, nil
}

// registerNew prepares the record of an unknown node, and uses its join token once.
func (f *Fleet) registerNew(h *wire.Hello, hash string, by Admission) (next *mariposa.NodeSpec, unit store.Unit, bye *wire.Bye) {
	if !by.canJoin() {
		return nil, unit, finalError("node %s is no longer registered: give its agent a join token (mariposa node join-token)", h.Name)
	}
	if bye := f.checkName(h); bye != nil {
		return nil, unit, bye
	}
	next = &mariposa.NodeSpec{Name: h.Name, Rack: h.Rack, DC: h.DC, Traits: h.Traits, Dummy: h.Dummy, KeyHash: hash, Created: f.Clock.Now()}
	kind := "node.running"
	if f.ApproveNodes && !by.Own {
		next.Approval, kind = mariposa.ApprovalPending, "node.pending"
	}
	unit.Absent(mariposa.KindNode, h.Node)
	write := store.Write{Kind: mariposa.KindNode, ID: h.Node, Spec: next, Event: nodeEvent(kind, h)}
	if next.Approval != "" {
		write.Status = f.pendingStatus(h, by)
	}
	unit.Put(write)
	if by.Token == nil {
		return next, unit, nil
	}
	next.JoinedWith = by.Token.ID
	takeUse(&unit, by, f.Clock.Now())
	unit.Audit = []mariposa.Audit{{
		Actor: "node " + h.Node, ActorName: "node " + h.Name, From: by.From, Token: by.Token.ID, Action: "node.join", Outcome: mariposa.AuditDone,
		Kind: string(mariposa.KindNode), Object: h.Node, ObjectName: h.Name, Reason: "with join token " + by.Token.Spec().Name,
	}}
	return next, unit, nil
}

func nodeEvent(kind string, h *wire.Hello) mariposa.Event {
	return mariposa.Event{Kind: kind, Node: h.Node, Actor: "node " + h.Name}
}

// checkName rejects a name that could be confused with another node. Rejected nodes do
// not keep their name.
func (f *Fleet) checkName(h *wire.Hello) *wire.Bye {
	if err := mariposa.CheckNodeName(h.Name); err != nil {
		return finalError("%s; choose another name with --name", err)
	}
	for _, r := range f.Picture.Nodes.All() {
		spec := r.Spec()
		switch {
		case r.ID == h.Node:
		case spec.Name == h.Name && spec.Approval != mariposa.ApprovalRejected, r.ID == h.Name:
			return finalError("another node is named %s: choose another name with --name, or remove that node first", h.Name)
		case spec.Name == h.Node:
			return finalError("%s cannot be used as a node id: another node has that name", h.Node)
		}
	}
	return nil
}

// takeUse counts one use of a join token. The token must be unchanged: it may have been
// revoked meanwhile, or have admitted its last node.
func takeUse(unit *store.Unit, by Admission, now time.Time) {
	unit.Unchanged(by.Token)
	w := store.Write{Kind: mariposa.KindToken, ID: by.Token.ID, Status: &mariposa.TokenStatus{Used: now, From: by.From}}
	if spec := *by.Token.Spec(); spec.Uses > 0 {
		spec.Joined++
		w.Spec = &spec
	}
	unit.Put(w)
}

// pendingStatus is the status of a node that waits for approval. Its resources and
// capabilities are not recorded before.
func (f *Fleet) pendingStatus(h *wire.Hello, by Admission) *mariposa.NodeStatus {
	return &mariposa.NodeStatus{
		State: mariposa.NodePending, Since: f.Clock.Now(), Replica: f.Replica, Address: by.From,
		Reason: &mariposa.Reason{Code: mariposa.ReasonAwaitsApproval, Subject: h.Name},
	}
}

// awaitApproval responds to the agent of a node that is not approved. The agent learns
// nothing about this installation, and retries until a person has decided.
func (f *Fleet) awaitApproval(ctx context.Context, h *wire.Hello, spec *mariposa.NodeSpec, unit store.Unit) *wire.Bye {
	switch {
	case spec.Approval == mariposa.ApprovalRejected:
		return finalError("node %s was rejected: an operator of the installation can approve it with `mariposa node approve` or remove it with `mariposa node rm`", h.Name)
	case spec.Name != h.Name: // people must approve the name that they have seen
		return finalError("this node is waiting for approval as %s and cannot be renamed to %s until it is approved", spec.Name, h.Name)
	case len(unit.Writes) > 0 && f.countPending() >= maxPending:
		return &wire.Bye{Reason: fmt.Sprintf("%d nodes are already waiting for approval", maxPending)}
	case len(unit.Writes) > 0:
		unit.Urgent = true
		if err := f.Store.Commit(ctx, unit)[0].Err; err != nil {
			return unavailableError("register a new node", err)
		}
	}
	return &wire.Bye{Reason: fmt.Sprintf("the node is waiting for approval: mariposa node approve %s; the fingerprint of its key is %s", spec.Name, mariposa.Fingerprint(spec.KeyHash))}
}

func (f *Fleet) countPending() (n int) {
	for _, r := range f.Picture.Nodes.All() {
		if r.Spec().Approval == mariposa.ApprovalPending {
			n++
		}
	}
	return n
}

package fleet

import (
	"cmp"
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
	// leave ends that the connection counts as one without a session; nil if it is not
	// counted.
	leave func()
	// Tokenless: it has neither a join token nor the key of a node that is admitted. It
	// can only announce its node.
	Tokenless bool
}

// canJoin reports whether it admits a new node.
func (a Admission) canJoin() bool { return a.Own || a.Token != nil }

var nodeID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

const (
	maxTraits  = 64
	maxShownID = 64 // bytes of an invalid node id in a refusal
)

func (f *Fleet) checkHello(h *wire.Hello, by Admission) *wire.Bye {
	switch {
	case h.Protocol != wire.Protocol:
		return f.refuseProtocol(h, by)
	case !nodeID.MatchString(h.Node):
		return finalError("invalid node id %q", shorten(h.Node, maxShownID))
	case !by.canJoin() && !by.Tokenless && by.Node != h.Node:
		return finalError("the agent authenticated as node %s but reports to be node %s: give it a join token, or the data directory of that node", by.Node, h.Node)
	case len(h.Key) < 16 || max(len(h.Key), len(h.FormerKey)) > maxKey:
		return finalError("the key of a node must have 16 to %d characters", maxKey)
	case !isShortText(h.Name):
		return finalError("the name of a node must have 1 to 253 characters, all of them printable")
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
	return checkCapacity(h.Capacity)
}

// refuseProtocol refuses an agent of another release. The refusal is not final: another
// server may have the agent's release already, and this one may be upgraded next.
func (f *Fleet) refuseProtocol(h *wire.Hello, by Admission) *wire.Bye {
	agent, server, older := "an unknown release", cmp.Or(f.Release, "an unknown release"), "the agent"
	if by.Tokenless {
		server = "of another release"
	}
	if isShortText(h.Release) {
		agent = h.Release
	}
	if h.Protocol > wire.Protocol {
		older = "the server"
	}
	return &wire.Bye{Reason: fmt.Sprintf("the agent (%s) uses protocol %d and this server (%s) uses protocol %d: upgrade %s", agent, h.Protocol, server, wire.Protocol, older)}
}

// isShortText reports whether a text can be stored and shown on any terminal.
func isShortText(s string) bool {
	return s != "" && len(s) <= 253 && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar })
}

// register prepares the node's record. The first hello of a node sets its key, which
// proves its identity from then on.
func (f *Fleet) register(h *wire.Hello, by Admission) (next *mariposa.NodeSpec, unit store.Unit, bye *wire.Bye) {
	r := f.Picture.Nodes.Get(h.Node)
	if r == nil {
		return f.registerNew(h, nil, by)
	}
	spec := *r.Spec()
	hash, ok := admittingKey(&spec, h)
	switch {
	case spec.Tokenless && by.canJoin() && !(ok && spec.Approval == mariposa.ApprovalRejected):
		return f.registerNew(h, r, by) // it had no right to the id
	case !ok && spec.HasRetiredKey(mariposa.HashKey(h.Key)):
		return nil, unit, finalError(mariposa.RetiredKeyMessage)
	case !ok:
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
	if hash != spec.KeyHash {
		adoptKey(&unit, &spec, h, by)
	}
	return &spec, unit, nil
}

// registerNew prepares the record of a node that joins, and uses its join token once. Its
// record may exist, from before it had a token.
func (f *Fleet) registerNew(h *wire.Hello, r *store.Node, by Admission) (next *mariposa.NodeSpec, unit store.Unit, bye *wire.Bye) {
	if !by.canJoin() {
		return nil, unit, finalError("node %s is not registered in this installation: start its agent once with --join and a token from `mariposa node join-token`; it keeps its id, its key and its instances", h.Name)
	}
	if bye := f.checkName(h); bye != nil {
		return nil, unit, bye
	}
	next = &mariposa.NodeSpec{Name: h.Name, Rack: h.Rack, DC: h.DC, Traits: h.Traits, Dummy: h.Dummy, KeyHash: mariposa.HashKey(h.Key), Created: f.Clock.Now()}
	kind := "node.running"
	if f.ApproveNodes && !by.Own {
		next.Approval, kind = mariposa.ApprovalPending, "node.pending"
	}
	if r != nil {
		unit.Unchanged(r)
	} else {
		unit.Absent(mariposa.KindNode, h.Node)
	}
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
	unit.Audit = []mariposa.Audit{nodeAudit("node.join", h, by, "with join token "+by.Token.Spec().Name)}
	return next, unit, nil
}

// nodeAudit is the audit record of what a node does by itself.
func nodeAudit(action string, h *wire.Hello, by Admission, why string) mariposa.Audit {
	a := mariposa.Audit{
		Actor: "node " + h.Node, ActorName: "node " + h.Name, From: by.From, Action: action, Outcome: mariposa.AuditDone,
		Kind: string(mariposa.KindNode), Object: h.Node, ObjectName: h.Name, Reason: why,
	}
	if by.Token != nil {
		a.Token = by.Token.ID
	}
	return a
}

func nodeEvent(kind string, h *wire.Hello) mariposa.Event {
	return mariposa.Event{Kind: kind, Node: h.Node, Actor: "node " + h.Name}
}

// checkName rejects a name that could be confused with another node. Nodes that were
// rejected, or that wait without a join token, do not keep their name. Their ids cannot be
// names: see checkAnnounced.
func (f *Fleet) checkName(h *wire.Hello) *wire.Bye {
	if err := mariposa.CheckNodeName(h.Name); err != nil {
		return finalError("%s; choose another name with --name", err)
	}
	for _, r := range f.Picture.Nodes.All() {
		spec := r.Spec()
		switch {
		case r.ID == h.Node:
		case spec.Name == h.Name && spec.OwnsName(), r.ID == h.Name:
			return finalError("another node is named %s: choose another name with --name, or remove that node first", h.Name)
		case spec.Name == h.Node && !spec.Tokenless:
			return finalError("%s cannot be used as a node id: another node has that name", h.Node)
		}
	}
	return nil
}

// takeUse counts one use of a join token. The token must be unchanged: it may have been
// revoked meanwhile, or have admitted its last node, or another one of the same name.
func takeUse(unit *store.Unit, by Admission, now time.Time) {
	unit.Unchanged(by.Token)
	w := store.Write{Kind: mariposa.KindToken, ID: by.Token.ID, Status: &mariposa.TokenStatus{Used: now, From: by.From}}
	spec := *by.Token.Spec()
	spec.Joined++
	w.Spec = &spec
	unit.Put(w)
}

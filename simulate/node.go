package simulate

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mariposa"
	"mariposa/agent"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/fleet"
	"mariposa/simulate/scenario"
	"mariposa/wire"
)

// node is a machine. Its instances keep running when its agent crashes.
type node struct {
	w     *World
	name  string
	world *dummy.World
	dummy *dummy.Driver
	agent *agent.Node
	life  *lifetime
	link  *link
	woken bool
	away  bool          // temporarily cut off from the control plane
	wrong time.Duration // by how much its clock is wrong

	unreached *server            // the one server that it cannot reach for now; nil: it reaches all
	disturbed time.Time          // when something last kept it from its session
	ill       map[string]illness // what is wrong with the checks of its instances

	frontWorld *dummy.World      // the processes of its load balancers
	fronts     map[string]*front // its load balancers, by id
	balancers  *frontDriver
	seen       seenFile
}

// link is one connection of a node, with its messages in flight.
type link struct {
	w        *World
	node     *node
	agent    *agent.Node
	server   *server
	session  *fleet.Session
	opened   time.Time // when the session was stored
	heard    time.Time // when it last received something
	up, down [][]byte
	closed   bool
}

// agentEnd and serverEnd are the two ends of a link.
type (
	agentEnd  struct{ *link }
	serverEnd struct{ *link }
)

func (e agentEnd) Send(f wire.Frame)  { e.up = append(e.up, e.encode(f)) }
func (e serverEnd) Send(f wire.Frame) { e.down = append(e.down, e.encode(f)) }
func (e agentEnd) Close()             { e.cut("the agent hung up") }
func (e agentEnd) Abort()             { e.cut("the agent hung up") }
func (e serverEnd) Close()            { e.cut("the server hung up") }

func (l *link) encode(f wire.Frame) []byte {
	b, err := wire.Encode(f)
	if err != nil {
		l.w.fail("encode a frame: %v", err)
	}
	return b
}

func (n *node) start() {
	n.life = &lifetime{}
	n.disturb()
	clk := wrongClock{worldClock{n.w, n.life}, n.wrong}
	n.dummy, n.balancers = dummy.New(n.world, clk), n.newFrontDriver(clk)
	n.agent = agent.NewNode(agent.Options{
		Hello: wire.Hello{
			Node: n.name, Key: "the secret key of " + n.name, Name: n.name, Dummy: true,
			Capacity: mariposa.Resources{Instances: cmp.Or(n.w.Capacity, 60), Memory: scenario.NodeMemory},
		},
		Drivers: []driver.Driver{countingDriver{n.dummy, n}, n.balancers},
		Clock:   clk, Wake: n.wakeIn(n.life), Spawn: n.life.Go,
		Timeout: 24 * time.Hour, // measured on the real clock, which does not matter here
		Seen:    n.seen.stored, Remember: n.seen.write(n.w),
	})
	if err := n.agent.List(n.w.ctx); err != nil {
		n.w.fail("list the instances of %s: %v", n.name, err)
	}
	n.w.note("%s starts with %d instances", n.name, len(n.ids()))
	n.dialLater()
}

// wakeIn records that the agent has work to do, unless its lifetime is over by then.
func (n *node) wakeIn(l *lifetime) func() {
	return func() { n.woken = n.woken || !l.over }
}

func (n *node) dialLater() {
	a := n.agent
	worldClock{n.w, n.life}.After(time.Duration(50+n.w.rng.IntN(1000))*time.Millisecond, func() {
		if n.link != nil || n.agent != a {
			return
		}
		servers := n.reachable()
		if len(servers) == 0 {
			n.dialLater()
			return
		}
		l := &link{w: n.w, node: n, agent: a, server: servers[n.w.rng.IntN(len(servers))]}
		n.link = l
		n.w.links = append(n.w.links, l)
		n.w.note("%s dials", n.name)
		a.Connected(agentEnd{l})
	})
}

func (n *node) choices(add func(int, func())) {
	if n.agent != nil && n.woken {
		add(10, func() {
			n.woken = false
			n.agent.Step(context.WithoutCancel(n.w.ctx))
			n.w.digestOnly("%s steps", n.name)
		})
	}
}

// crash stops the agent, which restarts later. Its instances keep running.
func (n *node) crash() {
	n.w.seen["agent crash"]++
	n.w.note("agent of %s crashes", n.name)
	n.life.end()
	n.agent, n.woken = nil, false
	n.dummy = dummy.New(n.world, worldClock{n.w, n.life}) // no agent uses them yet
	n.balancers = n.newFrontDriver(wrongClock{worldClock{n.w, n.life}, n.wrong})
	n.link.cut("the agent crashed")
	worldClock{n.w, &lifetime{}}.After(n.w.pause(time.Minute), func() {
		if n.agent == nil {
			n.start()
		}
	})
}

// failInstance makes one instance fail.
func (n *node) failInstance(id string) {
	n.w.note("%s on %s is killed", id[len(id)-4:], n.name)
	n.w.checker.refs.hurt[id] = true
	crash := n.dummy.Crash
	if n.fronts[id] != nil {
		n.w.seen["balancer killed"]++
		crash = n.balancers.inner.Crash
	}
	if err := crash(id); err != nil {
		n.w.note("%s cannot be killed: %v", tail(id), err)
	}
}

// pickVictim picks an instance, preferably one that others refer to.
func (n *node) pickVictim(ids []string) string {
	referred := map[string]bool{}
	for _, r := range n.w.checker.projects {
		st := r.Status()
		if st == nil {
			continue
		}
		for _, ss := range st.Services {
			if ss.Bindings == nil {
				continue
			}
			for _, b := range ss.Bindings.To {
				referred[b.Instance] = true
			}
		}
	}
	if some := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !referred[id] }); len(some) > 0 && n.w.chance(2) {
		n.w.seen["referred to and killed"]++
		return some[n.w.rng.IntN(len(some))]
	}
	return ids[n.w.rng.IntN(len(ids))]
}

// list returns the instances that really exist on the machine.
func (n *node) list() []driver.Observed {
	all, err := n.dummy.List(n.w.ctx)
	if err != nil {
		n.w.fail("list the instances of %s: %v", n.name, err)
	}
	balancers, err := n.balancers.List(n.w.ctx)
	if err != nil {
		n.w.fail("list the load balancers of %s: %v", n.name, err)
	}
	return append(all, balancers...)
}

// ids returns their ids, sorted.
func (n *node) ids() []string {
	all := n.list()
	ids := make([]string, len(all))
	for i, o := range all {
		ids[i] = o.ID
	}
	slices.Sort(ids)
	return ids
}

// leave cuts the node off for some minutes.
func (n *node) leave() {
	n.away = true
	n.w.seen["node lost"]++
	n.w.note("%s is cut off", n.name)
	n.link.cut("the node is cut off")
	worldClock{n.w, &lifetime{}}.After(time.Duration(n.w.rng.IntN(300))*time.Second, n.comeBack)
}

func (n *node) comeBack() {
	if n.away {
		n.away = false
		n.disturb()
		n.w.note("%s is back", n.name)
	}
}

// loseConnection breaks the node's connection.
func (n *node) loseConnection() {
	n.disturb()
	n.link.cut("a fault")
}

// cut ends a link; messages in flight are lost.
func (l *link) cut(why string) {
	if l == nil || l.closed {
		return
	}
	l.closed = true
	l.up, l.down = nil, nil
	l.w.note("link of %s ends: %s", l.node.name, why)
	l.w.links = slices.DeleteFunc(l.w.links, func(o *link) bool { return o == l })
	if l.node.link == l {
		l.node.link = nil
	}
	if l.session != nil && !l.server.life.over {
		l.session.End(why)
	}
	if l.node.agent == l.agent && l.agent != nil {
		l.agent.Disconnected(agentEnd{l})
		l.node.dialLater()
	}
}

func (l *link) choices(add func(int, func())) {
	if len(l.up) > 0 {
		add(10, func() { l.deliver(&l.up, l.toServer) })
	}
	if len(l.down) > 0 {
		add(10, func() { l.deliver(&l.down, l.toAgent) })
	}
}

// deliver delivers the next message. With faults on, the message may be lost or
// duplicated; the sequence numbers of frames must handle that.
func (l *link) deliver(queue *[][]byte, to func(wire.Frame)) {
	b := (*queue)[0]
	switch {
	case l.w.faults && l.w.chance(150):
		*queue = (*queue)[1:]
		l.w.seen["message lost"]++
		l.node.disturb()
		l.w.note("a message of %s is lost", l.node.name)
		return
	case l.w.faults && l.w.chance(60):
		l.w.seen["message doubled"]++
		l.w.note("a message of %s is doubled", l.node.name)
	default:
		*queue = (*queue)[1:]
	}
	f, err := wire.Decode(b)
	if err != nil {
		l.w.fail("decode a frame: %v", err)
	}
	to(f)
}

func (l *link) toServer(f wire.Frame) {
	l.w.noteFrame(f, "%s -> server: %s", l.node.name, describe(f))
	switch {
	case l.session != nil:
		l.heard = l.w.now
		l.session.Receive(f)
	case f.Hello != nil && f.Seq == 1:
		l.server.accept(l, f.Hello)
	}
}

func (l *link) toAgent(f wire.Frame) {
	l.w.noteFrame(f, "server -> %s: %s", l.node.name, describe(f))
	l.agent.Receive(agentEnd{l}, f)
}

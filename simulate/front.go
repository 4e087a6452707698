package simulate

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/balance"
	"mariposa/driver"
	"mariposa/driver/dummy"
)

// Load balancers hang, lie and flap, people change them by hand, and the connections of a
// leaving member may never end.

// front is a load balancer on a machine. It outlives the agent.
type front struct {
	n         *node
	id        string
	servers   []balance.Server        // what it really has
	members   []mariposa.Member       // as its driver was last told
	ours      map[balance.Key]bool    // all members that it was ever given
	shown     []mariposa.MemberStatus // as its driver has last shown them
	idle      map[string]bool         // leaving instances that it has shown without connections
	mood      mood
	failures  int       // rounds in a row without an answer
	disturbed time.Time // when something was last wrong with it
}

// mood is what is wrong with a load balancer.
type mood int

const (
	behaves mood = iota
	hangs        // it does not answer
	lies         // commands have no effect, and what it shows is made up
	flaps        // it answers every now and then
	sticks       // connections never end
	moods
)

const (
	roundInterval = 5 * time.Second // between two looks at a load balancer
	drainInterval = time.Second     // the same while members drain
	patience      = 3               // rounds without an answer until its members count as down
	foreign       = "theirs"        // a server that somebody else has added to each backend
)

// frontDriver is the driver of a node's load balancers, in one lifetime of its agent. It does
// what driver/haproxy does, in virtual time.
type frontDriver struct {
	inner    *dummy.Driver // has their processes
	n        *node
	life     *lifetime
	report   func(driver.Event)
	followed map[string]*front
}

var (
	_ driver.Driver         = (*frontDriver)(nil)
	_ driver.Balancer       = (*frontDriver)(nil)
	_ driver.ValuePublisher = (*frontDriver)(nil)
)

func (n *node) newFrontDriver(clk wrongClock) *frontDriver {
	return &frontDriver{inner: dummy.New(n.frontWorld, clk), n: n, life: n.life, followed: map[string]*front{}}
}

// Compute returns the type of load balancers.
func (*frontDriver) Compute() mariposa.ComputeType { return mariposa.ComputeBalancer }

// Capabilities returns what load balancers can do.
func (*frontDriver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{Mdata: true, Ports: true, Survives: true, Unbounded: true}
}

// Start starts a load balancer with the members that it is told, or with its last ones.
func (d *frontDriver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	_, ran := d.process(i.ID)
	o, err := d.inner.Start(ctx, i)
	if err != nil || !o.Running {
		return o, err
	}
	f := d.n.fronts[i.ID]
	if f == nil {
		f = &front{n: d.n, id: i.ID, ours: map[balance.Key]bool{}, idle: map[string]bool{}}
		d.n.fronts[i.ID] = f
	}
	if i.Members != nil {
		f.tell(i.Members)
	}
	if !ran {
		f.boot()
	}
	d.follow(f)
	return d.complete(o), nil
}

// Update has nothing to do: what can change of a load balancer is in its values and members.
func (d *frontDriver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	o, err := d.inner.Update(ctx, i)
	return d.complete(o), err
}

// Stop stops the process of a load balancer.
func (d *frontDriver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	o, err := d.inner.Stop(ctx, id, timeout)
	return d.complete(o), err
}

// Remove removes a load balancer.
func (d *frontDriver) Remove(ctx context.Context, id string) error {
	err := d.inner.Remove(ctx, id)
	if err == nil {
		delete(d.n.fronts, id)
	}
	return err
}

// List returns the load balancers of the node.
func (d *frontDriver) List(ctx context.Context) ([]driver.Observed, error) {
	all, err := d.inner.List(ctx)
	for i := range all {
		all[i] = d.complete(all[i])
	}
	return all, err
}

// Watch continues with the load balancers that run.
func (d *frontDriver) Watch(report func(driver.Event)) {
	d.report = report
	d.inner.Watch(func(e driver.Event) {
		e.Instance = d.complete(e.Instance)
		report(e)
	})
	all, _ := d.inner.List(d.n.w.ctx) // the agent lists them too
	for _, o := range all {
		if f := d.n.fronts[o.ID]; f != nil && o.Running {
			d.follow(f)
		}
	}
}

// PublishValues keeps the values of a load balancer.
func (d *frontDriver) PublishValues(ctx context.Context, id string, values []mariposa.Variable) error {
	return d.inner.PublishValues(ctx, id, values)
}

// PublishedValues returns the values of a load balancer.
func (d *frontDriver) PublishedValues(ctx context.Context, id string) ([]mariposa.Variable, error) {
	return d.inner.PublishedValues(ctx, id)
}

// Logs fails: there are none.
func (d *frontDriver) Logs(ctx context.Context, id string, o driver.LogOptions) (io.ReadCloser, error) {
	return d.inner.Logs(ctx, id, o)
}

// Usage returns zeros.
func (d *frontDriver) Usage(ctx context.Context, id string) (mariposa.Usage, error) {
	return d.inner.Usage(ctx, id)
}

// Close ends the driver; load balancers keep running.
func (d *frontDriver) Close() error { return d.inner.Close() }

// SetMembers keeps the members that a load balancer should have. It fails now and then.
func (d *frontDriver) SetMembers(_ context.Context, id string, members []mariposa.Member) error {
	f := d.n.fronts[id]
	switch {
	case f == nil:
		return driver.ErrNotFound
	case d.n.w.faults && d.n.w.chance(50):
		d.n.w.seen["members refused"]++
		f.disturb()
		return errors.New("the disk is full")
	}
	f.tell(members)
	d.after(0, func() {
		if _, runs := d.process(id); runs && d.n.fronts[id] == f {
			d.round(f)
		}
	})
	return nil
}

// process returns the process of a load balancer, and whether it runs.
func (d *frontDriver) process(id string) (driver.Observed, bool) {
	all, _ := d.inner.List(d.n.w.ctx) // a dummy can always be listed
	for _, o := range all {
		if o.ID == id {
			return o, o.Running
		}
	}
	return driver.Observed{ID: id}, false
}

// complete adds the members to what is seen of a process.
func (d *frontDriver) complete(o driver.Observed) driver.Observed {
	if f := d.n.fronts[o.ID]; f != nil && o.Running {
		o.Members = f.shown
	}
	return o
}

func (d *frontDriver) after(pause time.Duration, do func()) {
	worldClock{d.n.w, d.life}.After(pause, do)
}

// follow compares a load balancer with what it should be again and again, as long as it runs.
func (d *frontDriver) follow(f *front) {
	if d.followed[f.id] == f {
		return
	}
	d.followed[f.id] = f // perhaps instead of a former one with the same id, which the store has forgotten
	d.next(f, 0)
}

func (d *frontDriver) next(f *front, pause time.Duration) {
	d.after(pause, func() {
		if d.followed[f.id] != f {
			return
		}
		if _, runs := d.process(f.id); !runs || d.n.fronts[f.id] != f {
			delete(d.followed, f.id)
			return
		}
		if d.round(f) {
			d.next(f, drainInterval)
		} else {
			d.next(f, roundInterval)
		}
	})
}

// round looks at a load balancer once, and reports its members if they have changed. It returns
// whether it looks again soon.
func (d *frontDriver) round(f *front) (soon bool) {
	f.passTime()
	statuses, err := f.correct()
	switch {
	case err == nil:
		f.failures = 0
	case f.failures+1 < patience:
		f.failures++
		return true
	default:
		statuses = balance.Statuses(f.members, nil, true)
		for i := range statuses {
			statuses[i].State, statuses[i].Reason = mariposa.MemberDown, err.Error()
		}
	}
	for i := range statuses {
		statuses[i].Connections = 0
	}
	f.noteIdle(statuses)
	d.n.w.digestOnly("a look at %s on %s: %v", tail(f.id), d.n.name, statuses)
	if !slices.Equal(f.shown, statuses) {
		f.shown = statuses
		o, _ := d.process(f.id)
		d.report(driver.Event{Kind: driver.InstanceChanged, Instance: d.complete(o)})
	}
	d.n.w.checker.fronts.check(d.n.w.checker, f)
	return slices.ContainsFunc(statuses, func(m mariposa.MemberStatus) bool { return m.State == mariposa.MemberDrain && !m.Idle })
}

// noteIdle notes the instances that a load balancer shows without connections after it was told
// that they leave.
func (f *front) noteIdle(statuses []mariposa.MemberStatus) {
	for i, m := range statuses { // in the order of the members
		if m.Idle && f.members[i].State == mariposa.MemberDrain {
			f.idle[m.Instance] = true
		}
	}
}

func (f *front) tell(members []mariposa.Member) {
	f.members = slices.Clone(members)
	for i := range members {
		f.ours[balance.KeyOf(&members[i])] = true
	}
}

// boot gives a load balancer that has just started the members of its configuration.
func (f *front) boot() {
	f.servers, f.shown, f.mood = nil, nil, behaves
	f.disturb()
	for _, m := range f.members {
		if m.State == mariposa.MemberUp && m.Address != "" {
			f.servers = append(f.servers, balance.Server{Backend: m.Backend, Name: m.Instance, Address: m.Address, Weight: m.Weight, State: balance.Ready})
		}
	}
	f.servers = append(f.servers, balance.Server{Backend: "other", Name: foreign, Address: "192.0.2.9:80", Weight: 3, State: balance.Drain})
}

// passTime lets connections begin and end.
func (f *front) passTime() {
	for i := range f.servers {
		s := &f.servers[i]
		switch {
		case s.State == balance.Ready && s.Weight > 0:
			s.Connections = f.n.w.rng.IntN(4)
		case f.mood == sticks:
			s.Connections = max(1, s.Connections)
		default:
			s.Connections = f.n.w.rng.IntN(s.Connections + 1)
		}
	}
}

// correct sends a load balancer the commands that it needs, and returns what it shows then.
func (f *front) correct() ([]mariposa.MemberStatus, error) {
	w := f.n.w
	if f.mood == hangs || f.mood == flaps && w.chance(2) {
		return nil, errors.New("does not answer")
	}
	if f.mood == lies {
		shown := slices.Clone(f.servers)
		for i := range shown {
			shown[i].State = []balance.State{balance.Ready, balance.Drain, balance.Maint}[w.rng.IntN(3)]
			shown[i].Connections = w.rng.IntN(2)
		}
		return balance.Statuses(f.members, shown, false), nil
	}
	before := f.countReady()
	least := before
	for _, command := range balance.Commands(f.members, f.servers, f.ours) {
		f.execute(command)
		least = min(least, f.countReady())
	}
	if least < min(before, f.countReady()) {
		w.fail("the commands for %s left it with %d members for a while; it had %d, and has %d", tail(f.id), least, before, f.countReady())
	}
	return balance.Statuses(f.members, f.servers, false), nil
}

func (f *front) countReady() (n int) {
	for _, s := range f.servers {
		if s.State == balance.Ready {
			n++
		}
	}
	return n
}

// execute carries out a command, as HAProxy does.
func (f *front) execute(command string) {
	words := strings.Fields(command)
	backend, name, _ := strings.Cut(words[2], "/")
	at := slices.IndexFunc(f.servers, func(s balance.Server) bool { return s.Backend == backend && s.Name == name })
	number := func(n int) int {
		v, err := strconv.Atoi(words[n])
		if err != nil {
			f.n.w.fail("%q is no command for a load balancer: %v", command, err)
		}
		return v
	}
	switch {
	case words[0] == "add" && at < 0:
		f.servers = append(f.servers, balance.Server{Backend: backend, Name: name, Address: words[3], Weight: number(5), State: balance.Maint})
	case words[0] == "add", at < 0:
		f.n.w.fail("a load balancer refuses %q", command)
	case words[0] == "del" && f.servers[at].State == balance.Maint && f.servers[at].Connections == 0:
		f.servers = slices.Delete(f.servers, at, at+1)
	case words[0] == "del":
		f.n.w.fail("a load balancer refuses %q: it has %d connections, and is %s", command, f.servers[at].Connections, f.servers[at].State)
	case words[3] == "state":
		f.servers[at].State = balance.State(words[4])
	case words[3] == "weight":
		f.servers[at].Weight = number(4)
	case words[3] == "addr":
		f.servers[at].Address = words[4] + ":" + words[6]
	default:
		f.n.w.fail("%q is no command for a load balancer", command)
	}
}

func (f *front) disturb() { f.disturbed = f.n.w.now }

// upset makes a load balancer misbehave for a while.
func (f *front) upset() {
	f.mood = 1 + mood(f.n.w.rng.IntN(int(moods)-1))
	f.n.w.seen[[]string{"", "balancer hangs", "balancer lies", "balancer flaps", "connections never end"}[f.mood]]++
	f.n.w.note("the load balancer %s on %s misbehaves (%d)", tail(f.id), f.n.name, f.mood)
	f.disturb()
	worldClock{f.n.w, &lifetime{}}.After(time.Duration(f.n.w.rng.IntN(120))*time.Second, f.calmDown)
}

func (f *front) calmDown() {
	if f.mood != behaves {
		f.mood = behaves
		f.disturb()
		f.n.w.note("the load balancer %s on %s behaves again", tail(f.id), f.n.name)
	}
}

// meddle changes a member by hand.
func (f *front) meddle() {
	at := f.n.w.rng.IntN(len(f.servers))
	s := &f.servers[at]
	if s.Name == foreign {
		return
	}
	f.n.w.seen["member changed by hand"]++
	f.disturb()
	switch f.n.w.rng.IntN(6) {
	case 0:
		s.State = balance.Maint
	case 1:
		s.State = balance.Drain
	case 2:
		s.State = balance.Ready
	case 3:
		s.Weight = f.n.w.rng.IntN(256)
	case 4:
		s.Address = "192.0.2.1:1"
	case 5:
		f.servers = slices.Delete(f.servers, at, at+1)
	}
	f.n.w.note("somebody changes a member of the load balancer %s on %s", tail(f.id), f.n.name)
}

// sortedFronts returns the load balancers of a node whose processes run, sorted by id.
func (n *node) sortedFronts() (all []*front) {
	list, _ := n.balancers.inner.List(n.w.ctx) // sorted; a dummy can always be listed
	for _, o := range list {
		if f := n.fronts[o.ID]; f != nil && o.Running {
			all = append(all, f)
		}
	}
	return all
}

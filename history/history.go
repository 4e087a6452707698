// Package history remembers for some hours how many instances services should have and had, how
// many were started and failed, and how full nodes were, so that people see it as charts.
//
// It owns this memory, which is bounded, and lost with the process: gaps are gaps. It counts what
// the picture shows, and decides nothing.
package history

import (
	"context"
	"sync"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/picture"
	"mariposa/store"
)

const (
	// Interval is the time between two values.
	Interval = 10 * time.Second
	// Span is how far back values reach.
	Span = 6 * time.Hour

	defaultEntries = 1_000_000       // 50 MB at most
	startLatency   = time.Minute     // within which a start is stored
	dropAtOnce     = 30 * 60 / 10    // intervals, if there are too many entries
	keepSeen       = 2 * time.Minute // longer than startLatency
)

// Service is how a service fared in an interval.
type Service struct {
	Goal     int // instances that should run
	Running  int // instances that ran
	Starts   int // instances that began to run
	Failures int // instances that failed
}

// Node is how full a node was in an interval.
type Node struct {
	Instances int
	MilliCPU  int64 // reserved, as memory
	Memory    int64
}

// Options are what a Recorder needs.
type Options struct {
	Picture *picture.Picture
	Used    func(node string) mariposa.Resources // the resources claimed on a node
	Clock   clock.Clock
	// Entries limits the memory: at most so many changes of values are kept. 1,000,000 if zero.
	Entries int
}

// Recorder remembers. Create it before the picture follows the store.
type Recorder struct {
	Options
	began time.Time

	mu       sync.Mutex
	services map[string]map[string]*series[Service] // by project and name
	nodes    map[string]*series[Node]
	entries  int
	oldest   int32 // nothing earlier is kept
	counts   map[serviceName]counts
	seen     map[string]sighting // starts and failures that were counted, by instance and kind
}

type serviceName struct{ project, name string }

// counts are what has happened since the last sample.
type counts struct{ starts, failures int }

// sighting identifies a start or failure of an instance.
type sighting struct {
	of time.Time // when it was started or finished
	at time.Time // when that was counted
}

// New returns a recorder that counts starts and failures from now on. Run samples the rest.
func New(o Options) *Recorder {
	if o.Entries == 0 {
		o.Entries = defaultEntries
	}
	r := &Recorder{
		Options: o, began: o.Clock.Now(), services: map[string]map[string]*series[Service]{}, nodes: map[string]*series[Node]{},
		counts: map[serviceName]counts{}, seen: map[string]sighting{},
	}
	o.Picture.Subscribe(r.observe)
	return r
}

// Run takes a sample in every interval, until the context ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		r.Sample()
		now := r.Clock.Now()
		next := make(chan struct{})
		cancel := r.Clock.After(now.Truncate(Interval).Add(Interval).Sub(now), func() { close(next) })
		select {
		case <-ctx.Done():
			cancel()
			return
		case <-next:
		}
	}
}

// observe counts starts and failures. A status is stored again when something else in it changes,
// so each is recognized by its time.
func (r *Recorder) observe(changes []store.Change) {
	for i := range changes {
		c := &changes[i]
		if c.Record.Kind != mariposa.KindInstance || (c.Event.Kind != "instance.running" && c.Event.Kind != "instance.failed") {
			continue
		}
		spec, ok := c.Record.Spec.(*mariposa.InstanceSpec)
		st, known := c.Record.Status.(*mariposa.InstanceStatus)
		if !ok || !known || st == nil || !spec.Managed || c.Time.Sub(st.Since) > startLatency {
			continue
		}
		r.count(c.Record.ID, spec, st, c.Time)
	}
}

func (r *Recorder) count(id string, spec *mariposa.InstanceSpec, st *mariposa.InstanceStatus, at time.Time) {
	key, of := "s"+id, st.Started
	if st.State == mariposa.StateFailed {
		key, of = "f"+id, st.Finished
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.seen[key]; ok && was.of.Equal(of) {
		return
	}
	r.seen[key] = sighting{of, at}
	name := serviceName{spec.Project, spec.ServiceName}
	n := r.counts[name]
	if st.State == mariposa.StateFailed {
		n.failures++
	} else {
		n.starts++
	}
	r.counts[name] = n
}

// intervalOf numbers the intervals.
func intervalOf(t time.Time) int32 { return int32(t.Unix() / int64(Interval/time.Second)) }

// Sample records the present. It looks at every instance once, one project after the other.
func (r *Recorder) Sample() {
	now := r.Clock.Now()
	at := intervalOf(now)
	r.mu.Lock()
	happened := r.counts
	r.counts = map[serviceName]counts{}
	r.mu.Unlock()
	nodes, away := r.countNodes()
	services := map[serviceName]Service{}
	for _, p := range r.Picture.Projects.All() {
		r.countServices(p, away, happened, services)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, v := range nodes {
		if r.nodes[id] == nil {
			r.nodes[id] = &series[Node]{}
		}
		r.entries += r.nodes[id].set(at, v)
	}
	for of, v := range services {
		all := r.services[of.project]
		if all == nil {
			all = map[string]*series[Service]{}
			r.services[of.project] = all
		}
		if all[of.name] == nil {
			all[of.name] = &series[Service]{}
		}
		r.entries += all[of.name].set(at, v)
	}
	for key, s := range r.seen {
		if now.Sub(s.at) > keepSeen {
			delete(r.seen, key)
		}
	}
	r.forget(intervalOf(now.Add(-Span)))
	for r.entries > r.Entries && r.oldest < at {
		r.forget(r.oldest + dropAtOnce)
	}
}

func (r *Recorder) countNodes() (all map[string]Node, away map[string]bool) {
	all, away = map[string]Node{}, map[string]bool{}
	for _, n := range r.Picture.Nodes.All() {
		if st := n.Status(); st == nil || st.State.IsAway() {
			away[n.ID] = true
		}
		used := r.Used(n.ID)
		all[n.ID] = Node{Instances: r.Picture.CountOn(n.ID), MilliCPU: used.MilliCPU, Memory: used.Memory}
	}
	return all, away
}

func (r *Recorder) countServices(p *store.Project, away map[string]bool, happened map[serviceName]counts, into map[serviceName]Service) {
	st := p.Status()
	if st == nil {
		return // nothing is planned yet
	}
	running := map[string]int{}
	r.Picture.EachInstanceOf(p.ID, func(i *store.Instance) bool {
		if spec := i.Spec(); spec.Managed && !spec.Kept && !away[spec.Node] && mariposa.StateOf(spec, i.Status()) == mariposa.StateRunning {
			running[spec.ServiceName]++
		}
		return true
	})
	for name, s := range st.Services {
		of := serviceName{p.ID, name}
		one := Service{Goal: s.Scale, Running: running[name], Starts: happened[of].starts, Failures: happened[of].failures}
		if s.Removed {
			one.Goal = 0
		}
		into[of] = one
	}
}

// forget drops everything before an interval.
func (r *Recorder) forget(before int32) {
	if before <= r.oldest {
		return
	}
	r.oldest = before
	for project, all := range r.services {
		for name, s := range all {
			if r.entries -= s.trim(before); len(s.runs) == 0 {
				delete(all, name)
			}
		}
		if len(all) == 0 {
			delete(r.services, project)
		}
	}
	for id, s := range r.nodes {
		if r.entries -= s.trim(before); len(s.runs) == 0 {
			delete(r.nodes, id)
		}
	}
}

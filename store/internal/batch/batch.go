package batch

import "mariposa/store"

// Batch is the work for one group.
type Batch struct {
	queue *Queue
	parts []part
	size  int
}

// part is a range of units of one job.
type part struct {
	job      *job
	from, to int
}

// Keys visits every object that the batch reads or writes, some several times.
func (b *Batch) Keys(visit func(Key)) {
	for _, p := range b.parts {
		if p.job.action != nil {
			continue
		}
		for _, u := range p.job.units[p.from:p.to] {
			for i := range u.Require {
				visit(Key{u.Require[i].Kind, u.Require[i].ID})
			}
			for i := range u.Writes {
				visit(Key{u.Writes[i].Kind, u.Writes[i].ID})
			}
		}
	}
}

// Leases visits every lease that the batch reads, some several times, and says whether
// the batch may change it.
func (b *Batch) Leases(visit func(name string, change bool)) {
	for _, p := range b.parts {
		for _, name := range p.job.leases {
			visit(name, true)
		}
		if p.job.action != nil {
			continue
		}
		for _, u := range p.job.units[p.from:p.to] {
			for i := range u.Fences {
				visit(u.Fences[i].Lease, false)
			}
		}
	}
}

// Nodes visits every node that the batch has claims on, some several times.
func (b *Batch) Nodes(visit func(string)) {
	for _, p := range b.parts {
		if p.job.action != nil {
			continue
		}
		for _, u := range p.job.units[p.from:p.to] {
			for i := range u.Claims {
				visit(u.Claims[i].Node)
			}
		}
	}
}

// Audits reports whether the batch may add to the audit log.
func (b *Batch) Audits() bool {
	for _, p := range b.parts {
		if p.job.action != nil {
			continue
		}
		for i := p.from; i < p.to; i++ {
			if len(p.job.units[i].Entries) > 0 {
				return true
			}
		}
	}
	return false
}

// Apply applies the batch to a group.
func (b *Batch) Apply(g *Group) {
	for _, p := range b.parts {
		if p.job.action != nil {
			p.job.results[0].Err = p.job.action(g)
			continue
		}
		for i := p.from; i < p.to; i++ {
			p.job.results[i] = g.Apply(&p.job.units[i])
		}
	}
}

// Done passes the results to the callers. An error goes to all of them, whatever the
// results of their units in the group: those were computed on top of other units that
// are not committed now.
func (b *Batch) Done(err error) {
	b.queue.mu.Lock()
	defer b.queue.mu.Unlock()
	for _, p := range b.parts {
		if err != nil {
			for i := p.from; i < p.to; i++ {
				p.job.results[i] = store.Result{Err: err}
			}
		}
		p.job.inFlight = false
		if p.job.dropped || p.job.taken == len(p.job.results) {
			close(p.job.done)
		}
	}
}

// Package health checks instances: it runs their health checks next to them, decides from
// the results whether an instance is healthy, and says why it is not. The agent runs a
// checker for the instances of its node; the stand-alone health agent runs the same one for
// a project.
//
// The package owns when a check runs, how many failures count, and what a failure is called.
// It does not know what follows from a change of health.
package health

import (
	"cmp"
	"context"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/clock"
)

// Target is where an instance is checked.
type Target struct {
	Instance string            // its id
	Service  string            // what it belongs to: failures of one service alone do not mean that the checker's network is down
	Address  string            // its first address; empty if it has none
	Networks map[string]string // its address in each network
	Ports    map[int]string    // ports that are reached elsewhere than at Address: at this address and port
	Via      any               // how the owner of the checker reaches the instance; for its prober
}

// project returns the project of the instance.
func (at Target) project() string {
	project, _, _ := strings.Cut(at.Service, "/")
	return project
}

// Prober runs a check once. It returns nil if the check passes, an *Inconclusive if nothing
// can be said, and another error that completes a sentence about the check if it fails:
// "answered 503".
type Prober func(ctx context.Context, at Target, c *mariposa.HealthCheck) error

// Subject is an instance to be checked.
type Subject struct {
	Target
	Checks []mariposa.HealthCheck
	Grace  time.Duration // how long it may take to pass for the first time
	Since  time.Time     // when it was started
	// Served: its checks have passed in this run, before this checker knew it.
	Served bool
	// Known are the results of its checks that an earlier checker had.
	Known []mariposa.CheckStatus
}

// Status is the health of an instance.
type Status struct {
	Health mariposa.Health
	Served bool // its checks have passed in this run
	Checks []mariposa.CheckStatus
	Reason string // why it is unhealthy
}

// Checker runs the checks of many instances. It is part of an actor: its methods are called
// on the actor's loop, and it calls Report there.
type Checker struct {
	Clock     clock.Clock
	Probe     Prober
	Post      func(func())              // runs a function on the loop
	Spawn     func(func())              // runs a probe off the loop
	Report    func(id string, s Status) // the status of an instance has changed
	Limit     int                       // how many probes run at once; DefaultLimit if zero. One project gets a quarter of them
	Base      func() context.Context    // ends with the actor
	subjects  map[string]*subject
	running   int
	projects  map[string]*queue // with checks that run or wait
	turns     []*queue          // those with checks that wait, in their order
	networked int               // checks that use the network
	silent    int               // those of them that get no answer
}

// DefaultLimit is how many probes run at once.
const DefaultLimit = 512

// queue holds the checks of one project.
type queue struct {
	project string
	running int
	waiting []*track
}

// subject is an instance that is checked.
type subject struct {
	Subject
	tracks []*track
	status Status
	gone   bool
}

// Watch starts to check an instance, or continues with changed checks or addresses. Checks
// that have not changed keep their results unless the instance was restarted.
func (c *Checker) Watch(s Subject) {
	if c.subjects == nil {
		c.subjects = map[string]*subject{}
	}
	old := c.subjects[s.Instance]
	restarted := old != nil && !old.Since.Equal(s.Since)
	if old != nil && !restarted {
		s.Served = s.Served || old.status.Served
	}
	next := &subject{Subject: s, status: Status{Served: s.Served}}
	first := &grace{}
	for n := range s.Checks {
		next.tracks = append(next.tracks, c.trackOf(old, next, n, restarted, first))
	}
	if slices.ContainsFunc(next.tracks, func(t *track) bool { return t.grace == first && !t.hasPassed }) {
		c.startGrace(first, &s)
	}
	if old != nil {
		c.drop(old)
		if !restarted {
			next.status = old.status
		}
	}
	c.subjects[s.Instance] = next
	for _, t := range next.tracks {
		c.count(t, 1)
		c.schedule(t, t.firstPause())
	}
	c.review(next)
}

// startGrace lets a grace end when its time has passed. A timer measures it, because the clock may
// be set meanwhile.
func (c *Checker) startGrace(g *grace, s *Subject) {
	left := s.Grace
	if !s.Served { // a check that is new to a running instance gets its own grace
		left -= min(max(0, c.Clock.Now().Sub(s.Since)), s.Grace)
	}
	if g.isOver = left <= 0; !g.isOver {
		c.Clock.After(left, func() { c.Post(func() { g.isOver = true }) })
	}
}

// trackOf returns the track of a check: the one that it had, if the same check was there
// before. A check that is new has the first grace.
func (c *Checker) trackOf(old, of *subject, n int, restarted bool, first *grace) *track {
	def := &of.Checks[n]
	t := &track{def: def, of: of, seed: seedOf(of.Instance, n), grace: first, since: c.Clock.Now(), health: mariposa.HealthStarting, cancel: func() {}, abort: func() {}}
	if old == nil || restarted {
		t.isHeir = of.Served
		t.recall(of.Known, n)
		return t
	}
	for _, o := range old.tracks {
		if sameCheck(o.def, def) {
			t.record, t.isHeir = o.record, true
			t.grace, t.since, t.health = o.grace, o.since, o.health
			break
		}
	}
	return t
}

// Forget ends the checks of an instance.
func (c *Checker) Forget(id string) {
	s := c.subjects[id]
	if s == nil {
		return
	}
	c.drop(s)
	delete(c.subjects, id)
}

func (c *Checker) drop(s *subject) {
	s.gone = true
	for _, t := range s.tracks {
		t.cancel()
		t.abort()
		c.count(t, -1)
	}
}

// Statuses returns the status of each instance, by id.
func (c *Checker) Statuses() map[string]Status {
	all := make(map[string]Status, len(c.subjects))
	for id, s := range c.subjects {
		all[id] = s.status
	}
	return all
}

// schedule runs a check after a pause.
func (c *Checker) schedule(t *track, pause time.Duration) {
	t.cancel = c.Clock.After(pause, func() { c.Post(func() { c.begin(t) }) })
}

// begin runs a check now, or once others have ended. The checks of one project get a part of
// all probes, so that instances that do not answer cannot delay the checks of others.
func (c *Checker) begin(t *track) {
	if t.of.gone {
		return
	}
	q := c.queueOf(t)
	if q.waiting = append(q.waiting, t); len(q.waiting) == 1 {
		c.turns = append(c.turns, q)
	}
	c.runWaiting()
}

// queueOf returns the queue of a check's project.
func (c *Checker) queueOf(t *track) *queue {
	project := t.of.project()
	q := c.projects[project]
	if q == nil {
		if c.projects == nil {
			c.projects = map[string]*queue{}
		}
		q = &queue{project: project}
		c.projects[project] = q
	}
	return q
}

// runWaiting runs checks that wait, one of each project in turn.
func (c *Checker) runWaiting() {
	limit := cmp.Or(c.Limit, DefaultLimit)
	share := max(1, limit/4)
	for full := 0; c.running < limit && full < len(c.turns); {
		q := c.turns[0]
		c.turns = c.turns[1:]
		if q.running >= share {
			c.turns = append(c.turns, q)
			full++
			continue
		}
		t := q.waiting[0]
		if q.waiting = q.waiting[1:]; len(q.waiting) > 0 {
			c.turns = append(c.turns, q)
		}
		full = 0
		if !t.of.gone {
			c.run(t, q)
		} else if q.isEmpty() {
			delete(c.projects, q.project)
		}
	}
}

func (q *queue) isEmpty() bool { return q.running == 0 && len(q.waiting) == 0 }

func (c *Checker) run(t *track, q *queue) {
	c.running++
	q.running++
	begun, def, at := c.Clock.Now(), t.def, t.of.Target
	ctx, cancel := context.WithTimeout(c.Base(), def.Timeout)
	t.abort = cancel
	c.Spawn(func() {
		err := c.Probe(ctx, at, def)
		cancel()
		c.Post(func() { c.end(t, q, begun, err) })
	})
}

// end handles the result of a check.
func (c *Checker) end(t *track, q *queue, begun time.Time, err error) {
	c.running--
	if q.running--; q.isEmpty() {
		delete(c.projects, q.project)
	}
	c.runWaiting()
	if t.of.gone {
		return
	}
	now := c.Clock.Now()
	if err != nil && now.Sub(begun) > 2*t.def.Timeout+time.Second { // this process was stopped meanwhile, or had no time to run
		err = &Inconclusive{Reason: "this node was too busy to check"}
	}
	before := t.result()
	c.count(t, -1)
	t.note(err, now)
	c.count(t, 1)
	if t.isSilent && c.isCutOff() {
		t.hold("all checks of this node get no answer, so its own network may be down")
	}
	if t.result() != before {
		c.review(t.of)
	}
	c.schedule(t, t.pause())
}

// isCutOff reports whether no check that uses the network gets any answer, of several
// services: then the network of this node is the likely cause.
func (c *Checker) isCutOff() bool {
	if c.silent < c.networked {
		return false
	}
	service := ""
	for _, s := range c.subjects {
		if !slices.ContainsFunc(s.tracks, (*track).usesNetwork) {
			continue
		}
		if service != "" && s.Service != service {
			return true
		}
		service = s.Service
	}
	return false
}

// count adds a check to the numbers of those that use the network and of those that get no
// answer, or takes it out.
func (c *Checker) count(t *track, by int) {
	if !t.usesNetwork() {
		return
	}
	c.networked += by
	if t.isSilent {
		c.silent += by
	}
}

// review reports the status of an instance if it has changed.
func (c *Checker) review(s *subject) {
	next := s.judge()
	if sameStatus(s.status, next) {
		return
	}
	s.status = next
	c.Report(s.Instance, next)
}

// wasHealthy reports whether the instance was healthy before, or is new to this checker. One that
// failed has to pass its checks first, even if they are others now.
func (s *subject) wasHealthy() bool {
	return s.status.Health != mariposa.HealthUnhealthy && s.status.Health != mariposa.HealthStarting
}

// judge returns the status of an instance from the results of its checks. An instance that
// has served stays healthy until a check fails.
func (s *subject) judge() Status {
	next := Status{Health: mariposa.HealthHealthy, Served: s.status.Served}
	if len(s.tracks) == 0 {
		next.Health = mariposa.HealthUnknown
	}
	for _, t := range s.tracks {
		next.Checks = append(next.Checks, mariposa.CheckStatus{Name: t.def.Name(), Health: t.health, Passed: t.hasPassed, Reason: t.reason, Since: t.since})
		switch {
		case t.health == mariposa.HealthUnhealthy && next.Health != mariposa.HealthUnhealthy:
			next.Health, next.Reason = mariposa.HealthUnhealthy, t.def.Name()+" "+t.reason
		case t.health == mariposa.HealthStarting && next.Health == mariposa.HealthHealthy && (!next.Served || !s.wasHealthy()):
			next.Health = mariposa.HealthStarting
		}
	}
	next.Served = next.Served || next.Health == mariposa.HealthHealthy
	return next
}

// sameStatus reports whether two statuses say the same to people and planners. Reasons change
// with each attempt, so only the first one of a check that has not passed yet is reported.
func sameStatus(a, b Status) bool {
	return a.Health == b.Health && a.Served == b.Served && slices.EqualFunc(a.Checks, b.Checks, func(a, b mariposa.CheckStatus) bool {
		explains := a.Health != mariposa.HealthStarting || (a.Reason == "") == (b.Reason == "")
		return a.Name == b.Name && a.Health == b.Health && a.Passed == b.Passed && a.Since.Equal(b.Since) && explains
	})
}

func sameCheck(a, b *mariposa.HealthCheck) bool {
	return a.Type == b.Type && a.Port == b.Port && a.Network == b.Network && a.Path == b.Path && slices.Equal(a.Command, b.Command) && a.User == b.User &&
		a.Insecure == b.Insecure && slices.Equal(a.ExpectStatus, b.ExpectStatus) && slices.Equal(a.ExpectHeaders, b.ExpectHeaders) && a.ExpectBody == b.ExpectBody
}

// seedOf returns a number by which the checks of many instances are spread in time.
func seedOf(id string, n int) uint32 {
	h := fnv.New32a()
	h.Write([]byte(id + "/" + strconv.Itoa(n)))
	return h.Sum32()
}

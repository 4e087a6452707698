// Package healthagent is the stand-alone health agent: it runs the health checks of one project
// from where it is, for example from inside the project's network, and serves the results. The
// agents of the nodes decide what is healthy; this one shows what a client of the project sees.
//
// It knows the server only through the client, as any user's program does.
package healthagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/contract"
	"mariposa/health"
	"mariposa/mailbox"
	"mariposa/manifest"
)

// Source is the server that knows the definitions. client.Client is one.
type Source interface {
	HealthChecks(ctx context.Context, project, service string) (*contract.HealthChecks, error)
	Version(ctx context.Context, project, version string) (*contract.Version, error)
}

// readTimeout bounds one reading of the definitions.
const readTimeout = 30 * time.Second

// Agent checks the instances of one project.
type Agent struct {
	Source  Source
	Project string
	Every   time.Duration // how often the definitions are read

	loop    *mailbox.Box[func()]
	woken   chan struct{}
	checker *health.Checker
	watched map[string]health.Subject // what the checker was told; used by the loop alone
	reading chan struct{}             // held while the definitions are read

	mu       sync.Mutex
	services []contract.ServiceChecks
	seen     map[string]time.Time     // when each instance was first seen
	results  map[string]health.Status // of each instance
	readAt   time.Time
	err      error // why the last reading failed
}

// New returns an agent that is not running yet.
func New(source Source, project string, every time.Duration) *Agent {
	a := &Agent{
		Source: source, Project: project, Every: every, woken: make(chan struct{}, 1), reading: make(chan struct{}, 1),
		seen: map[string]time.Time{}, results: map[string]health.Status{},
	}
	a.loop = mailbox.New[func()](func() {
		select {
		case a.woken <- struct{}{}:
		default:
		}
	})
	return a
}

// Run reads the definitions, runs the checks and reads the definitions again from time to time,
// until ctx ends.
func (a *Agent) Run(ctx context.Context) {
	a.checker = &health.Checker{
		Clock: clock.Real{}, Probe: probe, Post: func(f func()) { a.loop.Put(f) }, Report: a.report,
		Spawn: health.NewWorkers().Run,
		Base:  func() context.Context { return ctx },
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for tick := time.NewTicker(a.Every); ; {
			if err := a.Update(ctx); err != nil && ctx.Err() == nil {
				slog.Warn("cannot read the health checks; it is tried again", "project", a.Project, "err", err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	})
	defer reader.Wait()
	for {
		select {
		case <-a.woken:
			for _, f := range a.loop.Take() {
				f()
			}
		case <-ctx.Done():
			return
		}
	}
}

// Update reads the definitions now.
func (a *Agent) Update(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	select {
	case a.reading <- struct{}{}:
		defer func() { <-a.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	doc, err := a.Source.HealthChecks(ctx, a.Project, "")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err = err; err != nil {
		return err
	}
	a.services, a.readAt = doc.Services, time.Now()
	wanted := map[string]health.Subject{}
	for _, s := range a.services {
		for _, i := range s.Instances {
			if i.State != mariposa.StateRunning {
				continue
			}
			subject, err := a.subject(s, i)
			if err != nil {
				return err
			}
			wanted[i.Instance] = subject
		}
	}
	maps.DeleteFunc(a.seen, func(id string, _ time.Time) bool { _, is := wanted[id]; return !is })
	maps.DeleteFunc(a.results, func(id string, _ health.Status) bool { _, is := wanted[id]; return !is })
	a.loop.Put(func() { a.watch(wanted) })
	return nil
}

// watch checks these instances and no others.
func (a *Agent) watch(wanted map[string]health.Subject) {
	for id := range a.checker.Statuses() {
		if _, is := wanted[id]; !is {
			a.checker.Forget(id)
		}
	}
	for id, s := range wanted {
		if !reflect.DeepEqual(a.watched[id], s) {
			a.checker.Watch(s)
		}
	}
	a.watched = wanted
}

func (a *Agent) report(id string, s health.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.results[id] = s
}

// subject returns how an instance is checked. The caller holds the lock.
func (a *Agent) subject(s contract.ServiceChecks, i contract.InstanceHealth) (health.Subject, error) {
	if a.seen[i.Instance].IsZero() {
		a.seen[i.Instance] = time.Now()
	}
	subject := health.Subject{
		Target: health.Target{Instance: i.Instance, Service: s.Service, Ports: map[int]string{}},
		Grace:  seconds(s.Grace), Since: a.seen[i.Instance],
	}
	for n, address := range i.Addresses {
		host, _, err := net.SplitHostPort(address)
		if err == nil && n < len(s.Ports) && len(i.Addresses) == len(s.Ports) {
			subject.Ports[s.Ports[n]] = address
		}
		subject.Address = cmp.Or(subject.Address, cmp.Or(host, address))
	}
	for _, c := range s.HealthChecks {
		check, err := checkOf(c)
		if err != nil {
			return subject, fmt.Errorf("the server sent a health check of %s that this agent does not understand: %w", s.ServiceName, err)
		}
		subject.Checks = append(subject.Checks, check)
	}
	return subject, nil
}

// checkOf returns a check as the checker knows it.
func checkOf(c contract.HealthCheck) (mariposa.HealthCheck, error) {
	check := mariposa.HealthCheck{
		Type: c.Type, Port: c.Port, Network: c.Network, Path: c.Path, Command: c.Command, User: c.User, Insecure: c.Verify != nil && !*c.Verify,
		Poll: seconds(c.Poll), UnhealthyPoll: seconds(c.UnhealthyPoll), Timeout: seconds(c.Timeout), Retries: c.Retries,
	}
	if c.Expect == nil {
		return check, nil
	}
	check.ExpectBody = c.Expect.Body
	for _, name := range slices.Sorted(maps.Keys(c.Expect.Headers)) {
		check.ExpectHeaders = append(check.ExpectHeaders, mariposa.Variable{Name: name, Value: c.Expect.Headers[name]})
	}
	for _, text := range c.Expect.Status {
		r, err := mariposa.ParseStatusRange(text)
		if err != nil {
			return check, err
		}
		check.ExpectStatus = append(check.ExpectStatus, r)
	}
	return check, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// probe runs a check over the network.
func probe(ctx context.Context, at health.Target, c *mariposa.HealthCheck) error {
	if why := obstacle(c.Type, c.Path, c.Network); why != "" {
		return &health.Inconclusive{Reason: why}
	}
	return health.ProbeNetwork(ctx, at, c)
}

// obstacle returns why this agent cannot run a check; empty if it can.
func obstacle(kind, path, network string) string {
	refs, err := manifest.References(path)
	switch {
	case kind == mariposa.CheckCommand:
		return "it runs inside the instance, so only the agent of its node can run it"
	case err != nil || len(refs) > 0:
		return "its path contains interpolations, which only the agent of its node can resolve"
	case network != "":
		return "it is about the address in a network, which only the agent of its node knows"
	}
	return ""
}

// find returns the check with an id; an error if there is none.
func (a *Agent) find(id string) (contract.ServiceChecks, int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.services {
		for n := range s.HealthChecks {
			if idOf(s, n) == id {
				return s, n, nil
			}
		}
	}
	return contract.ServiceChecks{}, 0, errUnknown
}

var errUnknown = errors.New("there is no health check with this id; GET /v1/healthchecks lists them")

// idOf returns the id of a check: its service and its number there.
func idOf(s contract.ServiceChecks, n int) string { return s.ServiceName + "-" + strconv.Itoa(n+1) }

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/health"
	"mariposa/wire"
)

// The health checks of an instance run while it runs. When they fail, it is restarted in
// place if its restart policy allows that; otherwise its health is reported, and the control
// plane decides.

// watched is what the checker was told about an instance.
type watched struct {
	digest    string // of its checks; empty: it is not checked
	started   time.Time
	addresses []string
}

// passedChecks names checks that have passed.
type passedChecks struct {
	digest string // of the checks of the instance
	names  []string
}

func (n *Node) newChecker() *health.Checker {
	workers := health.NewWorkers()
	return &health.Checker{
		Clock: n.Clock, Post: n.post, Probe: n.probe, Report: n.setHealth,
		Base: func() context.Context { return context.WithoutCancel(n.stepCtx) },
		Spawn: func(f func()) {
			if n.Spawn != nil {
				n.Spawn(f)
				return
			}
			workers.Run(f)
		},
	}
}

// assignChecks sets the health checks of an instance.
func (n *Node) assignChecks(id, digest string, checks *wire.Checks) {
	i := n.instances[id]
	if i == nil || i.checksDigest == digest {
		return
	}
	if checks == nil {
		digest = ""
	}
	i.checks, i.checksDigest = checks, digest
	n.dirtyInstances[id] = struct{}{}
}

// updateChecks starts and ends the checks of the instances that have changed.
func (n *Node) updateChecks() {
	for id := range n.dirtyInstances {
		if i := n.instances[id]; i != nil {
			n.updateChecksOf(i)
		}
	}
}

func (n *Node) updateChecksOf(i *instance) {
	running := i.status.State == mariposa.StateRunning
	if i.checks == nil || !running || i.foreign {
		if i.watched.digest != "" || i.status.Health != "" {
			n.checker.Forget(i.id)
			i.forgetHealth()
		}
		i.ranUnchecked = running
		return
	}
	w := watched{i.checksDigest, i.status.Started, i.status.Addresses}
	if w.digest == i.watched.digest && w.started.Equal(i.watched.started) && slices.Equal(w.addresses, i.watched.addresses) {
		return
	}
	first := i.watched.digest == ""
	if !first && !w.started.Equal(i.watched.started) { // another run
		i.forgetHealth()
	}
	i.watched = w
	if first && i.status.Served {
		i.notePassed()
	}
	i.status.ChecksDigest, _, _ = strings.Cut(w.digest, ".") // what follows depends on values, which may be secret
	i.hasServed = i.hasServed || first && i.status.Served
	hasServed := i.status.Served && i.status.Health != mariposa.HealthStarting // in this run
	s := health.Subject{Target: n.checkTarget(i), Checks: i.checks.List, Grace: i.checks.Grace, Since: i.status.Started, Served: hasServed || i.ranUnchecked}
	i.ranUnchecked = false
	if first { // the agent was restarted, perhaps
		s.Known = i.status.Checks
	}
	n.checker.Watch(s)
}

// forgetHealth removes what earlier checks have found.
func (i *instance) forgetHealth() {
	if i.status.Health == mariposa.HealthUnhealthy && i.status.State == mariposa.StateRunning {
		i.status.Reason = ""
	}
	i.watched = watched{}
	i.status.Health, i.status.Served, i.status.Checks, i.status.ChecksDigest = "", false, nil, ""
}

// checkTarget returns where an instance is checked. The driver reports one address for each of
// its ports, in their order.
func (n *Node) checkTarget(i *instance) health.Target {
	t := health.Target{
		Instance: i.id, Service: i.desired.Project + "/" + i.desired.Service,
		Via: streamTarget{n.driverInstance(i), i.compute, n.lane(i.compute).driver, i.foreign || i.toQuarantine},
	}
	if len(i.status.Addresses) == 0 {
		return t
	}
	for _, join := range i.desired.Networks {
		if address := i.status.Details[mariposa.NetworkDetail(join.Attachment)]; address != "" {
			if t.Networks == nil {
				t.Networks = map[string]string{}
			}
			t.Networks[join.Name] = address
		}
	}
	t.Address = i.status.Addresses[0]
	if host, _, err := net.SplitHostPort(t.Address); err == nil {
		t.Address = host
	}
	if i.workload == nil || len(i.workload.Ports) != len(i.status.Addresses) {
		return t
	}
	t.Ports = map[int]string{}
	for k, p := range i.workload.Ports {
		if _, _, err := net.SplitHostPort(i.status.Addresses[k]); err == nil {
			t.Ports[p.Target] = i.status.Addresses[k]
		}
	}
	return t
}

// setHealth handles a change of an instance's health.
func (n *Node) setHealth(id string, s health.Status) {
	i := n.instances[id]
	if i == nil || i.status.State != mariposa.StateRunning {
		return
	}
	wasUnhealthy := i.status.Health == mariposa.HealthUnhealthy
	i.status.Health, i.status.Served, i.status.Checks = s.Health, s.Served || i.hasServed, i.withPassed(s.Checks)
	n.dirtyInstances[id] = struct{}{}
	if s.Health == mariposa.HealthHealthy {
		i.isRecovering, i.ailment = false, ""
	}
	if s.Health != mariposa.HealthUnhealthy {
		if wasUnhealthy {
			i.status.Reason = ""
		}
		return
	}
	i.status.Reason, i.ailment = s.Reason, s.Reason
	if !wasUnhealthy {
		n.restartUnhealthy(i, s.Reason)
	}
}

// restartUnhealthy restarts an instance in place whose checks fail, if its restart policy
// allows that. Only one instance of a service is restarted at a time: if several fail, the
// cause is probably something that all of them need, and the control plane decides. An
// instance that was healthy before still counts as one that has served.
func (n *Node) restartUnhealthy(i *instance, why string) {
	if i.desired.Goal != mariposa.GoalRunning || i.workload == nil || i.desired.Frozen || i.inOperation || n.isAnotherRecovering(i) {
		return
	}
	if i.isRecovering = n.mayRestart(i, driver.Observed{}); !i.isRecovering {
		return
	}
	i.hasServed = i.status.Served
	i.notePassed()
	i.restarts = append(i.restarts, n.Clock.Now())
	i.status.Restarts++
	i.restartReason = "restarted because it was not healthy: " + why
	n.pursue(i)
}

// notePassed remembers which checks have passed: a restart does not make them checks that never
// passed, for which nothing is replaced.
func (i *instance) notePassed() {
	i.hadPassed = passedChecks{digest: i.status.ChecksDigest}
	for _, c := range i.status.Checks {
		if c.Passed {
			i.hadPassed.names = append(i.hadPassed.names, c.Name)
		}
	}
}

// withPassed completes results of checks with what was known before the instance was restarted.
func (i *instance) withPassed(checks []mariposa.CheckStatus) []mariposa.CheckStatus {
	if len(i.hadPassed.names) == 0 || i.hadPassed.digest != i.status.ChecksDigest {
		return checks
	}
	checks = slices.Clone(checks)
	for n := range checks {
		checks[n].Passed = checks[n].Passed || slices.Contains(i.hadPassed.names, checks[n].Name)
	}
	return checks
}

// isAnotherRecovering reports whether another instance of the same service was restarted
// because of its health and is not healthy yet.
func (n *Node) isAnotherRecovering(i *instance) bool {
	for _, o := range n.instances {
		if o != i && o.isRecovering && o.desired.Goal == mariposa.GoalRunning && o.desired.Project == i.desired.Project && o.desired.Service == i.desired.Service {
			return true
		}
	}
	return false
}

// probe runs a health check: in the instance, or over the network.
func (n *Node) probe(ctx context.Context, at health.Target, c *mariposa.HealthCheck) error {
	in := at.Via.(streamTarget)
	if p, ok := in.driver.(driver.Prober); ok {
		return p.Probe(ctx, at.Instance, c)
	}
	switch {
	case c.Type == mariposa.CheckCommand:
		return probeCommand(ctx, in, c)
	case n.Probe != nil:
		return n.Probe(ctx, at, c)
	}
	return health.ProbeNetwork(ctx, at, c)
}

// maxCheckOutput is how much of the output of a check is read.
const maxCheckOutput = 4 << 10

// probeCommand runs a check as a command in the instance. It passes with the exit code 0.
func probeCommand(ctx context.Context, in streamTarget, c *mariposa.HealthCheck) error {
	d, ok := in.driver.(driver.Execer)
	if !ok {
		return &health.Inconclusive{Reason: "instances of this compute type cannot run commands"}
	}
	session, err := d.Exec(ctx, in.instance, driver.ExecOptions{Command: c.Command, User: c.User})
	var fault *driver.CommandError
	switch {
	case errors.As(err, &fault):
		return fmt.Errorf("cannot be run: %w", err)
	case err != nil:
		return &health.Inconclusive{Reason: err.Error()}
	}
	defer session.Close()
	_ = session.CloseWrite() // it has no input; if it has ended already, that is fine
	output := readOutput(session)
	code, err := session.Wait()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("did not end within %s s", strconv.FormatFloat(c.Timeout.Seconds(), 'f', -1, 64))
	case err != nil:
		return &health.Inconclusive{Reason: err.Error()}
	case code != 0:
		return fmt.Errorf("exited with code %d%s", code, lastLine(output))
	}
	return nil
}

// readOutput reads what a command writes and returns the beginning of it: of its standard
// output, then of its standard error. Both are read at once, because a command that cannot
// write does not end.
func readOutput(session driver.Session) []byte {
	read := func(r io.Reader) []byte {
		output, _ := io.ReadAll(io.LimitReader(r, maxCheckOutput)) // what there is will do
		_, _ = io.Copy(io.Discard, r)                              // likewise
		return output
	}
	var errs []byte
	var both sync.WaitGroup
	if r := session.Stderr(); r != nil {
		both.Go(func() { errs = read(r) })
	}
	output := read(session.Stdout())
	both.Wait()
	return append(output, errs...)
}

// lastLine returns the last line of a check's output, as the end of a sentence.
func lastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	last := health.Shorten(lines[len(lines)-1])
	if last == "" {
		return ""
	}
	return ": " + last
}

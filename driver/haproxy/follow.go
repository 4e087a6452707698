package haproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mariposa"
	"mariposa/balance"
	"mariposa/driver"
)

// drainInterval is how often a balancer is looked at while members drain.
const drainInterval = 100 * time.Millisecond

// patience is in how many rounds in a row a balancer may fail to answer before its members count
// as down.
const patience = 3

// follow starts the loop of a balancer, unless it has one.
func (d *Driver) follow(e *entry) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	e.mu.Lock()
	if e.stop != nil || closed {
		e.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(d.gate.Context())
	e.stop, e.failures = cancel, 0
	e.mu.Unlock()
	d.gate.Go(func() {
		defer cancel()
		for {
			next := d.options.Interval
			if d.round(ctx, e) {
				next = drainInterval
			}
			timer := time.NewTimer(next)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-e.wake:
			case <-timer.C:
			}
			timer.Stop()
		}
	})
}

// round compares a balancer with what it should be, once, and reports its members if they have
// changed. It returns whether members drain.
func (d *Driver) round(ctx context.Context, e *entry) (drains bool) {
	e.work.Lock()
	defer e.work.Unlock()
	begun := time.Now()
	statuses, err := d.correct(ctx, e)
	if ctx.Err() != nil {
		return false
	}
	e.mu.Lock()
	if err != nil {
		if e.failures++; e.failures == 1 {
			e.silent = begun
		}
		if e.failures == patience {
			slog.Warn("a load balancer does not answer", "instance", e.id, "err", err)
		}
		d.restartStalled(e, err)
		if e.failures < patience {
			e.mu.Unlock()
			return true // soon again
		}
		statuses = allDown(e.record.Members, err.Error())
	} else {
		e.failures = 0
	}
	changed := !sameStatuses(e.statuses, statuses)
	e.statuses = statuses
	o := e.seen
	o.Members = withoutCounters(statuses)
	e.seen = o
	e.mu.Unlock()
	if changed {
		d.tell(driver.Event{Kind: driver.InstanceChanged, Instance: o})
	}
	return slices.ContainsFunc(statuses, func(m mariposa.MemberStatus) bool { return m.State == mariposa.MemberDrain && !m.Idle })
}

// restartStalled ends an HAProxy that has not answered for too long, so that it is started again: it
// serves nobody, or can no longer be told its members. One that finishes its connections has closed
// its control socket. The caller holds the mutex.
func (d *Driver) restartStalled(e *entry, err error) {
	if errors.Is(err, syscall.ECONNREFUSED) || e.record.External != nil || e.failures < patience || time.Since(e.silent) < d.options.StallLimit || !e.seen.Running || e.quiet {
		return
	}
	if pid, _ := strconv.Atoi(e.seen.Details["pid"]); pid > 1 {
		slog.Warn("a load balancer has not answered for too long; it is restarted", "instance", e.id)
		_ = syscall.Kill(pid, syscall.SIGKILL) // it has ended meanwhile
	}
}

func allDown(members []mariposa.Member, why string) []mariposa.MemberStatus {
	all := balance.Statuses(members, nil, true)
	for i := range all {
		all[i].State, all[i].Reason = mariposa.MemberDown, why
	}
	return all
}

// correct sends the commands that a balancer needs, and returns its members as they are then.
func (d *Driver) correct(ctx context.Context, e *entry) ([]mariposa.MemberStatus, error) {
	e.mu.Lock()
	desired, names := e.record.Members, e.backends()
	ours := make(map[balance.Key]bool, len(e.record.Ours))
	for _, k := range e.record.Ours {
		ours[k] = true
	}
	e.mu.Unlock()
	s, err := d.allowedSocket(e)
	if err != nil {
		return nil, err
	}
	busy := d.hasFormerWorkers(e) // before the counters are read: one that ends meanwhile does not count
	actual, counts, err := s.servers(ctx, names)
	if err != nil {
		return nil, err
	}
	d.tryContacts(ctx, e, desired, counts)
	reached, why := d.withinReach(e, desired)
	commands := balance.Commands(reached, actual, ours)
	for _, command := range commands {
		if err := s.do(ctx, command); err != nil {
			if _, answered := errors.AsType[refusal](err); !answered {
				return nil, err // it would take as long again for each of the others
			}
			slog.Debug("a load balancer refused a command; it is tried again", "instance", e.id, "command", command, "err", err)
		}
	}
	if len(commands) > 0 {
		busy = d.hasFormerWorkers(e) || busy
		if actual, _, err = s.servers(ctx, names); err != nil {
			return nil, err
		}
	}
	d.forget(e, actual)
	return describeReach(balance.Statuses(reached, actual, busy), desired, why), nil
}

// forget removes members from the record that are neither desired nor there any more.
func (d *Driver) forget(e *entry, actual []balance.Server) {
	keep := map[balance.Key]bool{}
	for _, s := range actual {
		keep[balance.Key{Backend: s.Backend, Instance: s.Name}] = true
	}
	e.mu.Lock()
	for i := range e.record.Members {
		keep[balance.KeyOf(&e.record.Members[i])] = true
	}
	before := len(e.record.Ours)
	e.record.Ours = slices.DeleteFunc(e.record.Ours, func(k balance.Key) bool { return !keep[k] })
	changed := len(e.record.Ours) != before
	e.mu.Unlock()
	if changed {
		if err := d.storeRecord(e); err != nil {
			slog.Warn("cannot store the members of a load balancer; a later change does", "instance", e.id, "err", err)
		}
	}
}

// hasFormerWorkers reports whether workers from before a reload finish their connections: the
// control socket does not show these.
func (d *Driver) hasFormerWorkers(e *entry) bool {
	return e.workers() > 1
}

// workers returns how many processes of HAProxy have connections.
func (e *entry) workers() int {
	pid := strconv.Itoa(e.pid())
	b, _ := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children") // none if it has ended, or has no process
	return len(strings.Fields(string(b)))
}

// readMembers returns the members of a balancer with their counters.
func (d *Driver) readMembers(ctx context.Context, e *entry) ([]mariposa.MemberStatus, error) {
	e.mu.Lock()
	desired, names, isHTTP := e.record.Members, e.backends(), e.config.Mode == "http"
	e.mu.Unlock()
	s, err := d.allowedSocket(e)
	if err != nil {
		return allDown(desired, err.Error()), err
	}
	actual, counts, err := s.servers(ctx, names)
	if err != nil {
		return allDown(desired, err.Error()), err
	}
	reached, why := d.withinReach(e, desired)
	all := describeReach(balance.Statuses(reached, actual, d.hasFormerWorkers(e)), desired, why)
	for i := range all {
		if c, ok := counts[balance.Key{Backend: all[i].Backend, Instance: all[i].Instance}]; ok && isHTTP {
			all[i].Responses = &c.responses
		}
	}
	return all, nil
}

// lastWords returns the last error in the log of a balancer, as the rest of a sentence.
func (d *Driver) lastWords(ctx context.Context, id string) string {
	r, err := d.inner.Logs(ctx, id, driver.LogOptions{Tail: 20})
	if err != nil {
		return "ended at once"
	}
	defer r.Close() // it was only read
	b := make([]byte, 16<<10)
	n, _ := r.Read(b) // the end of a short log
	if text := alertIn(string(b[:n])); text != "" {
		return "cannot start: " + text
	}
	return "ended at once: see its log"
}

// alertIn returns the last error that HAProxy has written; empty if there is none.
func alertIn(log string) string {
	last := ""
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "[ALERT]") {
			last = strings.TrimSpace(line)
			if strings.Contains(last, "cannot bind") || strings.Contains(last, "certificate") {
				break
			}
		}
	}
	_, text, _ := strings.Cut(last, " : ")
	return text
}

// finish asks HAProxy to end once its connections have ended, and waits for that, or for the
// timeout.
func (d *Driver) finish(ctx context.Context, e *entry, timeout time.Duration) error {
	if !e.observed().Running || !softStop(e.pid()) {
		return nil
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	again := time.NewTicker(500 * time.Millisecond) // a signal during its start has no effect
	defer again.Stop()
	for {
		if o, err := d.find(ctx, e.id); err != nil || !o.Running || e.workers() == 0 {
			return nil // there is nothing to wait for
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return nil
		case <-again.C:
			softStop(e.pid())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// describeProblem keeps why new values cannot be used, until others can.
func (d *Driver) describeProblem(e *entry, err error) {
	text := problemText(err)
	e.mu.Lock()
	same := e.problem == text
	e.problem = text
	o := e.seen
	e.mu.Unlock()
	if !same {
		d.tell(driver.Event{Kind: driver.InstanceChanged, Instance: d.note(e, o)})
	}
}

func problemText(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf("it keeps its former settings: %s", err)
}

package haproxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"mariposa"
	"mariposa/balance"
)

// A member that runs may be out of reach all the same: it listens on the loopback of another node,
// or a firewall is in between. Such a member is found by connecting to it, and gets no requests as
// long as others can be reached.

// contact is whether connections to an address succeed.
type contact struct {
	failed  time.Time // since when they fail; zero: they do not
	times   int       // how often they have failed since then
	why     string
	counted int64 // failures that HAProxy had counted when it was last tried
	known   bool  // it was tried
}

const (
	contactTimeout = time.Second
	maxContacts    = 32 // tried at once
	// contactPatience is how often, and for how many intervals, connections may fail: a process needs
	// time to start, and one that has ended is taken out by the control plane.
	contactPatience = 3
)

// lost reports whether connections to an address have failed for long enough.
func (d *Driver) lost(c *contact) bool {
	return c != nil && c.times >= contactPatience && time.Since(c.failed) >= contactPatience*d.options.Interval
}

// tryContacts connects to the members that are new, that HAProxy could not connect to, or that
// could not be reached before. It does not wait for the results.
func (d *Driver) tryContacts(ctx context.Context, e *entry, desired []mariposa.Member, counts map[balance.Key]counters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.record.External != nil || e.trying { // an external balancer may be on another machine
		return
	}
	former := e.contacts
	e.contacts = make(map[string]*contact, len(desired))
	var all []string
	for i := range desired {
		m := &desired[i]
		if m.Address == "" || m.State != mariposa.MemberUp || e.contacts[m.Address] != nil {
			continue
		}
		c := former[m.Address]
		if c == nil {
			c = &contact{}
		}
		e.contacts[m.Address] = c
		failures := counts[balance.KeyOf(m)].failures
		if !c.known || c.times > 0 || failures > c.counted {
			all = append(all, m.Address)
		}
		c.counted = failures
	}
	if len(all) > 0 {
		e.trying = true
		d.gate.Go(func() { d.connect(ctx, e, all) })
	}
}

// connect tries to connect to addresses, and wakes the loop of the balancer if that changes
// anything.
func (d *Driver) connect(ctx context.Context, e *entry, all []string) {
	var work sync.WaitGroup
	limit := make(chan struct{}, maxContacts)
	for _, address := range all {
		limit <- struct{}{}
		work.Go(func() {
			defer func() { <-limit }()
			err := connectOnce(ctx, address)
			if ctx.Err() == nil {
				e.noteContact(address, err)
			}
		})
	}
	work.Wait()
	e.mu.Lock()
	e.trying = false
	e.mu.Unlock()
}

func connectOnce(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: contactTimeout}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return causeOf(err)
	}
	return c.Close()
}

func (e *entry) noteContact(address string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.contacts[address]
	if c == nil {
		return // it is no member any more
	}
	c.known = true
	if err == nil {
		if c.times > 0 {
			e.wakeUp()
		}
		c.failed, c.times, c.why = time.Time{}, 0, ""
		return
	}
	if c.times++; c.times == 1 {
		c.failed = time.Now()
	}
	c.why = fmt.Sprintf("this balancer cannot connect to %s: %s; see whether it listens on this address", address, err)
}

// withinReach returns the members without the addresses of those that cannot be reached, and why,
// by address. If a group has no others, they stay: there is nothing to lose.
func (d *Driver) withinReach(e *entry, desired []mariposa.Member) (list []mariposa.Member, why map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	others := map[string]bool{} // backends with members that can be reached
	for i := range desired {
		m := &desired[i]
		if m.Address == "" || m.State != mariposa.MemberUp {
			continue
		}
		if c := e.contacts[m.Address]; !d.lost(c) {
			others[m.Backend] = true
		} else {
			if why == nil {
				why = map[string]string{}
			}
			why[m.Address] = c.why
		}
	}
	if why == nil {
		return desired, nil
	}
	list = make([]mariposa.Member, 0, len(desired))
	for _, m := range desired {
		if reason := why[m.Address]; reason != "" && m.State == mariposa.MemberUp && others[m.Backend] {
			m.Address, m.Reason = "", reason
		}
		list = append(list, m)
	}
	return list, why
}

// describeReach says of the members that cannot be reached that they are down, also of those that
// are in the balancer because there are no others. The statuses are in the order of the members.
func describeReach(statuses []mariposa.MemberStatus, desired []mariposa.Member, why map[string]string) []mariposa.MemberStatus {
	for i := range statuses {
		m := &desired[i]
		if reason := why[m.Address]; reason != "" && m.State == mariposa.MemberUp {
			statuses[i].State, statuses[i].Address, statuses[i].Reason = mariposa.MemberDown, m.Address, reason
		}
	}
	return statuses
}

package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/clock"
)

// Health checks fail, hang and lie. An instance that fails its checks may recover at any time,
// before or after it was replaced.

// illness is what is wrong with the checks of an instance.
type illness int

const (
	sick    illness = iota // they fail
	hanging                // they get no answer
	lying                  // they pass and fail at random
	illnesses
)

// checks returns health checks for a service of a manifest; empty for most services.
func (p *people) checks() string {
	if !p.w.chance(3) {
		return ""
	}
	rng := p.w.rng
	return fmt.Sprintf("    grace: %d\n    healthchecks: [{type: tcp, port: 80, poll: %d, unhealthy_poll: 1, timeout: 1, retries: %d}]\n",
		2+rng.IntN(20), 5+rng.IntN(20), rng.IntN(3))
}

// sicken makes the checks of an instance fail, hang or lie for a while.
func (n *node) sicken(id string) {
	kind := illness(n.w.rng.IntN(int(illnesses)))
	n.w.seen[[]string{"check fails", "check hangs", "check lies"}[kind]]++
	n.w.note("the checks of %s on %s go wrong (%d)", tail(id), n.name, kind)
	n.w.checker.refs.hurt[id] = true // it may be restarted in place
	n.ill[id] = kind
	worldClock{n.w, &lifetime{}}.After(time.Duration(n.w.rng.IntN(120))*time.Second, func() { n.heal(id) })
}

// heal ends what is wrong with the checks of an instance.
func (n *node) heal(id string) {
	if _, is := n.ill[id]; is {
		n.w.note("the checks of %s on %s are right again", tail(id), n.name)
		delete(n.ill, id)
	}
}

func (n *node) healAll() {
	for _, id := range slices.Sorted(maps.Keys(n.ill)) {
		n.heal(id)
	}
}

// Probe answers a health check.
func (h countingDriver) Probe(ctx context.Context, id string, c *mariposa.HealthCheck) error {
	kind, is := h.n.ill[id]
	switch {
	case !is:
		return h.Driver.Probe(ctx, id, c)
	case kind == hanging:
		if err := clock.Sleep(ctx, wrongClock{worldClock{h.n.w, h.n.life}, h.n.wrong}, c.Timeout); err != nil {
			return err
		}
		return errors.New("did not answer")
	case kind == lying && h.n.w.chance(2):
		return nil
	}
	return errors.New("answered 503")
}

// passes reports whether an instance passes its checks, or has none.
func passes(st *mariposa.InstanceStatus) bool {
	return st.Health == "" || st.Health == mariposa.HealthUnknown || st.Health == mariposa.HealthHealthy
}

// unhealthyAtRest names an instance whose checks do not pass; empty if all do.
func (c *checker) unhealthyAtRest() string {
	for _, id := range c.sorted() {
		st := c.instances[id].Status()
		if st != nil && !passes(st) && c.instances[id].Spec().Goal == mariposa.GoalRunning {
			return fmt.Sprintf("%s is %s: %s", c.instances[id].Spec().Name, st.Health, st.Reason)
		}
		if st != nil && st.Health == mariposa.HealthHealthy {
			c.w.seen["healthy at rest"]++
		}
	}
	return ""
}

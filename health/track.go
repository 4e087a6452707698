package health

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
)

// track is one check of one instance. Its methods are pure: they depend only on the results
// and the times that they are given.
type track struct {
	record
	def    *mariposa.HealthCheck
	of     *subject
	seed   uint32
	grace  *grace // until it is over, failures do not count if it has never passed
	health mariposa.Health
	since  time.Time // when its health changed
	isHeir bool      // it continues a check of a running instance
	cancel func()    // before the next attempt begins
	abort  func()    // ends the attempt that runs
}

// grace is the time in which checks may fail that have never passed.
type grace struct{ isOver bool }

// record is what earlier results of a check leave.
type record struct {
	hasPassed bool
	failures  int       // in a row
	first     time.Time // when the first of them happened
	isSilent  bool      // the last attempt got no answer at all
	reason    string    // why it does not pass; empty if it does
	slowdown  int       // how often the pause has doubled
}

// recall continues with the result that an earlier checker had: a check that failed has to
// pass first. The check is the nth of its instance.
func (t *track) recall(known []mariposa.CheckStatus, n int) {
	isIt := func(k mariposa.CheckStatus) bool { return mayBeNamed(k.Name, t.def.Name()) }
	if n >= len(known) || !isIt(known[n]) { // the checks have changed meanwhile
		n = slices.IndexFunc(known, isIt)
	}
	if n < 0 {
		return
	}
	k := known[n]
	t.health, t.since = k.Health, k.Since
	t.hasPassed = k.Passed && k.Health != mariposa.HealthStarting // otherwise it was before a restart in place
	if k.Health == mariposa.HealthUnhealthy {
		t.reason, t.failures, t.first = k.Reason, t.def.Retries+1, k.Since
	}
}

// masked stands for a secret in what the control plane has stored.
const masked = "••••"

// mayBeNamed reports whether a stored name of a check stands for a name: secrets in it are
// masked, and it is cut if it is long.
func mayBeNamed(stored, name string) bool {
	text, isCut := strings.CutSuffix(stored, "…")
	parts := strings.Split(text, masked)
	for i, part := range parts {
		at := strings.Index(name, part)
		if at < 0 || i == 0 && at > 0 {
			return false
		}
		if i == len(parts)-1 && !isCut {
			return i > 0 && strings.HasSuffix(name, part) || name == part
		}
		name = name[at+len(part):]
	}
	return true
}

// note records the result of a check.
func (t *track) note(err error, now time.Time) {
	var unclear *Inconclusive
	switch {
	case err == nil:
		t.record = record{hasPassed: true}
		t.set(mariposa.HealthHealthy, now)
		return
	case errors.As(err, &unclear):
		t.reason = "cannot be checked: " + unclear.Reason
		return
	}
	if t.failures == 0 {
		t.first = now
	}
	t.failures++
	t.isSilent = isSilence(err)
	switch {
	case !t.hasPassed && !t.grace.isOver:
		t.reason = err.Error()
	case t.failures <= t.def.Retries:
		t.reason = err.Error()
	case t.health == mariposa.HealthUnhealthy:
		t.slowdown++
		t.reason = t.sentence(err, now)
	default:
		t.reason = t.sentence(err, now)
		t.set(mariposa.HealthUnhealthy, now)
	}
}

// hold takes back that the check has failed: its result means nothing.
func (t *track) hold(why string) {
	t.reason, t.slowdown = "cannot be checked: "+why, 0
	if t.health != mariposa.HealthUnhealthy {
		return
	}
	t.health = mariposa.HealthStarting
	if t.hasPassed {
		t.health = mariposa.HealthHealthy
	}
}

// sentence says how often a check has failed, and in which time.
func (t *track) sentence(err error, now time.Time) string {
	if t.failures == 1 {
		return err.Error()
	}
	span := now.Sub(t.first).Round(time.Second)
	switch {
	case span < 0: // the clock was set meanwhile
		return err.Error() + ", " + strconv.Itoa(t.failures) + " times"
	case span < time.Second:
		span = now.Sub(t.first).Round(100 * time.Millisecond)
	}
	return err.Error() + ", " + strconv.Itoa(t.failures) + " times in " + seconds(span)
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
}

// result is what the status of an instance depends on.
type result struct {
	health    mariposa.Health
	hasPassed bool
	since     time.Time
	isFirst   bool // there is a reason why it has not passed yet
}

func (t *track) result() result {
	return result{t.health, t.hasPassed, t.since, t.health == mariposa.HealthStarting && t.reason != ""}
}

// usesNetwork reports whether a check depends on the network between this node and the
// instance.
func (t *track) usesNetwork() bool { return t.def.Type != mariposa.CheckCommand }

func (t *track) set(h mariposa.Health, now time.Time) {
	if t.health != h {
		t.health, t.since = h, now
	}
}

// pause returns the time until the next check: poll if it passed, unhealthy_poll if it
// failed, twice as long after each failure of an unhealthy instance. The pause is varied a
// little, so that checks that began together do not stay together.
func (t *track) pause() time.Duration {
	d := t.def.Poll
	if t.failures > 0 || !t.hasPassed {
		d = t.def.UnhealthyPoll
		most := t.def.MostPause()
		for range t.slowdown {
			if d *= 2; d >= most {
				d = most
				break
			}
		}
	}
	t.seed = t.seed*1664525 + 1013904223
	return d*9/10 + time.Duration(int64(d)/10*int64(t.seed>>16)>>16)
}

// firstPause returns the time until the first check. Those of an instance that has just
// started begin at once; those of one that runs are spread over their poll.
func (t *track) firstPause() time.Duration {
	most := min(t.def.UnhealthyPoll, 200*time.Millisecond)
	if t.isHeir {
		most = t.def.Poll
		if t.failures > 0 {
			most = t.def.UnhealthyPoll
		}
	}
	return time.Duration(int64(most) * int64(t.seed>>16) >> 16)
}

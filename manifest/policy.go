package manifest

import (
	"strconv"
	"strings"
	"time"

	"mariposa"
)

func restart(c *checker, at *spot, d *draft) {
	word, count, counted := strings.Cut(at.node.Value, ":")
	if at.kind() == kindText && word == string(mariposa.RestartOnFailure) && counted {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > maxScale {
			c.invalid(at, "must have a number of restarts, at least 1, after the colon, as in on-failure:3")
			return
		}
		d.Restart = mariposa.Restart{Policy: mariposa.RestartOnFailure, Max: n}
		return
	}
	if word, ok := c.choice(at, "no", "on-failure", "always", "unless-stopped"); ok {
		d.Restart = mariposa.Restart{Policy: mariposa.RestartPolicy(word)}
	}
}

var rescheduleKeys = keys[mariposa.Reschedule]{
	"after": func(c *checker, at *spot, r *mariposa.Reschedule) { c.seconds(at, 0, &r.After) },
	"never": func(c *checker, at *spot, r *mariposa.Reschedule) { r.Never, _ = c.flag(at) },
}

func reschedule(c *checker, at *spot, d *draft) {
	object(c, at, "services.*.reschedule.", rescheduleKeys, &d.Reschedule)
	if d.Reschedule.Never && at.child("after") != nil {
		c.invalid(at, "cannot have both after and never; keep one")
	}
}

var stopKeys = keys[mariposa.Stop]{
	"timeout":         stopTimeout,
	"preservestopped": preserveStopped,
}

// stopTimeout reads a stop timeout. It is the only duration that may be negative: -1
// means for ever.
func stopTimeout(c *checker, at *spot, s *mariposa.Stop) {
	if at.kind() == kindInt && at.node.Value == "-1" {
		s.Timeout = -time.Second
		return
	}
	c.seconds(at, 0, &s.Timeout)
}

func preserveStopped(c *checker, at *spot, s *mariposa.Stop) {
	if word, ok := c.choice(at, "no", "on-failure", "always"); ok {
		s.PreserveStopped = word
	}
}

var updateKeys = keys[mariposa.Update]{
	"rolling":     func(c *checker, at *spot, u *mariposa.Update) { c.amount(at, &u.Rolling, 1) },
	"canary":      func(c *checker, at *spot, u *mariposa.Update) { c.amount(at, &u.Canary, 0) },
	"order":       updateOrder,
	"min_healthy": func(c *checker, at *spot, u *mariposa.Update) { c.seconds(at, 0, &u.MinHealthy) },
	"deadline":    func(c *checker, at *spot, u *mariposa.Update) { c.seconds(at, 1, &u.Deadline) },
	"on_failure":  onFailure,
	"on_metadata": onMetadata,
}

func updateOrder(c *checker, at *spot, u *mariposa.Update) {
	word, _ := c.choice(at, "start-first", "stop-first")
	u.StopFirst = word == "stop-first"
}

func onFailure(c *checker, at *spot, u *mariposa.Update) {
	if word, ok := c.choice(at, "pause", "rollback", "continue"); ok {
		u.OnFailure = mariposa.OnFailure(word)
	}
}

func onMetadata(c *checker, at *spot, u *mariposa.Update) {
	if word, ok := c.choice(at, "hold", "reprovision"); ok {
		u.OnMetadata = word
	}
}

// schedule checks the shape of the five fields; the scheduler reads the times
// themselves.
func schedule(c *checker, at *spot, d *draft) {
	text, ok := c.text(at)
	if !ok {
		return
	}
	fields := strings.Fields(text)
	bad := strings.Trim(strings.ToUpper(strings.Join(fields, "")), "0123456789*/,-?#ABCDEFGHIJKLMNOPQRSTUVWXYZ") != ""
	if len(fields) != 5 || bad {
		c.invalid(at, "must be five fields: minute, hour, day, month, weekday, like \"0 3 * * *\"")
		return
	}
	d.Schedule = strings.Join(fields, " ")
}

var dummyKeys = keys[mariposa.Dummy]{
	"name_len":             nameLen,
	"update_in_place_prop": func(c *checker, at *spot, d *mariposa.Dummy) { d.UpdateInPlaceProp, _ = c.text(at) },
	"fail_prop":            failProp,
	"max_wait_secs":        func(c *checker, at *spot, d *mariposa.Dummy) { c.seconds(at, 0, &d.MaxWait) },
	"wait_secs":            func(c *checker, at *spot, d *mariposa.Dummy) { c.seconds(at, 0, &d.Wait) },
}

func newDummy() *mariposa.Dummy { return &mariposa.Dummy{NameLen: 32} }

func dummy(c *checker, at *spot, d *draft) {
	knobs := newDummy()
	object(c, at, "services.*.dummy.", dummyKeys, knobs)
	d.Dummy = knobs
}

func nameLen(c *checker, at *spot, d *mariposa.Dummy) {
	if n, ok := c.whole(at, 1, 255); ok {
		d.NameLen = n
	}
}

func failProp(c *checker, at *spot, d *mariposa.Dummy) {
	word, _ := c.choice(at, "no", "yes")
	d.Fail = word == "yes"
}

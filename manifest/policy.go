package manifest

import (
	"math"
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

var checkKeys = keys[checkDraft]{
	"type":           checkType,
	"port":           func(c *checker, at *spot, h *checkDraft) { c.port(at, &h.Port) },
	"path":           checkPath,
	"poll":           func(c *checker, at *spot, h *checkDraft) { c.seconds(at, 0.1, &h.Poll) },
	"unhealthy_poll": func(c *checker, at *spot, h *checkDraft) { c.seconds(at, 0.1, &h.UnhealthyPoll) },
	"timeout":        func(c *checker, at *spot, h *checkDraft) { c.seconds(at, 0.1, &h.Timeout) },
	"retries":        checkRetries,
	"expect": func(c *checker, at *spot, h *checkDraft) {
		object(c, at, "services.*.healthchecks.expect.", expectKeys, h)
	},
}

var expectKeys = keys[checkDraft]{
	"status":  checkStatus,
	"headers": checkHeaders,
	"body":    func(c *checker, at *spot, h *checkDraft) { h.ExpectBody, _ = c.text(at) },
}

// checkDraft is a health check while it is being read, and its service, which
// keeps the interpolations.
type checkDraft struct {
	mariposa.HealthCheck
	of *draft
}

func healthChecks(c *checker, at *spot, d *draft) {
	for _, item := range c.items(at, "health checks") {
		h := checkDraft{of: d, HealthCheck: mariposa.HealthCheck{
			Poll: 5 * time.Second, UnhealthyPoll: time.Second, Timeout: 2 * time.Second, Retries: 2,
		}}
		if item.kind() == kindNull {
			c.wrongType(item, "a mapping")
			continue
		}
		if item.kind() == kindRefused || !object(c, item, "services.*.healthchecks.", checkKeys, &h) {
			continue
		}
		c.checkFits(item, &h)
		d.HealthChecks = append(d.HealthChecks, h.HealthCheck)
	}
}

// checkFits checks that the keys of a health check fit its type.
func (c *checker) checkFits(at *spot, h *checkDraft) {
	for _, key := range []string{"type", "port"} {
		if at.child(key) == nil {
			c.fault(at.missing(key), mariposa.FaultMissing, "is missing; a health check needs it")
		}
	}
	if h.Type == "tcp" {
		for _, key := range []string{"path", "expect"} {
			if extra := at.child(key); extra != nil {
				c.invalid(extra, "is only allowed in checks of type http; remove it")
			}
		}
	}
	if h.Type == "http" && at.child("path") == nil {
		h.Path = "/"
	}
	if h.Type == "http" && h.ExpectStatus == 0 {
		h.ExpectStatus = 200
	}
}

func checkType(c *checker, at *spot, h *checkDraft) { h.Type, _ = c.choice(at, "http", "tcp") }

func checkPath(c *checker, at *spot, h *checkDraft) {
	path, ok := c.text(at)
	if !ok {
		return
	}
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "{{") {
		c.invalid(at, "must begin with /")
	}
	c.template(at, h.of, path)
	h.Path = path
}

func checkRetries(c *checker, at *spot, h *checkDraft) {
	if n, ok := c.whole(at, 0, math.MaxInt16); ok {
		h.Retries = n
	}
}

func checkStatus(c *checker, at *spot, h *checkDraft) {
	if n, ok := c.whole(at, 100, 599); ok {
		h.ExpectStatus = n
	}
}

func checkHeaders(c *checker, at *spot, h *checkDraft) {
	if !c.mapping(at) {
		return
	}
	c.entries(at, func(at *spot) {
		if why := variableName(at.key); why != "" {
			c.invalid(at, "%s", why)
		} else if value, ok := c.text(at); ok {
			h.ExpectHeaders = append(h.ExpectHeaders, mariposa.Variable{Name: at.key, Value: value})
		}
	})
}

// containerPilotPort is the default port of containerpilot.
const containerPilotPort = 9090

func containerPilot(c *checker, at *spot, d *draft) {
	port := containerPilotPort
	if at.kind() == kindMap {
		object(c, at, "services.*.containerpilot.", keys[int]{"port": (*checker).port}, &port)
		d.Pilot = &port
		return
	}
	if at.kind() != kindBool {
		c.wrongType(at, "true, false or a mapping with a port")
		return
	}
	if on, _ := c.flag(at); on {
		d.Pilot = &port
	}
}

package manifest

import (
	"errors"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"mariposa"
)

// Limits of health checks. A node runs the checks of many instances, so one service must
// not keep it busy.
const (
	maxChecks       = 20
	leastPoll       = 0.1 // seconds
	mostPoll        = 3600
	mostTimeout     = 300
	mostRetries     = 100
	mostGrace       = 24 * 3600
	maxStatusRanges = 20
	maxHeaders      = 20
	maxPath         = 1 << 10
	maxExpectedBody = 4 << 10
	maxBodyPattern  = 200 // steps of a regular expression, with its repetitions written out
)

var checkKeys = keys[checkDraft]{
	"type":           checkType,
	"port":           func(c *checker, at *spot, h *checkDraft) { c.port(at, &h.Port) },
	"network":        checkNetwork,
	"path":           checkPath,
	"command":        checkCommand,
	"user":           checkUser,
	"verify":         checkVerify,
	"poll":           func(c *checker, at *spot, h *checkDraft) { c.secondsUpTo(at, leastPoll, mostPoll, &h.Poll) },
	"unhealthy_poll": func(c *checker, at *spot, h *checkDraft) { c.secondsUpTo(at, leastPoll, mostPoll, &h.UnhealthyPoll) },
	"timeout":        func(c *checker, at *spot, h *checkDraft) { c.secondsUpTo(at, leastPoll, mostTimeout, &h.Timeout) },
	"retries":        checkRetries,
	"expect": func(c *checker, at *spot, h *checkDraft) {
		object(c, at, "services.*.healthchecks.expect.", expectKeys, h)
	},
}

var expectKeys = keys[checkDraft]{
	"status":  checkStatus,
	"headers": checkHeaders,
	"body":    checkBody,
}

// checkDraft is a health check while it is being read, and its service, which
// keeps the interpolations.
type checkDraft struct {
	mariposa.HealthCheck
	of *draft
}

func healthChecks(c *checker, at *spot, d *draft) {
	for n, item := range c.items(at, "health checks") {
		if n == maxChecks {
			c.fault(item, mariposa.FaultTooLarge, "exceeds the limit of %d health checks per service", maxChecks)
			return
		}
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

// fittingKeys lists the types of health checks that a key is for, and what is missing
// without it; empty: nothing.
var fittingKeys = []struct {
	key   string
	types []string
	needs string
}{
	{"port", []string{mariposa.CheckHTTP, mariposa.CheckHTTPS, mariposa.CheckTCP}, "the port that the instance listens on"},
	{"network", []string{mariposa.CheckHTTP, mariposa.CheckHTTPS, mariposa.CheckTCP}, ""},
	{"path", []string{mariposa.CheckHTTP, mariposa.CheckHTTPS}, ""},
	{"expect", []string{mariposa.CheckHTTP, mariposa.CheckHTTPS}, ""},
	{"verify", []string{mariposa.CheckHTTPS}, ""},
	{"command", []string{mariposa.CheckCommand}, "the program to run in the instance"},
	{"user", []string{mariposa.CheckCommand}, ""},
}

// checkFits checks that the keys of a health check fit its type.
func (c *checker) checkFits(at *spot, h *checkDraft) {
	if at.child("type") == nil {
		c.fault(at.missing("type"), mariposa.FaultMissing, "is missing; a health check is of type http, https, tcp or command")
	}
	if h.Type == "" {
		return
	}
	for _, row := range fittingKeys {
		fits := slices.Contains(row.types, h.Type)
		switch given := at.child(row.key); {
		case given != nil && !fits:
			c.invalid(given, "is only allowed in checks of type %s; remove it", joinWithOr(row.types))
		case given == nil && fits && row.needs != "":
			c.fault(at.missing(row.key), mariposa.FaultMissing, "is missing; a check of type %s needs it: %s", h.Type, row.needs)
		}
	}
	if h.IsHTTP() && at.child("path") == nil {
		h.Path = "/"
	}
	if h.IsHTTP() && len(h.ExpectStatus) == 0 {
		h.ExpectStatus = []mariposa.StatusRange{{From: 200, To: 200}}
	}
	if timeout := at.child("timeout"); timeout == nil {
		h.Timeout = min(h.Timeout, max(h.Poll, h.UnhealthyPoll))
	}
}

// checkServiceHealth checks that the health checks of a service fit its compute type.
func (c *checker) checkServiceHealth(d *draft) {
	at := d.at.child("healthchecks")
	if at == nil || at.kind() != kindList {
		return
	}
	for n := range at.node.Content {
		item := at.item(n)
		if command := item.child("command"); command != nil && d.Compute == mariposa.ComputeKVM && d.computed {
			c.invalid(command, "is not allowed with compute_type kvm: commands cannot be run in a virtual machine; use a check of type http or tcp")
		}
		if network := item.child("network"); network != nil && d.Compute == mariposa.ComputeProcess && d.computed {
			c.invalid(network, "is not allowed with compute_type process: processes have no address in a network; remove it")
		}
		if user := item.child("user"); user != nil && d.computed && d.Compute != mariposa.ComputeDocker && d.Compute != mariposa.ComputeInfrastructure {
			c.invalid(user, "is only allowed with compute_type docker or infrastructure; remove it")
		}
	}
}

// checkNetworks checks that health checks use networks of their service.
func (c *checker) checkNetworks(d *draft) {
	for _, e := range d.checkedNetworks {
		if !slices.Contains(d.Networks, e.to) {
			c.invalid(e.at, "the service is not in network %s; add it to its networks or remove this key", quoteText(e.to))
		}
	}
}

func checkType(c *checker, at *spot, h *checkDraft) {
	h.Type, _ = c.choice(at, mariposa.CheckHTTP, mariposa.CheckHTTPS, mariposa.CheckTCP, mariposa.CheckCommand)
}

func checkNetwork(c *checker, at *spot, h *checkDraft) {
	if text, ok := c.text(at); ok {
		if why := dnsLabel(text); why != "" {
			c.invalid(at, "%s", why)
			return
		}
		h.Network = text
		h.of.checkedNetworks = append(h.of.checkedNetworks, edge{to: text, at: at})
	}
}

func checkPath(c *checker, at *spot, h *checkDraft) {
	path, ok := c.text(at)
	if !ok {
		return
	}
	switch {
	case !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "{{"):
		c.invalid(at, "must begin with /")
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		c.invalid(at, "must not contain control characters")
	case len(path) > maxPath:
		c.fault(at, mariposa.FaultTooLarge, "exceeds the limit of %d bytes", maxPath)
	case !strings.Contains(path, "{{"):
		if _, err := url.ParseRequestURI(path); err != nil {
			c.invalid(at, "is not the path of a URL: %s", errors.Unwrap(err))
		}
	}
	c.template(at, h.of, path)
	h.Path = path
}

func checkCommand(c *checker, at *spot, h *checkDraft) {
	h.Command = c.readWords(at, &draft{Service: &mariposa.Service{}})
	for _, word := range h.Command {
		if strings.Contains(word, "{{") {
			c.invalid(at, "cannot contain an interpolation; read the value from the environment of the instance")
			return
		}
	}
}

func checkUser(c *checker, at *spot, h *checkDraft) {
	if text, ok := c.text(at); ok {
		if !userName.MatchString(text) {
			c.invalid(at, "must be a user of the image, like 1000, web or 1000:1000")
		}
		h.User = text
	}
}

func checkVerify(c *checker, at *spot, h *checkDraft) {
	if on, ok := c.flag(at); ok {
		h.Insecure = !on
	}
}

func checkRetries(c *checker, at *spot, h *checkDraft) {
	if n, ok := c.whole(at, 0, mostRetries); ok {
		h.Retries = n
	}
}

// checkStatus reads a status code, a range such as 200-299, or a list of both.
func checkStatus(c *checker, at *spot, h *checkDraft) {
	h.ExpectStatus = nil
	items := []*spot{at}
	if at.kind() == kindList {
		if items = c.items(at, "status codes"); len(items) == 0 || len(items) > maxStatusRanges {
			c.invalid(at, "must have 1 to %d status codes or ranges", maxStatusRanges)
			return
		}
	}
	for _, item := range items {
		r, err := mariposa.ParseStatusRange(item.node.Value)
		if err != nil || item.kind() != kindInt && item.kind() != kindText {
			c.invalid(item, "must be a status code such as 200, a range such as 200-299, or a list of them")
			continue
		}
		h.ExpectStatus = append(h.ExpectStatus, r)
	}
}

func checkHeaders(c *checker, at *spot, h *checkDraft) {
	if !c.mapping(at) {
		return
	}
	c.entries(at, func(at *spot) {
		if len(h.ExpectHeaders) == maxHeaders {
			c.fault(at, mariposa.FaultTooLarge, "exceeds the limit of %d headers per check", maxHeaders)
			return
		}
		if !headerName.MatchString(at.key) {
			c.invalid(at, "is not the name of an HTTP header")
		} else if value, ok := c.text(at); ok {
			h.ExpectHeaders = append(h.ExpectHeaders, mariposa.Variable{Name: at.key, Value: value})
		}
	})
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$")

// checkBody reads a text that the body contains, or a regular expression between slashes.
func checkBody(c *checker, at *spot, h *checkDraft) {
	text, ok := c.text(at)
	if !ok {
		return
	}
	if len(text) > maxExpectedBody {
		c.fault(at, mariposa.FaultTooLarge, "exceeds the limit of %d bytes", maxExpectedBody)
		return
	}
	if expr, isRegexp := mariposa.BodyPattern(text); isRegexp {
		tree, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			c.invalid(at, "must be a regular expression in RE2 syntax between slashes: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		} else if patternSize(tree) > maxBodyPattern { // each check matches up to 64 KiB
			c.invalid(at, "is too large or has too many repetitions; simplify the regular expression")
		}
	}
	h.ExpectBody = text
}

// containerPilotPort is the default port of containerpilot.
const containerPilotPort = 9090

func containerPilot(c *checker, at *spot, d *draft) {
	pilot := mariposa.Pilot{Port: containerPilotPort}
	if at.kind() == kindMap {
		object(c, at, "services.*.containerpilot.", keys[mariposa.Pilot]{
			"port":    func(c *checker, at *spot, p *mariposa.Pilot) { c.port(at, &p.Port) },
			"network": pilotNetwork,
		}, &pilot)
		if network := at.child("network"); network != nil && pilot.Network != "" {
			d.checkedNetworks = append(d.checkedNetworks, edge{to: pilot.Network, at: network})
		}
		d.Pilot = &pilot
		return
	}
	if at.kind() != kindBool {
		c.wrongType(at, "true, false or a mapping with a port")
		return
	}
	if on, _ := c.flag(at); on {
		d.Pilot = &pilot
	}
}

func pilotNetwork(c *checker, at *spot, p *mariposa.Pilot) {
	if text, ok := c.text(at); ok {
		if why := dnsLabel(text); why != "" {
			c.invalid(at, "%s", why)
		}
		p.Network = text
	}
}

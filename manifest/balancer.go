package manifest

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
)

// balancerDraft is a load balancer while it is being read, with the service that runs it.
type balancerDraft struct {
	*draft
	mariposa.Balancer
	single mariposa.Route // service and port beside routes
	tls    string
}

// maxDrain is the longest time in seconds that connections have to finish.
const maxDrain = 86400

var balancerKeys = keys[balancerDraft]{
	"listen": listen,
	"service": func(c *checker, at *spot, b *balancerDraft) {
		b.single.Service = c.routeService(at, b)
	},
	"port":   func(c *checker, at *spot, b *balancerDraft) { c.port(at, &b.single.Port) },
	"routes": routes,
	"mode": func(c *checker, at *spot, b *balancerDraft) {
		if word, ok := c.choice(at, "http", "tcp"); ok {
			b.Mode = word
		}
	},
	"drain":         func(c *checker, at *spot, b *balancerDraft) { c.secondsUpTo(at, 0, maxDrain, &b.Balancer.Drain) },
	"canary_weight": func(c *checker, at *spot, b *balancerDraft) { b.CanaryWeight, _ = c.whole(at, 0, 100) },
	"tls": func(c *checker, at *spot, b *balancerDraft) {
		if b.tls, _ = c.text(at); b.tls == "" {
			return
		}
		c.template(at, b.draft, b.tls)
		if len(b.draft.refs) == 0 {
			c.invalid(at, "must refer to metadata, like \"{{ .meta.cert }}\"; a certificate with its key is a secret")
		}
	},
	"address": balancerAddress,
	"scale":   func(c *checker, at *spot, b *balancerDraft) { scale(c, at, b.draft) },
	"memory":  func(c *checker, at *spot, b *balancerDraft) { c.size(at, &b.Memory) },
	"cpu":     func(c *checker, at *spot, b *balancerDraft) { cpu(c, at, b.draft) },
}

// listen reads one port or a list of them.
func listen(c *checker, at *spot, b *balancerDraft) {
	spots := []*spot{at}
	if at.kind() == kindList {
		spots = c.items(at, "ports")
	}
	if len(spots) == 0 || len(spots) > mariposa.MaxListen {
		c.invalid(at, "must be a port, or a list of 1 to %d ports", mariposa.MaxListen)
		return
	}
	for _, item := range spots {
		var port int
		switch c.port(item, &port); {
		case port == 0:
		case slices.Contains(b.Listen, port):
			c.fault(item, mariposa.FaultDuplicate, "port %d is listed twice; remove one", port)
		default:
			b.Listen = append(b.Listen, port)
		}
	}
}

// routeService reads the name of a service that gets requests.
func (c *checker) routeService(at *spot, b *balancerDraft) string {
	name, ok := c.text(at)
	if ok {
		b.targets = append(b.targets, edge{to: name, at: at})
	}
	return name
}

// routeDraft is a route while it is being read.
type routeDraft struct {
	mariposa.Route
	of *balancerDraft
}

var routeKeys = keys[routeDraft]{
	"host": func(c *checker, at *spot, r *routeDraft) {
		if r.Host, _ = c.text(at); r.Host != "" {
			if why := mariposa.CheckRouteHost(r.Host); why != "" {
				c.invalid(at, "%s", why)
			}
		}
	},
	"path": func(c *checker, at *spot, r *routeDraft) {
		if r.Path, _ = c.text(at); r.Path != "" {
			if why := mariposa.CheckRoutePath(r.Path); why != "" {
				c.invalid(at, "%s", why)
			}
		}
		r.Path = strings.TrimSuffix(r.Path, "/")
	},
	"service": func(c *checker, at *spot, r *routeDraft) { r.Service = c.routeService(at, r.of) },
	"port":    func(c *checker, at *spot, r *routeDraft) { c.port(at, &r.Port) },
}

func routes(c *checker, at *spot, b *balancerDraft) {
	type match struct{ host, path string }
	seen := map[match]bool{}
	for n, item := range c.items(at, "routes") {
		if n == mariposa.MaxRoutes {
			c.fault(item, mariposa.FaultTooLarge, "exceeds the limit of %d routes per load balancer", mariposa.MaxRoutes)
			return
		}
		r := routeDraft{of: b}
		if item.kind() == kindRefused || !object(c, item, "load_balancers.*.routes.", routeKeys, &r) {
			continue
		}
		for _, key := range []string{"service", "port"} {
			if item.child(key) == nil {
				c.fault(item.missing(key), mariposa.FaultMissing, "is missing; a route needs service and port")
			}
		}
		if m := (match{r.Host, r.Path}); seen[m] {
			c.fault(item, mariposa.FaultDuplicate, "has the same host and path as an earlier route; remove one")
		} else {
			seen[m] = true
		}
		b.Routes = append(b.Routes, r.Route)
	}
}

func balancerAddress(c *checker, at *spot, b *balancerDraft) {
	text, ok := c.text(at)
	if !ok || text == "" {
		return
	}
	host, port := mariposa.SplitAddress(text)
	isPath := strings.HasPrefix(text, "/") && filePath(text) == ""
	if n, err := strconv.Atoi(port); !isPath && (host == "" || err != nil || n < 1 || n > 65535) || len(text) > 256 {
		c.invalid(at, "must be the path of a socket, like /run/haproxy/admin.sock, or host:port")
		return
	}
	b.Balancer.Address = text
}

func (c *checker) loadBalancer(at *spot) *balancerDraft {
	b := &balancerDraft{draft: newDraft(at.key, at), Balancer: mariposa.Balancer{Mode: "http", Drain: 30 * time.Second}}
	b.Compute, b.computed = mariposa.ComputeBalancer, true
	c.label(at)
	if at.kind() == kindRefused || !object(c, at, "load_balancers.*.", balancerKeys, b) {
		return b
	}
	c.checkBalancer(at, b)
	return b
}

// checkBalancer checks that the keys of a load balancer fit each other.
func (c *checker) checkBalancer(at *spot, b *balancerDraft) {
	has := func(key string) bool { return at.child(key) != nil }
	external := has("address") && b.Balancer.Address != ""
	if !has("listen") && !external {
		c.fault(at.missing("listen"), mariposa.FaultMissing, "is missing; a load balancer needs the port that it listens on")
	}
	switch {
	case has("routes") && (has("service") || has("port")):
		c.invalid(at.child("routes"), "cannot be combined with service and port; add them as a route without host and path")
	case has("routes") && len(b.Routes) == 0 && at.child("routes").kind() == kindList:
		c.invalid(at.child("routes"), "is empty; add a route with service and port")
	case !has("routes"):
		for _, key := range []string{"service", "port"} {
			if !has(key) {
				c.fault(at.missing(key), mariposa.FaultMissing, "is missing; a load balancer needs service and port, or routes")
			}
		}
		b.Routes = []mariposa.Route{b.single}
	case b.Mode == "tcp" && (len(b.Routes) > 1 || b.Routes[0].Host != "" || b.Routes[0].Path != ""):
		c.invalid(at.child("routes"), "must be one route without host and path: connections in tcp mode have neither")
	case external && len(b.Routes) > 1:
		c.invalid(at.child("routes"), "must be one route: an external balancer has one backend, and chooses it itself")
	}
	if external && has("tls") {
		c.invalid(at.child("tls"), "cannot be combined with address: an external balancer has its own certificates")
	}
	if external && has("listen") {
		c.invalid(at.child("listen"), "cannot be combined with address: an external balancer has its own ports")
	}
}

// addBalancers adds the services that run the load balancers. They share the names of
// services.
func (c *checker) addBalancers(p *parts) {
	for _, b := range p.balancers {
		if p.byName[b.Name] != nil {
			c.fault(b.at, mariposa.FaultDuplicate, "has the name of a service; services and load balancers need different names")
			continue
		}
		for _, t := range b.targets {
			c.target(p, t)
		}
	}
	for _, b := range p.balancers {
		if p.byName[b.Name] == nil {
			b.generate()
			p.byName[b.Name] = b.draft
			p.drafts = append(p.drafts, b.draft)
			p.LoadBalancers = append(p.LoadBalancers, LoadBalancer{b.Name, b.Balancer})
		}
	}
	c.checkListeners(p)
	for _, b := range p.balancers {
		c.checkTargetPorts(p, b)
	}
}

// target checks that a service behind a balancer exists.
func (c *checker) target(p *parts, t edge) {
	if p.byName[t.to] == nil {
		c.unknown(t.at, func() []string { return sortedKeys(p.byName) }, t.to, "refers to service %s, which does not exist", quoteText(t.to))
	}
}

// checkListeners refuses two load balancers of a project with the same port: they could not run on
// one node.
func (c *checker) checkListeners(p *parts) {
	first := map[int]string{}
	for _, b := range p.balancers {
		for _, port := range b.Listen {
			if other, taken := first[port]; taken && other != b.Name {
				c.invalid(cmp.Or(b.at.child("listen"), b.at), "uses port %d, and so does load balancer %s; choose another port", port, quoteText(other))
				continue
			}
			first[port] = b.Name
		}
	}
}

// checkTargetPorts checks that processes declare the ports behind a balancer: they have no others.
func (c *checker) checkTargetPorts(p *parts, b *balancerDraft) {
	for i, r := range b.Routes {
		to := p.byName[r.Service]
		if to == nil || to.Compute != mariposa.ComputeProcess || r.Port == 0 || i >= len(b.targets) {
			continue
		}
		if !slices.ContainsFunc(to.Ports, func(port mariposa.Port) bool { return port.Target == r.Port }) {
			c.invalid(b.targets[i].at, "leads to port %d of %s, which is not among its ports; declare it under its ports:", r.Port, quoteText(r.Service))
		}
	}
}

// generate makes the service that runs a load balancer. What can change while it runs goes into
// its live values.
func (b *balancerDraft) generate() {
	slices.SortStableFunc(b.Routes, func(x, y mariposa.Route) int { // the most specific first
		return cmp.Or(cmp.Compare(rank(y.Host), rank(x.Host)), cmp.Compare(len(y.Host), len(x.Host)), cmp.Compare(len(y.Path), len(x.Path)))
	})
	b.TLS = b.tls != ""
	s := b.Service
	for _, port := range b.Listen {
		s.Ports = append(s.Ports, mariposa.Port{Host: port, Target: port})
	}
	s.Mdata = []mariposa.Variable{{Name: mariposa.BalancerValue, Value: b.Encode()}}
	if b.TLS {
		s.Mdata = append(s.Mdata, mariposa.Variable{Name: mariposa.CertificateValue, Value: b.tls})
	}
	s.Balancer = new(b.Balancer)
	s.Restart = mariposa.Restart{Policy: mariposa.RestartAlways}
	s.Stop.Timeout = max(b.Balancer.Drain, 10*time.Second)
	s.Update.MinHealthy, s.Update.StopFirst = time.Second, true // two of them cannot have the same ports
}

// rank orders hosts: exact ones before those with a wildcard, and those before any.
func rank(host string) int {
	switch {
	case host == "":
		return 0
	case strings.HasPrefix(host, "*."):
		return 1
	}
	return 2
}

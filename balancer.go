package mariposa

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ComputeBalancer is the compute type of load balancers. Their services are generated from
// the load_balancers of a manifest.
const ComputeBalancer ComputeType = "balancer"

// Balancer is what a load balancer does. It reaches the node of the balancer with the live
// values of its instance, so a change never replaces the instance.
type Balancer struct {
	Mode         string        `json:"mode"` // http | tcp
	Listen       []int         `json:"listen,omitempty"`
	Routes       []Route       `json:"routes"` // the most specific first
	Drain        time.Duration `json:"drain"`  // how long open connections have to finish
	CanaryWeight int           `json:"canary_weight,omitempty"`
	TLS          bool          `json:"tls,omitempty"`
	Address      string        `json:"address,omitempty"` // the control socket of an external balancer; empty: the node runs one
}

// Route says which requests go to which service.
type Route struct {
	Host    string `json:"host,omitempty"` // empty: any
	Path    string `json:"path,omitempty"` // this path and everything below it; empty: any
	Service string `json:"service"`
	Port    int    `json:"port"`
}

// The live values of a balancer's instance.
const (
	BalancerValue    = "mariposa.balancer" // a Balancer
	CertificateValue = "mariposa.tls"      // its certificate and key, as PEM
)

// BalancerProblem is the detail of a balancer's instance that says why it does not use its newest
// values.
const BalancerProblem = "problem"

// Encode returns a balancer as a live value.
func (b *Balancer) Encode() string {
	text, _ := json.Marshal(b) // never fails
	return string(text)
}

// The limits of a balancer.
const (
	MaxRoutes  = 100
	MaxListen  = 16
	MaxMembers = 500 // of all its services together
)

// Backend returns the name of the group of servers that a route leads to. An external balancer
// has one, with the name of the load balancer.
func (b *Balancer) Backend(name string, r Route) string {
	if b.Address != "" {
		return name
	}
	return r.Service + "." + strconv.Itoa(r.Port)
}

// Serves reports whether a balancer has routes to a service.
func (b *Balancer) Serves(service string) bool {
	return slices.ContainsFunc(b.Routes, func(r Route) bool { return r.Service == service })
}

// RoutesTo returns the routes of a balancer to a service.
func (b *Balancer) RoutesTo(service string) (all []Route) {
	for _, r := range b.Routes {
		if r.Service == service {
			all = append(all, r)
		}
	}
	return all
}

var (
	routeHost = regexp.MustCompile(`^(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
	routePath = regexp.MustCompile(`^(/[A-Za-z0-9._~@:+,=-]+)+/?$`)
)

// CheckRouteHost returns what is wrong with the host of a route, as the rest of a sentence; empty:
// nothing.
func CheckRouteHost(host string) string {
	if len(host) > 253 || !routeHost.MatchString(host) {
		return "must be a host name in lower case, like shop.example.org or *.example.org"
	}
	return ""
}

// CheckRoutePath is CheckRouteHost for a path.
func CheckRoutePath(path string) string {
	if path != "/" && (len(path) > 256 || !routePath.MatchString(path)) {
		return "must be a path like /api, of letters, digits and any of . _ ~ @ : + , = -"
	}
	return ""
}

// Check returns an error if a balancer contains anything that cannot be written into the
// configuration of a balancer as it is.
func (b *Balancer) Check() error {
	if b.Mode != "http" && b.Mode != "tcp" {
		return Errorf(InvalidArgument, "invalid mode %q of a load balancer", shortText(b.Mode))
	}
	if len(b.Routes) == 0 || len(b.Routes) > MaxRoutes || len(b.Listen) > MaxListen || b.Drain < 0 {
		return Errorf(InvalidArgument, "a load balancer has no routes, or more routes or ports than allowed")
	}
	for _, p := range b.Listen {
		if p < 1 || p > 65535 {
			return Errorf(InvalidArgument, "invalid port %d of a load balancer", p)
		}
	}
	for _, r := range b.Routes {
		switch {
		case r.Host != "" && CheckRouteHost(r.Host) != "":
			return Errorf(InvalidArgument, "the host of a route %s", CheckRouteHost(r.Host))
		case r.Path != "" && CheckRoutePath(r.Path) != "":
			return Errorf(InvalidArgument, "the path of a route %s", CheckRoutePath(r.Path))
		case !nodeName.MatchString(r.Service) || strings.Contains(r.Service, ".") || r.Port < 1 || r.Port > 65535:
			return Errorf(InvalidArgument, "invalid service or port of a route")
		}
	}
	return nil
}

// Member is an instance behind a balancer, as it should be.
type Member struct {
	Backend  string      `json:"backend"`
	Instance string      `json:"instance"`
	Name     string      `json:"name,omitempty"`    // of the instance, for people
	Address  string      `json:"address,omitempty"` // host:port; empty: it has none that the balancer can reach
	Weight   int         `json:"weight"`
	State    MemberState `json:"state"`            // MemberUp or MemberDrain
	Reason   string      `json:"reason,omitempty"` // why it has no address
}

// MemberStatus is a member as it is. Counters are there only where they were just read.
type MemberStatus struct {
	Backend  string      `json:"backend" doc:"the group of servers in the balancer that it belongs to"`
	Instance string      `json:"instance"`
	Name     string      `json:"name,omitempty" doc:"name of the instance"`
	Address  string      `json:"address"`
	Weight   int         `json:"weight"`
	State    MemberState `json:"state" enum:"up,drain,down"`
	// Idle: it is not up, and has no connections left.
	Idle        bool       `json:"idle,omitempty" doc:"it gets no more connections, and has none left"`
	Reason      string     `json:"reason,omitempty" doc:"why it is down"`
	Connections int        `json:"connections" doc:"open connections; in http mode, requests in progress"`
	Responses   *Responses `json:"responses,omitempty" doc:"HTTP responses since the balancer started; absent in tcp mode"`
}

// BalancerUsage is what a load balancer does now.
type BalancerUsage struct {
	Members []MemberStatus `json:"members"`
}

// Responses counts the HTTP responses of a member by status class.
type Responses struct {
	Informational int64 `json:"1xx"`
	Success       int64 `json:"2xx"`
	Redirect      int64 `json:"3xx"`
	ClientError   int64 `json:"4xx"`
	ServerError   int64 `json:"5xx"`
	Other         int64 `json:"other"`
}

// MemberState is whether a member gets connections.
type MemberState string

const (
	MemberUp    MemberState = "up"    // it gets new connections
	MemberDrain MemberState = "drain" // it finishes the connections that it has
	MemberDown  MemberState = "down"  // it gets none
)

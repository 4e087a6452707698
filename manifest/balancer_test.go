package manifest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
)

const twoServices = `services:
  web: {compute_type: process, command: [web], ports: [8080]}
  api: {image: api}
metadata: {cert: {secret: true}}
load_balancers:
`

func TestALoadBalancerIsRunByAServiceOfItsName(t *testing.T) {
	t.Parallel()
	p, err := Parse([]byte(twoServices + `  front:
    listen: [80, 443]
    tls: "{{ .meta.cert }}"
    canary_weight: 10
    scale: 2
    routes:
      - {service: web, port: 8080}
      - {host: "*.example.org", service: web, port: 8080}
      - {host: shop.example.org, service: web, port: 8080}
      - {host: shop.example.org, path: /api/, service: api, port: 9000}
`))
	if err != nil {
		t.Fatal(err)
	}
	s := p.ByName["front"]
	if s == nil || s.Compute != mariposa.ComputeBalancer || *s.Scale != 2 || !slices.Equal(s.FixedPorts(), []int{80, 443}) || len(s.DependsOn) > 0 {
		t.Fatalf("the service is %+v", s)
	}
	b := s.Balancer
	if b.Mode != "http" || b.Drain != 30*time.Second || b.CanaryWeight != 10 || !b.TLS {
		t.Errorf("the balancer is %+v", b)
	}
	var got []string
	for _, r := range b.Routes {
		got = append(got, r.Host+r.Path+">"+r.Service)
	}
	if want := []string{"shop.example.org/api>api", "shop.example.org>web", "*.example.org>web", ">web"}; !slices.Equal(got, want) {
		t.Errorf("the routes are %q, want %q", got, want)
	}
	if len(s.Mdata) != 2 || s.Mdata[0].Value != b.Encode() || s.Mdata[1] != (mariposa.Variable{Name: mariposa.CertificateValue, Value: "{{ .meta.cert }}"}) {
		t.Errorf("its live values are %q", s.Mdata)
	}
	if !p.Holds("front", "cert") || p.Holds("web", "cert") {
		t.Error("the certificate is not passed to the balancer alone")
	}
}

func TestOtherRoutesReplaceNoInstance(t *testing.T) {
	t.Parallel()
	parse := func(text string) *mariposa.Service {
		p, err := Parse([]byte(twoServices + text))
		if err != nil {
			t.Fatal(err)
		}
		return p.ByName["front"]
	}
	before := parse("  front: {listen: 80, service: web, port: 8080}\n")
	for text, same := range map[string]bool{
		"  front: {listen: 80, service: web, port: 8080, drain: 5, canary_weight: 20, tls: \"{{ .meta.cert }}\"}\n": true,
		"  front: {listen: 80, routes: [{service: api, port: 80}, {host: a.example, service: web, port: 8080}]}\n":  true,
		"  front: {listen: 81, service: web, port: 8080}\n":                                                         false,
		"  front: {address: /run/haproxy.sock, service: web, port: 8080}\n":                                         false,
	} {
		if after := parse(text); (after.Digest == before.Digest && after.Live == before.Live) != same {
			t.Errorf("%s: the same instance: %t, want %t", text, !same, same)
		}
	}
}

func TestAWrongLoadBalancerIsExplained(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"web: {listen: 80, service: api, port: 80}":                                                "services and load balancers need different names",
		"front: {listen: 80, service: wep, port: 80}":                                              `refers to service "wep", which does not exist; did you mean "web"?`,
		"front: {listen: 80, service: front, port: 80}":                                            `refers to service "front", which does not exist`,
		"front: {listen: 80, service: web, port: 9}":                                               "leads to port 9 of \"web\", which is not among its ports",
		"front: {service: web, port: 8080}":                                                        "a load balancer needs the port that it listens on",
		"front: {listen: 80}":                                                                      "a load balancer needs service and port, or routes",
		"front: {listen: [80, 80], service: web, port: 8080}":                                      "port 80 is listed twice",
		"front: {listen: 80, service: web, port: 8080, tls: secret}":                               "must refer to metadata",
		"front: {listen: 80, service: web, port: 8080, address: /a.sock}":                          "an external balancer has its own ports",
		"front: {address: nowhere, service: web, port: 8080}":                                      "must be the path of a socket",
		"front: {listen: 80, routes: []}":                                                          "is empty; add a route",
		"front: {listen: 80, mode: tcp, routes: [{host: a.example, service: web, port: 8080}]}":    "connections in tcp mode have neither",
		"front: {listen: 80, routes: [{path: \"/a b\", service: web, port: 8080}]}":                "must be a path like /api",
		"front: {listen: 80, routes: [{path: \"/a\\nbackend x\", service: web, port: 8080}]}":      "must be a path like /api",
		"front: {listen: 80, routes: [{host: \"a } { src 0.0.0.0/0\", service: web, port: 8080}]}": "must be a host name",
		"front: {listen: 80, routes: [{service: web, port: 8080}, {service: api, port: 80}]}":      "has the same host and path as an earlier route",
		"{a: {listen: 80, service: web, port: 8080}, b: {listen: 80, service: web, port: 8080}}":   "uses port 80, and so does load balancer",
		"front: {listen: 80, service: web, port: 8080, routes: [{service: web, port: 8080}]}":      "cannot be combined with service and port",
	} {
		if !strings.HasPrefix(text, "{") {
			text = "{" + text + "}"
		}
		_, err := Parse([]byte(strings.Replace(twoServices, "load_balancers:\n", "load_balancers: "+text+"\n", 1)))
		if err == nil || !strings.Contains(listing(err), want) {
			t.Errorf("%s: %s", text, listing(err))
		}
	}
}

func TestTheLineOfALoadBalancerIsFound(t *testing.T) {
	t.Parallel()
	doc := []byte(twoServices + "  front:\n    service: web\n    port: 8080\n    listen: 80\n")
	for key, want := range map[string]int{"listen": 9, "compute_type": 6} {
		if got := LineOf(doc, "front", key, -1); got != want {
			t.Errorf("%s: line %d, want %d", key, got, want)
		}
	}
}

package manifest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
)

// effect says what a change of a facet does to running instances.
type effect uint8

const (
	replaces      effect = iota // needs a new incarnation
	live                        // the driver changes it in place
	leavesRunning               // instances are not touched
)

// facet is one aspect of a service's definition, by its name in the manifest.
// Digests and differences are both made of facets, so they cannot disagree.
type facet struct {
	name   string
	parts  []string // none: like an absent key
	effect effect
}

// facets splits a service into facets, sorted by name. A facet without a value
// is left out, so that adding a key to manifests later does not change existing
// digests.
func facets(s *mariposa.Service) []facet {
	size := replaces
	switch s.Compute {
	case mariposa.ComputeDocker, mariposa.ComputeInfrastructure, mariposa.ComputeBalancer:
		size = live
	}
	f := &facetList{all: make([]facet, 0, 32)}
	f.add("service_type", replaces, s.Type)
	f.add("compute_type", replaces, string(s.Compute))
	f.add("image", replaces, s.Image)
	f.add(imageDigest, replaces, s.ImageDigest)
	f.add("package", replaces, s.Package)
	f.add("memory", size, number(s.Memory))
	f.add("cpu", size, number(s.MilliCPU))
	f.list("command", replaces, s.Command)
	f.list("entrypoint", replaces, s.Entrypoint)
	f.add("working_dir", replaces, s.WorkingDir)
	f.add("user", replaces, s.User)
	f.pairs("environment", replaces, s.Environment)
	f.pairs("files", replaces, s.Files)
	f.pairs("tags", replaces, s.Tags)
	f.pairs("mdata", leavesRunning, s.Mdata)
	f.set("affinity", replaces, s.Affinity)
	f.ports(s.Ports)
	f.list("dns", replaces, s.DNS)
	f.list("dns_search", replaces, s.DNSSearch)
	f.set("volumes", replaces, s.Volumes)
	f.set("volumes.shared", replaces, s.SharedVolumes)
	f.set("networks", replaces, s.Networks)
	f.set("networks.shared", replaces, s.Shared)
	if s.Pilot != nil {
		f.add("containerpilot", replaces, strconv.Itoa(s.Pilot.Port))
		f.add("containerpilot.network", replaces, s.Pilot.Network)
	}
	f.policies(s)
	f.dummy(s.Dummy)
	if s.Balancer != nil {
		f.add("address", replaces, s.Balancer.Address)
	}
	for i, h := range s.HealthChecks {
		f.healthCheck("healthchecks["+strconv.Itoa(i)+"]", h)
	}
	slices.SortStableFunc(f.all, func(a, b facet) int { return cmp.Compare(a.name, b.name) })
	return f.all
}

type facetList struct{ all []facet }

func (f *facetList) add(name string, e effect, value string) {
	if value != "" {
		f.all = append(f.all, facet{name: name, parts: []string{value}, effect: e})
	}
}

func (f *facetList) list(name string, e effect, parts []string) {
	if len(parts) > 0 {
		f.all = append(f.all, facet{name: name, parts: parts, effect: e})
	}
}

// set adds a list whose order does not matter.
func (f *facetList) set(name string, e effect, parts []string) {
	f.list(name, e, slices.Sorted(slices.Values(parts)))
}

func (f *facetList) pairs(name string, e effect, pairs []mariposa.Variable) {
	for _, v := range pairs { // a variable set to nothing differs from none
		f.all = append(f.all, facet{name: name + "." + v.Name, parts: []string{v.Value}, effect: e})
	}
}

func (f *facetList) ports(ports []mariposa.Port) {
	var texts []string
	for _, p := range ports {
		text := strconv.Itoa(p.Target)
		if p.Host > 0 {
			text = strconv.Itoa(p.Host) + ":" + text
		}
		texts = append(texts, text)
	}
	f.set("ports", replaces, texts)
}

// policies adds the facets of the service that are not part of an instance.
func (f *facetList) policies(s *mariposa.Service) {
	if s.Scale != nil {
		f.add("scale", leavesRunning, strconv.Itoa(*s.Scale))
	}
	restart := string(s.Restart.Policy)
	if s.Restart.Max > 0 {
		restart += ":" + strconv.Itoa(s.Restart.Max)
	}
	f.add("restart", leavesRunning, restart)
	if s.Reschedule.Never {
		f.add("reschedule", leavesRunning, "never")
	} else {
		f.add("reschedule.after", leavesRunning, seconds(s.Reschedule.After))
	}
	f.add("grace", leavesRunning, seconds(s.Grace))
	f.add("stop.timeout", leavesRunning, seconds(s.Stop.Timeout))
	f.add("stop.preservestopped", leavesRunning, s.Stop.PreserveStopped)
	f.set("depends_on", leavesRunning, s.DependsOn)
	f.add("schedule", leavesRunning, s.Schedule)
	f.add("update.rolling", leavesRunning, s.Update.Rolling.String())
	f.add("update.canary", leavesRunning, s.Update.Canary.String())
	f.add("update.order", leavesRunning, map[bool]string{false: "start-first", true: "stop-first"}[s.Update.StopFirst])
	f.add("update.min_healthy", leavesRunning, seconds(s.Update.MinHealthy))
	f.add("update.deadline", leavesRunning, seconds(s.Update.Deadline))
	f.add("update.on_failure", leavesRunning, string(s.Update.OnFailure))
	f.add("update.on_metadata", leavesRunning, s.Update.OnMetadata)
}

func (f *facetList) dummy(d *mariposa.Dummy) {
	if d == nil {
		return
	}
	f.add("dummy.name_len", replaces, number(int64(d.NameLen)))
	f.add("dummy.update_in_place_prop", live, d.UpdateInPlaceProp)
	if d.Fail {
		f.add("dummy.fail_prop", replaces, "yes")
	}
	if d.MaxWait > 0 {
		f.add("dummy.max_wait_secs", replaces, seconds(d.MaxWait))
	}
	if d.Wait > 0 {
		f.add("dummy.wait_secs", replaces, seconds(d.Wait))
	}
}

func (f *facetList) healthCheck(name string, h mariposa.HealthCheck) {
	f.add(name+".type", leavesRunning, h.Type)
	f.add(name+".port", leavesRunning, number(int64(h.Port)))
	f.add(name+".network", leavesRunning, h.Network)
	f.add(name+".path", leavesRunning, h.Path)
	f.list(name+".command", leavesRunning, h.Command)
	f.add(name+".user", leavesRunning, h.User)
	if h.Insecure {
		f.add(name+".verify", leavesRunning, "false")
	}
	f.add(name+".poll", leavesRunning, seconds(h.Poll))
	f.add(name+".unhealthy_poll", leavesRunning, seconds(h.UnhealthyPoll))
	f.add(name+".timeout", leavesRunning, seconds(h.Timeout))
	f.add(name+".retries", leavesRunning, strconv.Itoa(h.Retries))
	var status []string
	for _, r := range h.ExpectStatus {
		status = append(status, r.String())
	}
	f.list(name+".expect.status", leavesRunning, status)
	f.pairs(name+".expect.headers", leavesRunning, h.ExpectHeaders)
	f.add(name+".expect.body", leavesRunning, h.ExpectBody)
}

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}

// digests returns hashes over the facets that need a new incarnation and over those
// changed in place. Every text is prefixed with its length, so that no two different
// definitions are written alike; nothing of Go's own formatting is used. A service
// without in-place facets has an empty second one. More are facets that are not in the
// manifest itself.
func digests(s *mariposa.Service, more ...facet) (digest, inPlace string) {
	var fixed, changing strings.Builder
	for _, f := range append(facets(s), more...) {
		switch f.effect {
		case replaces:
			f.encode(&fixed)
		case live:
			f.encode(&changing)
		}
	}
	return hash(fixed.String()), hash(changing.String())
}

// checksDigest returns a hash over the health checks of a service; empty if it has none.
func checksDigest(s *mariposa.Service) string {
	if len(s.HealthChecks) == 0 && s.Pilot == nil {
		return ""
	}
	var b strings.Builder
	for _, f := range facets(s) {
		if f.name == "grace" || strings.HasPrefix(f.name, "healthchecks[") || strings.HasPrefix(f.name, "containerpilot") {
			f.encode(&b)
		}
	}
	return hash(b.String())
}

func (f facet) encode(b *strings.Builder) {
	for _, text := range append([]string{f.name}, f.parts...) {
		b.WriteString(strconv.Itoa(len(text)) + ":" + text)
	}
	b.WriteByte('\n')
}

func hash(text string) string {
	if text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// show formats a facet's value for people.
func (f facet) show() string {
	switch {
	case len(f.parts) == 0:
		return ""
	case f.name == "cpu":
		n, _ := strconv.ParseInt(f.parts[0], 10, 64)
		return milli(n)
	case len(f.parts) == 1 && f.name != "command" && f.name != "entrypoint":
		return f.parts[0]
	}
	return joinWords(f.parts)
}

package manifest

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"mariposa"
)

// maxScale bounds how many instances one service may have.
const maxScale = 1_000_000

// draft is a service while it is being checked, with what can only be checked
// once every service is known.
type draft struct {
	*mariposa.Service
	at              *spot
	computed        bool // its compute type is valid
	edges           []edge
	networks        []edge
	volumes         []edge
	checkedNetworks []edge // by health checks
	targets         []edge // of a load balancer
	refs            []usedPath
	variables       map[string]bool // of the environment, once it is needed
}

// edge is a dependency and where it is written.
type edge struct {
	to string
	at *spot
}

// usedPath is an interpolation and where it is written.
type usedPath struct {
	path string
	at   *spot
}

func newDraft(name string, at *spot) *draft {
	return &draft{at: at, Service: &mariposa.Service{
		Name:       name,
		Type:       "continuous",
		Compute:    mariposa.ComputeDocker,
		Grace:      30 * time.Second,
		Restart:    mariposa.Restart{Policy: mariposa.RestartNo},
		Reschedule: mariposa.Reschedule{After: time.Minute},
		Stop:       mariposa.Stop{Timeout: 10 * time.Second, PreserveStopped: "on-failure"},
		Update: mariposa.Update{
			Rolling:    mariposa.Amount{N: 1},
			MinHealthy: 5 * time.Second,
			Deadline:   600 * time.Second,
			OnFailure:  mariposa.OnFailurePause,
			OnMetadata: "hold",
		},
	}}
}

var serviceKeys = keys[draft]{
	"service_type": serviceType,
	"compute_type": computeType,
	"image":        image,
	"scale":        scale,
	"package":      packageName,
	"memory":       func(c *checker, at *spot, d *draft) { c.size(at, &d.Memory) },
	"cpu":          cpu,
	"command":      func(c *checker, at *spot, d *draft) { d.Command = c.readWords(at, d) },
	"entrypoint":   func(c *checker, at *spot, d *draft) { d.Entrypoint = c.readWords(at, d) },
	"working_dir":  workingDir,
	"user":         user,
	"environment": func(c *checker, at *spot, d *draft) {
		d.Environment = c.pairs(at, d, pairRules{list: true, name: variableName})
	},
	"mdata":          func(c *checker, at *spot, d *draft) { d.Mdata = c.pairs(at, d, pairRules{name: mdataName}) },
	"files":          files,
	"tags":           tags,
	"labels":         labels,
	"affinity":       affinity,
	"ports":          ports,
	"dns":            func(c *checker, at *spot, d *draft) { d.DNS = c.names(at, "addresses", ipAddress) },
	"dns_search":     func(c *checker, at *spot, d *draft) { d.DNSSearch = c.names(at, "domain names", domainName) },
	"volumes":        volumes,
	"networks":       networks,
	"depends_on":     dependsOn,
	"healthchecks":   healthChecks,
	"containerpilot": containerPilot,
	"grace":          func(c *checker, at *spot, d *draft) { c.secondsUpTo(at, 0, mostGrace, &d.Grace) },
	"restart":        restart,
	"reschedule":     reschedule,
	"stop":           func(c *checker, at *spot, d *draft) { object(c, at, "services.*.stop.", stopKeys, &d.Stop) },
	"update":         func(c *checker, at *spot, d *draft) { object(c, at, "services.*.update.", updateKeys, &d.Update) },
	"schedule":       schedule,
	"dummy":          dummy,
}

// service checks one service alone.
func (c *checker) service(at *spot) *draft {
	d := newDraft(at.key, at)
	if why := dnsLabel(at.key); why != "" {
		c.invalid(at, "the name %s", why)
	}
	if at.kind() == kindRefused || !object(c, at, "services.*.", serviceKeys, d) {
		return d
	}
	if at.child("compute_type") == nil {
		d.computed = true
		c.refuseUnsupportedDefault(at.missing("compute_type"), d.Compute)
	}
	if d.Dummy == nil && d.Compute == mariposa.ComputeDummy {
		d.Dummy = newDummy()
	}
	c.checkService(d)
	return d
}

// checkService checks that the keys of a service fit its types.
func (c *checker) checkService(d *draft) {
	if d.Type == "scheduled" && d.at.child("schedule") == nil {
		c.fault(d.at.missing("schedule"), mariposa.FaultMissing, "is missing; a scheduled service needs one, like \"0 3 * * *\"")
	}
	if at := d.at.child("schedule"); at != nil && d.Type != "scheduled" {
		c.invalid(at, "is only allowed for scheduled services; remove it or set service_type: scheduled")
	}
	c.checkNetworks(d)
	if !d.computed {
		return
	}
	image := d.at.child("image")
	switch d.Compute {
	case mariposa.ComputeProcess:
		if image != nil {
			c.invalid(image, "a process has no image; remove it or use another compute_type")
		}
		for _, v := range d.volumes {
			if mariposa.ParseMount(v.at.node.Value).ReadOnly {
				c.fault(v.at, mariposa.FaultNotSupported, "a process cannot have a read-only volume; remove :ro")
			}
		}
		if d.at.child("command") == nil {
			c.fault(d.at.missing("command"), mariposa.FaultMissing, "is missing; a process needs a command to run")
		}
	case mariposa.ComputeDummy:
	default:
		if image == nil {
			c.fault(d.at.missing("image"), mariposa.FaultMissing, "is missing; compute_type %s needs an image", d.Compute)
		}
	}
	c.checkImageKeys(d)
	c.checkServiceHealth(d)
	if at := d.at.child("ports"); at != nil && d.Compute == mariposa.ComputeInfrastructure && slices.ContainsFunc(d.Ports, func(p mariposa.Port) bool { return p.Host != 0 }) {
		c.invalid(at, "cannot have a port of the node: a system container is reached at its own address; write the container's port alone, such as 8080")
	}
	if at := d.at.child("dummy"); at != nil && d.Compute != mariposa.ComputeDummy {
		c.invalid(at, "is only allowed with compute_type dummy; remove it")
	}
}

// checkImageKeys refuses keys that only some instances with images can have.
func (c *checker) checkImageKeys(d *draft) {
	isContainer := d.Compute == mariposa.ComputeDocker || d.Compute == mariposa.ComputeInfrastructure
	if at := d.at.child("entrypoint"); at != nil && !isContainer {
		c.invalid(at, "is only allowed with compute_type docker or infrastructure; use command")
	}
	for _, key := range []string{"user", "dns", "dns_search"} {
		at := d.at.child(key)
		switch {
		case at == nil || isContainer:
		case key == "user":
			c.invalid(at, "is only allowed with compute_type docker or infrastructure; remove it")
		case d.Compute != mariposa.ComputeKVM:
			c.invalid(at, "is only allowed with compute_type docker, infrastructure or kvm; remove it")
		}
	}
}

func serviceType(c *checker, at *spot, d *draft) {
	if word, ok := c.choice(at, "continuous", "scheduled", "event"); ok {
		d.Type = word
	}
}

// computeTypes maps each name of a compute type to its canonical one.
var computeTypes = map[string]mariposa.ComputeType{
	"docker":         mariposa.ComputeDocker,
	"infrastructure": mariposa.ComputeInfrastructure,
	"lx":             mariposa.ComputeInfrastructure,
	"smartmachine":   mariposa.ComputeInfrastructure,
	"kvm":            mariposa.ComputeKVM,
	"vm":             mariposa.ComputeKVM,
	"hvm":            mariposa.ComputeKVM,
	"process":        mariposa.ComputeProcess,
	"dummy":          mariposa.ComputeDummy,
}

func computeType(c *checker, at *spot, d *draft) {
	word, ok := c.choice(at, "docker", "infrastructure", "lx", "smartmachine", "kvm", "vm", "hvm", "process", "dummy")
	if ok {
		d.Compute, d.computed = computeTypes[word], true
	}
}

func image(c *checker, at *spot, d *draft) {
	text, ok := c.text(at)
	if !ok {
		return
	}
	if text == "" || len(text) > 512 || strings.IndexFunc(text, func(r rune) bool { return !pathChar(r) && !strings.ContainsRune("./:@+", r) }) >= 0 {
		c.invalid(at, "must be an image name like shop/web:1.4")
		return
	}
	d.Image = text
}

func workingDir(c *checker, at *spot, d *draft) {
	text, ok := c.text(at)
	switch {
	case !ok:
	case strings.Contains(text, "{{"):
		c.invalid(at, "cannot contain an interpolation; write the path itself")
	case text != "/" && filePath(text) != "":
		c.invalid(at, "must be an absolute path such as /srv/web, without . or .. segments")
	default:
		d.WorkingDir = text
	}
}

// userName matches a user of an image by name or number, perhaps with a group.
var userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)

func user(c *checker, at *spot, d *draft) {
	if text, ok := c.text(at); ok {
		if !userName.MatchString(text) {
			c.invalid(at, "must be a user of the image, like 1000, web or 1000:1000")
		}
		d.User = text
	}
}

func scale(c *checker, at *spot, d *draft) {
	if n, ok := c.whole(at, 0, maxScale); ok {
		d.Scale = &n
	}
}

func packageName(c *checker, at *spot, d *draft) {
	if text, ok := c.text(at); ok {
		if why := anyName(text); why != "" {
			c.invalid(at, "%s", why)
		}
		d.Package = text
	}
}

func cpu(c *checker, at *spot, d *draft) {
	n, ok := c.number(at, 0, 4096)
	if !ok {
		return
	}
	d.MilliCPU = int64(math.Round(n * 1000))
	if n > 0 && d.MilliCPU == 0 {
		c.invalid(at, "must be at least 0.001 of a core; omit it for no limit")
	}
}

func tags(c *checker, at *spot, d *draft) {
	d.Tags = c.pairs(at, d, pairRules{list: true, name: anyName})
}

func labels(c *checker, at *spot, d *draft) {
	if at.up.child("tags") != nil {
		c.fault(at, mariposa.FaultDuplicate, "is an alias of tags, which is also set; keep one")
		return
	}
	tags(c, at, d)
}

func files(c *checker, at *spot, d *draft) {
	d.Files = c.pairs(at, d, pairRules{name: filePath})
	paths := make(map[string]bool, len(d.Files))
	for _, f := range d.Files {
		paths[f.Name] = true
	}
	for _, f := range d.Files {
		for i := strings.LastIndexByte(f.Name, '/'); i > 0; i = strings.LastIndexByte(f.Name[:i], '/') {
			if paths[f.Name[:i]] {
				c.invalid(at, "has both a file %s and a file in a directory of that name; rename one", quoteText(f.Name[:i]))
			}
		}
	}
}

// maxMounts bounds how many volumes one service uses: each of its instances has a copy of
// the list.
const maxMounts = 32

func volumes(c *checker, at *spot, d *draft) {
	used := map[string]bool{}
	for _, item := range c.distinct(at, "volumes like data:/path", mount) {
		m := mariposa.ParseMount(item.node.Value)
		switch other := overlap(used, m.Path); {
		case len(used) == maxMounts:
			c.fault(item, mariposa.FaultTooLarge, "exceeds the limit of %d volumes per service", maxMounts)
			return
		case other == m.Path:
			c.fault(item, mariposa.FaultDuplicate, "mounts a second volume at %s; choose another path", quoteText(m.Path))
			continue
		case other != "":
			c.invalid(item, "mounts a volume at %s, and another one is mounted at %s; one cannot be inside the other", quoteText(m.Path), quoteText(other))
			continue
		}
		used[m.Path] = true
		d.volumes = append(d.volumes, edge{to: m.Name, at: item})
		d.Volumes = append(d.Volumes, item.node.Value)
	}
}

// overlap finds a path that is the same as another, or contains it, or is
// inside it.
func overlap(used map[string]bool, path string) string {
	for _, other := range sortedKeys(used) {
		if path == other || strings.HasPrefix(path, other+"/") || strings.HasPrefix(other, path+"/") {
			return other
		}
	}
	return ""
}

// maxNetworks bounds how many networks one service uses: each of its instances has a copy
// of the list.
const maxNetworks = 32

func networks(c *checker, at *spot, d *draft) {
	for n, item := range c.distinct(at, "network names", dnsLabel) {
		if n == maxNetworks {
			c.fault(item, mariposa.FaultTooLarge, "exceeds the limit of %d networks per service", maxNetworks)
			return
		}
		d.networks = append(d.networks, edge{to: item.node.Value, at: item})
		d.Networks = append(d.Networks, item.node.Value)
	}
}

// share records which of its networks a service shares with other projects.
func (d *draft) share(all []Network) {
	for _, n := range all {
		if n.Shared && slices.Contains(d.Networks, n.Name) {
			d.Shared = append(d.Shared, n.Name)
		}
	}
	slices.Sort(d.Shared)
}

func dependsOn(c *checker, at *spot, d *draft) {
	for _, item := range c.distinct(at, "service names", nil) {
		d.edges = append(d.edges, edge{to: item.node.Value, at: item})
	}
}

// setsVariable reports whether a service sets an environment variable.
func (d *draft) setsVariable(name string) bool {
	if d.variables == nil {
		d.variables = make(map[string]bool, len(d.Environment))
		for _, v := range d.Environment {
			d.variables[v.Name] = true
		}
	}
	return d.variables[name]
}

// size records the sizes of the volumes that a service uses, and which of them are shared.
func (d *draft) size(all []Volume) {
	for _, v := range all {
		if !slices.ContainsFunc(d.volumes, func(e edge) bool { return e.to == v.Name }) {
			continue
		}
		if v.Size > 0 {
			if d.Sizes == nil {
				d.Sizes = map[string]int64{}
			}
			d.Sizes[v.Name] = v.Size
		}
		if v.Shared {
			d.SharedVolumes = append(d.SharedVolumes, v.Name)
		}
	}
	slices.Sort(d.SharedVolumes)
}

// saysOrder reports whether a service sets update.order.
func (d *draft) saysOrder() bool {
	update := d.at.child("update")
	return update != nil && update.child("order") != nil
}

// finish fills in what depends on the whole service.
func (d *draft) finish() *mariposa.Service {
	for _, e := range d.edges {
		d.DependsOn = append(d.DependsOn, e.to)
	}
	slices.Sort(d.DependsOn)
	d.DependsOn = slices.Compact(d.DependsOn)
	d.Refs, d.LiveRefs = refsOf(d.Service)
	if len(d.Volumes) > 0 && !d.saysOrder() { // two incarnations of a slot would write the same data
		d.Update.StopFirst = true
	}
	d.Digest, d.Live = digests(d.Service)
	d.ChecksDigest = checksDigest(d.Service)
	return d.Service
}

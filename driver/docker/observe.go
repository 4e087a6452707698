package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
)

// These labels of a container say which instance it is. People can filter by them:
// docker ps --filter label=mariposa.project=shop
const (
	labelScope       = "mariposa.node"
	labelInstance    = "mariposa.instance"
	labelCluster     = "mariposa.cluster"
	labelIncarnation = "mariposa.incarnation"
	labelName        = "mariposa.name"
	labelProject     = "mariposa.project"
	labelService     = "mariposa.service"
	labelOrigin      = "mariposa.origin"
	labelConfig      = "mariposa.config" // the digest of what it was created with
	labelPorts       = "mariposa.ports"  // those of the manifest, first to last
	labelResource    = "mariposa.resource"
)

// containerName returns the name of an instance's container. It follows from the id alone, so
// that the engine refuses to create a second one.
func containerName(id string) string { return "mariposa-" + id }

// inspect returns an instance as the engine shows it. The error says so if there is none.
func (d *Driver) inspect(ctx context.Context, id string) (driver.Observed, error) {
	c, err := d.container(ctx, id)
	if err != nil {
		return driver.Observed{ID: id}, err
	}
	return d.observed(id, c), nil
}

// container returns the container of an instance of this node.
func (d *Driver) container(ctx context.Context, id string) (*container.InspectResponse, error) {
	r, err := d.api().ContainerInspect(ctx, d.reference(id), client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	c := &r.Container
	if a := d.adoptions.of(id); a != nil && a.Container == c.ID && c.Config != nil && c.State != nil {
		return c, nil
	}
	if c.Config == nil || c.State == nil || c.Config.Labels[labelScope] != d.options.Scope || c.Config.Labels[labelInstance] != id {
		return nil, fmt.Errorf("the container %s belongs to another node or to someone else: remove or rename it: %w", containerName(id), errdefs.ErrNotFound)
	}
	return c, nil
}

// observed describes a container as an instance.
func (d *Driver) observed(id string, c *container.InspectResponse) driver.Observed {
	labels := c.Config.Labels
	if a := d.adoptions.of(id); a != nil {
		labels = a.labels(id)
	}
	kept := d.readRecord(id)
	o := driver.Observed{
		ID: id, Labels: driver.Labels{Cluster: labels[labelCluster], Incarnation: labels[labelIncarnation]}, Shared: true,
		Name: labels[labelName], Project: labels[labelProject], Running: c.State.Running, PhysicalID: c.ID,
		Started: parseTime(c.State.StartedAt), ManualRestarts: kept.ManualRestarts, Details: details(c),
	}
	if why := d.unlimited(); why != "" && kept.Limited {
		o.Details[limitsDetail] = "not enforced: " + why
	}
	if text := labels[labelOrigin]; text != "" {
		var origin mariposa.Provenance
		if json.Unmarshal([]byte(text), &origin) == nil {
			o.Origin = &origin
		}
	}
	if o.Running {
		o.Addresses = addresses(c)
		return o
	}
	if o.Finished = parseTime(c.State.FinishedAt); !o.Started.IsZero() {
		o.Reason = howEnded(c.State, d.judgeOOM(c))
		if code := c.State.ExitCode; c.State.Error == "" || code != 0 {
			o.ExitCode = &code
		}
	}
	return o
}

// howEnded describes the end of a container as the rest of a sentence.
func howEnded(s *container.State, oom oomVerdict) string {
	code := s.ExitCode
	switch signal := code - 128; {
	case oom == certainOOM:
		return "ran out of memory and was killed"
	case oom == likelyOOM:
		return "killed by signal 9 (SIGKILL), probably because it ran out of memory"
	case s.Error != "":
		return strings.TrimSuffix(s.Error, ".")
	case signal > 0 && signal < 65 && unix.SignalName(syscall.Signal(signal)) != "":
		return fmt.Sprintf("killed by signal %d (%s)", signal, unix.SignalName(syscall.Signal(signal)))
	}
	return fmt.Sprintf("exited with code %d", code)
}

// details are what people may want to know of a container.
func details(c *container.InspectResponse) map[string]string {
	name, digest, _ := strings.Cut(c.Config.Image, "@")
	out := map[string]string{"container": c.ID[:min(12, len(c.ID))], "image": name, "image_id": c.Image}
	if digest != "" {
		out["image_digest"] = digest
	}
	labels := mariposa.LabelsOf(c.Config.Labels) // a container has the labels of its image
	for key, value := range map[string]string{"image_revision": labels.Revision, "image_version": labels.Version} {
		if value != "" {
			out[key] = value
		}
	}
	if c.State.Running && c.State.Pid > 0 {
		out["pid"] = strconv.Itoa(c.State.Pid)
	}
	if c.NetworkSettings == nil {
		return out
	}
	for name, n := range c.NetworkSettings.Networks {
		if id, ok := declaredNetwork(name); ok && n != nil && n.IPAddress.IsValid() {
			out[mariposa.NetworkDetail(id)] = n.IPAddress.String()
		}
	}
	var published []string
	for port, bindings := range c.NetworkSettings.Ports {
		for _, b := range bindings {
			published = append(published, b.HostPort+":"+port.Port())
		}
	}
	if len(published) > 0 {
		slices.Sort(published)
		out["published"] = strings.Join(slices.Compact(published), ", ")
	}
	return out
}

// addresses returns where a running container is reached: its own address with each of its
// ports, or its address alone if it has none.
func addresses(c *container.InspectResponse) []string {
	ip := address(c)
	if !ip.IsValid() {
		return nil
	}
	ports := strings.FieldsFunc(c.Config.Labels[labelPorts], func(r rune) bool { return r == ',' })
	if c.Config.Labels[labelInstance] == "" { // it was adopted
		ports = exposedPorts(c)
	}
	if len(ports) == 0 {
		return []string{ip.String()}
	}
	var all []string
	for _, p := range ports {
		all = append(all, net.JoinHostPort(ip.String(), p))
	}
	return all
}

// address returns the address of a container in its first network, by name.
func address(c *container.InspectResponse) netip.Addr {
	if c.NetworkSettings == nil {
		return netip.Addr{}
	}
	first, found := "", netip.Addr{}
	for name, n := range c.NetworkSettings.Networks {
		if ip := cmpAddr(n.IPAddress, n.GlobalIPv6Address); ip.IsValid() && (first == "" || name < first) {
			first, found = name, ip
		}
	}
	return found
}

// cmpAddr returns the first of two addresses that is valid.
func cmpAddr(a, b netip.Addr) netip.Addr {
	if a.IsValid() {
		return a
	}
	return b
}

// parseTime reads a time of the engine; zero if it has not happened.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() < 2 {
		return time.Time{}
	}
	return t.UTC()
}

func compareIDs(a, b string) int { return cmp.Compare(a, b) }

package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/statefile"
)

// adoptedDir has a record for each adopted container, by the id of its instance.
const adoptedDir = "adopted"

// adoption is the record of an adopted container: what labels say of those that we create.
type adoption struct {
	Container string               `json:"container"` // its full id
	Labels    driver.Labels        `json:"labels"`
	Name      string               `json:"name,omitempty"`
	Project   string               `json:"project,omitempty"`
	Origin    *mariposa.Provenance `json:"origin,omitempty"`
}

// labels returns the labels that the container would have.
func (a *adoption) labels(id string) map[string]string {
	labels := map[string]string{
		labelInstance: id, labelCluster: a.Labels.Cluster, labelIncarnation: a.Labels.Incarnation, labelName: a.Name, labelProject: a.Project,
	}
	if b, err := json.Marshal(a.Origin); a.Origin != nil && err == nil {
		labels[labelOrigin] = string(b)
	}
	return labels
}

// adoptions are the records of adopted containers. A record is durable before the container
// counts as an instance.
type adoptions struct {
	dir string
	mu  sync.Mutex
	all map[string]*adoption // by instance; a record never changes
}

// load reads the records.
func (s *adoptions) load(dir string) error {
	s.dir, s.all = dir, map[string]*adoption{}
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot read which containers were adopted: %w", err)
	}
	for _, f := range files {
		id, isRecord := strings.CutSuffix(f.Name(), ".json")
		if !isRecord || strings.HasPrefix(id, statefile.Prefix) {
			_ = os.Remove(filepath.Join(dir, f.Name())) // a write that was cut off
			continue
		}
		var a adoption
		if err := statefile.Read(filepath.Join(dir, f.Name()), &a); err != nil {
			return fmt.Errorf("cannot read which container was adopted as instance %s: %w", id, err)
		}
		s.all[id] = &a
	}
	return nil
}

// of returns the record of an instance; nil if its container was not adopted.
func (s *adoptions) of(id string) *adoption {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// instanceOf returns the instance that a container was adopted as; empty if it was not.
func (s *adoptions) instanceOf(container string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, a := range s.all {
		if a.Container == container {
			return id
		}
	}
	return ""
}

// ids returns the instances whose containers were adopted.
func (s *adoptions) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.all))
}

// containers returns the ids of the adopted containers.
func (s *adoptions) containers() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.all {
		all = append(all, a.Container)
	}
	return all
}

// put records an adoption durably. Another instance must not have the same container.
func (s *adoptions) put(id string, a *adoption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, has := range s.all {
		if has.Container == a.Container && other != id {
			return fmt.Errorf("the container is already adopted as instance %s", other)
		}
	}
	b, err := json.Marshal(a)
	if err == nil {
		err = statefile.Replace(filepath.Join(s.dir, id+".json"), b, 0o600, os.Getuid(), os.Getgid())
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("cannot record the adopted container on this node: %w", err)
	}
	s.all[id] = a
	return nil
}

// forget removes the record of an instance. It is not an error if there is none.
func (s *adoptions) forget(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[id] == nil {
		return nil
	}
	if err := statefile.IgnoreMissing(os.Remove(filepath.Join(s.dir, id+".json"))); err != nil {
		return fmt.Errorf("cannot remove the record of an adopted container: %w", err)
	}
	delete(s.all, id)
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// reference returns how the engine knows the container of an instance.
func (d *Driver) reference(id string) string {
	if a := d.adoptions.of(id); a != nil {
		return a.Container
	}
	return containerName(id)
}

// instanceOf returns the instance of this node that a container is, by its labels or its
// record; empty if it is none.
func (d *Driver) instanceOf(container string, labels map[string]string) string {
	if labels[labelScope] == d.options.Scope {
		return labels[labelInstance]
	}
	if isOurs(labels) {
		return ""
	}
	return d.adoptions.instanceOf(container)
}

// isOurs reports whether a container was created by a Mariposa, whichever.
func isOurs(labels map[string]string) bool {
	return labels[labelScope] != "" || labels[labelInstance] != ""
}

// listOwn lists the containers of this node: created or adopted.
func (d *Driver) listOwn(ctx context.Context) ([]container.Summary, error) {
	list, err := d.api().ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", labelScope+"="+d.options.Scope)})
	ids := d.adoptions.containers()
	if err != nil || len(ids) == 0 {
		return list.Items, err
	}
	adopted, err := d.api().ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("id", ids...)})
	own := slices.DeleteFunc(adopted.Items, func(c container.Summary) bool { return d.adoptions.instanceOf(c.ID) == "" })
	return append(list.Items, own...), err
}

// forgetGone removes the record of an adopted container that no longer exists.
func (d *Driver) forgetGone(ctx context.Context, id string) {
	a := d.adoptions.of(id)
	if a == nil {
		return
	}
	if _, err := d.api().ContainerInspect(ctx, a.Container, client.ContainerInspectOptions{}); !errdefs.IsNotFound(err) {
		return
	}
	if err := d.forget(ctx, id); err != nil {
		slog.Warn("cannot forget an adopted container that is gone; it is tried again later", "instance", id, "err", err)
	}
}

// forget removes the claim and the record of an adopted container that is gone.
func (d *Driver) forget(ctx context.Context, id string) error {
	a := d.adoptions.of(id)
	if a == nil {
		return nil
	}
	if err := d.unclaim(ctx, a.Container); err != nil {
		return err
	}
	return d.adoptions.forget(id)
}

// ForeignContainers lists the containers that no Mariposa has created or this driver adopted.
func (d *Driver) ForeignContainers(ctx context.Context) ([]mariposa.ForeignContainer, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	list, err := d.api().ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, d.explain(err)
	}
	all := []mariposa.ForeignContainer{}
	for _, c := range list.Items {
		if !isOurs(c.Labels) && d.adoptions.instanceOf(c.ID) == "" {
			all = append(all, foreignSummary(c))
		}
	}
	slices.SortFunc(all, func(a, b mariposa.ForeignContainer) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// foreignSummary describes a container in the engine's list.
func foreignSummary(c container.Summary) mariposa.ForeignContainer {
	f := mariposa.ForeignContainer{
		ID: c.ID, Image: c.Image, State: string(c.State), Created: time.Unix(c.Created, 0).UTC(), Running: isUp(c.State),
	}
	if len(c.Names) > 0 {
		f.Name = strings.TrimPrefix(c.Names[0], "/")
	}
	for _, p := range c.Ports {
		if p.PublicPort != 0 && p.Type == "tcp" {
			f.Ports = append(f.Ports, int(p.PublicPort))
		}
	}
	f.Ports = unique(f.Ports)
	if c.NetworkSettings != nil {
		for _, n := range c.NetworkSettings.Networks {
			if ip := cmpAddr(n.IPAddress, n.GlobalIPv6Address); ip.IsValid() {
				f.Addresses = append(f.Addresses, ip.String())
			}
		}
	}
	slices.Sort(f.Addresses)
	return f
}

// unique sorts ports and drops those that are there twice: a port is published for IPv4 and
// IPv6.
func unique(ports []int) []int {
	slices.Sort(ports)
	return slices.Compact(ports)
}

// ForeignContainer returns a foreign container with its limits.
func (d *Driver) ForeignContainer(ctx context.Context, ref string) (mariposa.ForeignContainer, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return mariposa.ForeignContainer{}, err
	}
	defer leave()
	c, err := d.findForeign(ctx, ref)
	if err != nil {
		return mariposa.ForeignContainer{}, err
	}
	if id := d.adoptions.instanceOf(c.ID); id != "" {
		return mariposa.ForeignContainer{}, mariposa.Errorf(mariposa.Conflict, "the container %s is already adopted, as instance %s", ref, id)
	}
	return describeForeign(c), nil
}

// findForeign returns a container that no Mariposa has created.
func (d *Driver) findForeign(ctx context.Context, ref string) (*container.InspectResponse, error) {
	if ref == "" || strings.ContainsAny(ref, "/?#%") { // the engine would read it as another request
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "%q is neither the id nor the name of a container", ref)
	}
	r, err := d.api().ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
	c := &r.Container
	switch {
	case errdefs.IsNotFound(err), err == nil && (c.Config == nil || c.State == nil || c.HostConfig == nil):
		return nil, mariposa.Errorf(mariposa.ResourceNotFound, "there is no container %q", ref)
	case err != nil:
		return nil, d.explain(err)
	case isOurs(c.Config.Labels):
		return nil, mariposa.Errorf(mariposa.Conflict, "the container %s was created by Mariposa, for instance %s: only other containers can be adopted",
			ref, cmp.Or(c.Config.Labels[labelName], c.Config.Labels[labelInstance]))
	}
	return c, nil
}

// describeForeign describes a container with its limits.
func describeForeign(c *container.InspectResponse) mariposa.ForeignContainer {
	f := mariposa.ForeignContainer{
		ID: c.ID, Name: strings.TrimPrefix(c.Name, "/"), Image: c.Config.Image, State: string(c.State.Status), Created: parseTime(c.Created), Running: c.State.Running,
		Memory: c.HostConfig.Memory, MilliCPU: c.HostConfig.NanoCPUs / 1_000_000,
	}
	if quota, period := c.HostConfig.CPUQuota, c.HostConfig.CPUPeriod; f.MilliCPU == 0 && quota > 0 {
		f.MilliCPU = quota * 1000 / cmp.Or(period, cpuPeriod)
	}
	if ip := address(c); ip.IsValid() {
		f.Addresses = []string{ip.String()}
	}
	published := c.HostConfig.PortBindings // of one that does not run
	if c.NetworkSettings != nil && c.State.Running {
		published = c.NetworkSettings.Ports
	}
	for port, bindings := range published {
		for _, b := range bindings {
			if n, err := strconv.Atoi(b.HostPort); err == nil && port.Proto() == network.TCP {
				f.Ports = append(f.Ports, n)
			}
		}
	}
	f.Ports = unique(f.Ports)
	return f
}

// Adopt records that a container is an instance. The container is not touched.
func (d *Driver) Adopt(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	return d.operate(ctx, i.ID, func(ctx context.Context, _ *entry) (driver.Observed, error) {
		if err := d.adopt(ctx, i); err != nil {
			return driver.Observed{}, err
		}
		return d.inspect(ctx, i.ID)
	})
}

// adopt records which container an instance is, unless that is recorded.
func (d *Driver) adopt(ctx context.Context, i driver.Instance) error {
	c, err := d.findForeign(ctx, i.Adopts)
	var refused *mariposa.Error
	switch {
	case errors.As(err, &refused):
		return &explained{refused.Message, err}
	case err != nil:
		return err
	case c.ID != i.Adopts: // a prefix or a name may mean another container later
		return &explained{fmt.Sprintf("%q is not the full id of a container", i.Adopts), nil}
	}
	if known := d.adoptions.of(i.ID); known != nil && known.Container == c.ID {
		return nil
	}
	if other := d.adoptions.instanceOf(c.ID); other != "" && other != i.ID {
		return &explained{fmt.Sprintf("the container is already adopted as instance %s", other), nil}
	}
	a := &adoption{Container: c.ID, Labels: i.Labels, Name: i.Name, Project: i.Project, Origin: i.Origin}
	err = d.claim(ctx, i.ID, a)
	if err == nil {
		err = d.adoptions.put(i.ID, a)
	}
	if err != nil {
		return &explained{err.Error(), err}
	}
	return nil
}

// startAdopted starts an adopted container that has ended. It is never created again.
func (d *Driver) startAdopted(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	return d.operate(ctx, i.ID, func(ctx context.Context, _ *entry) (driver.Observed, error) {
		if err := d.adopt(ctx, i); err != nil {
			return driver.Observed{}, err
		}
		c, err := d.container(ctx, i.ID)
		switch {
		case err != nil:
			return driver.Observed{}, err
		case c.State.Running:
			return d.observed(i.ID, c), nil
		}
		if err := d.run(ctx, i); err != nil {
			return driver.Observed{}, err
		}
		return d.startedState(ctx, i.ID)
	})
}

// stopTimeout returns how long a container may take to stop. An adopted one has its own timeout,
// unless it is killed.
func (d *Driver) stopTimeout(id string, c *container.InspectResponse, timeout time.Duration) time.Duration {
	if own := c.Config.StopTimeout; timeout > 0 && own != nil && d.adoptions.of(id) != nil {
		return max(timeout, time.Duration(*own)*time.Second)
	}
	return timeout
}

// exposedPorts returns the TCP ports on which a container says that it listens.
func exposedPorts(c *container.InspectResponse) (all []string) {
	var ports []int
	for p := range c.Config.ExposedPorts {
		if p.Proto() == network.TCP {
			ports = append(ports, int(p.Num()))
		}
	}
	for _, n := range unique(ports) {
		all = append(all, strconv.Itoa(n))
	}
	return all
}

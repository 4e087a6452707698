package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
)

const (
	cpuPeriod = 100_000 // microseconds
	maxPIDs   = 4096
	// noMemoryLimit is what takes a limit away again: the engine ignores a limit of zero.
	noMemoryLimit = 1 << 53
)

// plan returns the container that an instance needs, with the networks to connect it to after
// the first.
func (d *Driver) plan(i driver.Instance) (c client.ContainerCreateOptions, more []string, err error) {
	w := withPort(i.Workload)
	labels := map[string]string{
		labelScope: d.options.Scope, labelInstance: i.ID, labelCluster: i.Labels.Cluster, labelIncarnation: i.Labels.Incarnation,
		labelName: i.Name, labelProject: i.Project, labelService: i.Service,
	}
	for _, t := range w.Tags {
		if !strings.HasPrefix(t.Name, "mariposa.") {
			labels[t.Name] = t.Value
		}
	}
	pids := int64(maxPIDs)
	c = client.ContainerCreateOptions{
		Name: containerName(i.ID),
		Config: &container.Config{
			Image: d.imageName(w.Image), Cmd: w.Command, Entrypoint: w.Entrypoint, WorkingDir: w.WorkingDir, User: w.User,
			Env: environment(i, w), Labels: labels, ExposedPorts: network.PortSet{}, Hostname: hostname(i.Name),
		},
		HostConfig: &container.HostConfig{
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled}, // restarts are ours
			LogConfig:     container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "8m", "max-file": "3"}},
			SecurityOpt:   []string{"no-new-privileges"},
			PortBindings:  network.PortMap{}, DNSSearch: w.DNSSearch,
			Resources: container.Resources{PidsLimit: &pids},
			Mounts:    d.mounts(i, w),
		},
	}
	for _, text := range w.DNS {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return c, nil, fmt.Errorf("its name server %q is not an address", text)
		}
		c.HostConfig.DNS = append(c.HostConfig.DNS, ip)
	}
	if err := d.publish(&c, w); err != nil {
		return c, nil, err
	}
	more = d.joinNetworks(&c, i)
	sum, err := digest(&c, more)
	if err != nil {
		return c, nil, err
	}
	labels[labelConfig] = sum
	if i.Origin != nil { // where it came from is no reason to create it again
		b, err := json.Marshal(i.Origin)
		if err != nil {
			return c, nil, err
		}
		labels[labelOrigin] = string(b)
	}
	c.HostConfig.Resources = limits(w, false)
	c.HostConfig.PidsLimit = &pids
	return c, more, nil
}

// limits returns the limits of a workload. If they replace others, a missing one is written
// out.
func limits(w *mariposa.Workload, replace bool) container.Resources {
	var r container.Resources
	switch {
	case w.Memory > 0:
		r.Memory, r.MemorySwap = w.Memory, w.Memory
	case replace:
		r.Memory, r.MemorySwap = noMemoryLimit, noMemoryLimit
	}
	switch {
	case w.MilliCPU > 0:
		r.CPUPeriod, r.CPUQuota = cpuPeriod, w.MilliCPU*cpuPeriod/1000
	case replace:
		r.CPUPeriod, r.CPUQuota = cpuPeriod, -1
	}
	return r
}

// withPort returns a workload with its port: in a container it is the port itself.
func withPort(w *mariposa.Workload) *mariposa.Workload {
	if len(w.Ports) == 0 {
		return w
	}
	return w.WithPort(w.Ports[0].Target)
}

// publish exposes the ports of a workload, and publishes those that have a port of the node.
func (d *Driver) publish(c *client.ContainerCreateOptions, w *mariposa.Workload) error {
	var all []string
	for _, p := range w.Ports {
		port, ok := network.PortFrom(uint16(p.Target), network.TCP) //nolint:gosec // the manifest has checked it
		if !ok {
			return fmt.Errorf("its port %d is no port", p.Target)
		}
		c.Config.ExposedPorts[port] = struct{}{}
		all = append(all, strconv.Itoa(p.Target))
		if p.Host != 0 {
			c.HostConfig.PortBindings[port] = append(c.HostConfig.PortBindings[port], network.PortBinding{HostIP: d.options.Publish, HostPort: strconv.Itoa(p.Host)})
		}
	}
	c.Config.Labels[labelPorts] = strings.Join(all, ",")
	return nil
}

func endpoint(i driver.Instance) *network.EndpointSettings {
	aliases := []string{i.Service, i.Name}
	return &network.EndpointSettings{Aliases: slices.DeleteFunc(aliases, func(a string) bool { return a == "" })}
}

// digest covers everything that a container cannot change. Its limits are not part of it.
func digest(c *client.ContainerCreateOptions, more []string) (string, error) {
	b, err := json.Marshal([]any{c, more})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16]), nil
}

// environment returns the variables of an instance, with those that say what it is and where
// its values are.
func environment(i driver.Instance, w *mariposa.Workload) []string {
	set := map[string]string{"MARIPOSA_NAME": i.Name, "MARIPOSA_SERVICE": i.Service, "MARIPOSA_PROJECT": i.Project}
	for n, p := range w.Ports {
		if n == 0 {
			set["PORT"] = strconv.Itoa(p.Target)
		}
		set["PORT_"+strconv.Itoa(p.Target)] = strconv.Itoa(p.Target)
	}
	for _, v := range w.Environment {
		set[v.Name] = v.Value
	}
	set["MARIPOSA_INSTANCE"], set["MARIPOSA_MDATA_FILE"] = i.ID, filepath.Join(mountDir, mdataFile)
	var all []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		all = append(all, name+"="+set[name])
	}
	return all
}

// mounts returns what a container sees of the node: its values, its files and its volumes.
func (d *Driver) mounts(i driver.Instance, w *mariposa.Workload) []mount.Mount {
	private := d.privatePath(i.ID)
	all := []mount.Mount{{Type: mount.TypeBind, Source: filepath.Join(private, valuesDir), Target: mountDir, ReadOnly: true}}
	for n, f := range w.Files {
		all = append(all, mount.Mount{Type: mount.TypeBind, Source: filepath.Join(private, filesDir, strconv.Itoa(n)), Target: f.Name, ReadOnly: true})
	}
	for _, v := range i.Volumes {
		all = append(all, mount.Mount{Type: mount.TypeVolume, Source: volumeName(v.Volume), Target: v.Path, ReadOnly: v.ReadOnly})
	}
	return all
}

// hostname returns a host name for an instance: its own name as far as one may look like that.
func hostname(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name)
	return strings.Trim(name[:min(63, len(name))], "-")
}

// volumeName and networkName return the names of our resources in the engine.
func volumeName(id string) string { return "mariposa-" + id }

func networkName(id string) string { return "mariposa-" + id }

package process

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
)

// These variables contain the paths of an instance's files and values.
const (
	envFiles      = "MARIPOSA_FILES"
	envMdataFile  = "MARIPOSA_MDATA_FILE"
	envMdataURL   = "MARIPOSA_MDATA_URL"
	envMdataToken = "MARIPOSA_MDATA_TOKEN"
)

// environment builds a command's environment from scratch. The manifest can set any
// variable except those that identify our processes and those that tell the instance
// where its files and values are.
func (d *Driver) environment(i driver.Instance, dir, private string, ports []port, isolated bool) []string {
	var e environ
	e.set("PATH", d.searchPath(isolated))
	home := filepath.Join(dir, workDir)
	if !isolated {
		home = cmp.Or(os.Getenv("HOME"), home)
	}
	e.set("HOME", home)
	if lang := os.Getenv("LANG"); lang != "" {
		e.set("LANG", lang)
	}
	e.set("MARIPOSA_NAME", i.Name)
	e.set("MARIPOSA_SERVICE", i.Service)
	e.set("MARIPOSA_PROJECT", i.Project)
	for n, p := range ports {
		if n == 0 {
			e.set("PORT", strconv.Itoa(p.Port))
		}
		e.set("PORT_"+strconv.Itoa(p.Target), strconv.Itoa(p.Port))
	}
	for _, v := range i.Workload.Environment {
		e.set(v.Name, v.Value)
	}
	for _, v := range i.Volumes {
		e.set(variableName(envVolume, v.Name), v.Source)
	}
	for _, n := range i.Networks {
		e.set(variableName(envNetwork, n.Name), n.Source)
	}
	e.set(envFiles, filepath.Join(private, filesDir))
	e.set(envMdataFile, filepath.Join(private, mdataFile))
	e.unset(envMdataURL)
	e.unset(envMdataToken)
	if i.Mdata.URL != "" {
		e.set(envMdataURL, i.Mdata.URL)
		e.set(envMdataToken, i.Mdata.Token)
	}
	e.unset(envShim)
	e.unset(envInit)
	e.set(envInstance, i.ID)
	e.set(envRoot, d.root)
	e.set(envCluster, i.Labels.Cluster)
	e.set(envIncarnation, i.Labels.Incarnation)
	return e
}

// searchPath returns the PATH of an instance: the directory of our own binary, then the
// agent's PATH as far as the instance can see it.
func (d *Driver) searchPath(isolated bool) string {
	list := []string{filepath.Dir(d.executable)}
	for _, dir := range filepath.SplitList(cmp.Or(os.Getenv("PATH"), "/usr/local/bin:/usr/bin:/bin")) {
		sees := func(parent string) bool { return contains(parent, dir) }
		if !isolated || slices.ContainsFunc(systemDirs, sees) || slices.ContainsFunc(d.options.Paths, sees) {
			list = append(list, dir)
		}
	}
	return strings.Join(list, ":")
}

// environ is a list of NAME=value in which each name occurs once.
type environ []string

func (e *environ) set(name, value string) {
	e.unset(name)
	*e = append(*e, name+"="+value)
}

func (e *environ) has(name string) bool {
	return slices.ContainsFunc(*e, func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

func (e *environ) unset(name string) {
	*e = slices.DeleteFunc(*e, func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

// portsOf reads the ports of a stray from its environment.
func portsOf(env []string) []port {
	var list []port
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		target, ok := strings.CutPrefix(name, "PORT_")
		if !ok {
			continue
		}
		t, err1 := strconv.Atoi(target)
		p, err2 := strconv.Atoi(value)
		if err1 == nil && err2 == nil {
			list = append(list, port{Target: t, Port: p})
		}
	}
	return list
}

// Ports are picked below the range from which the kernel takes the local ports of
// outgoing connections. In that range, any program could get a port that an instance is
// about to listen on.
const (
	firstPort = 20000
	lastPort  = 32767
)

// assignPorts assigns the ports of an instance on this machine: those that the manifest
// sets, those of an earlier run, or free ones.
func (d *Driver) assignPorts(e *entry, wanted []mariposa.Port) ([]port, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := e.spec.Ports
	d.freePorts(e.id)
	var list []port
	for _, w := range wanted {
		p := port{Target: w.Target, Port: w.Host}
		// A command that may not use the port at all gets that error from the kernel.
		if p.Port != 0 && errors.Is(tryPort(p.Port), syscall.EADDRINUSE) {
			d.freePorts(e.id)
			return nil, fmt.Errorf("port %d of this node is in use by another program: free it, or change `ports`", p.Port)
		}
		if holder := d.portHolder(p.Port); holder != "" {
			d.freePorts(e.id)
			return nil, fmt.Errorf("port %d of this node is in use by instance %s: stop that instance, or change `ports`", p.Port, holder)
		}
		if p.Port == 0 {
			had := slices.IndexFunc(before, func(b port) bool { return b.Target == w.Target })
			if had >= 0 && d.portFree(before[had].Port) {
				p.Port = before[had].Port
			}
		}
		if p.Port == 0 {
			if p.Port = d.pickPort(e.id, w.Target); p.Port == 0 {
				d.freePorts(e.id)
				return nil, fmt.Errorf("no free port between %d and %d for port %d", firstPort, lastPort, w.Target)
			}
		}
		d.ports[p.Port] = e.id
		list = append(list, p)
	}
	return list, nil
}

// putPort inserts the first port of an instance into its workload.
func putPort(w *mariposa.Workload, ports []port) *mariposa.Workload {
	if len(ports) == 0 {
		return w
	}
	return w.WithPort(ports[0].Port)
}

// pickPort picks a free port. The search starts at a position that depends on the
// instance, so that two agents on one machine seldom try the same port at the same time.
func (d *Driver) pickPort(id string, target int) int {
	const span = lastPort - firstPort + 1
	h := hashOf(id, strconv.Itoa(target))
	for n := range uint32(span) {
		if p := firstPort + int((h+n)%span); d.portFree(p) {
			return p
		}
	}
	return 0
}

func hashOf(words ...string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.Join(words, " "))) // never fails
	return h.Sum32()
}

func (d *Driver) portFree(port int) bool {
	return d.ports[port] == "" && tryPort(port) == nil
}

// tryPort listens on a port for a moment.
func tryPort(port int) error {
	l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(port))
	if err == nil {
		_ = l.Close()
	}
	return err
}

// portHolder returns the name of the instance that has a port and is running or starting.
// An ended instance gives up a port that another one wants. The caller holds the mutex.
func (d *Driver) portHolder(port int) string {
	id := d.ports[port]
	other := d.entries[id]
	if other == nil || other.observed.ID != "" && !other.observed.Running {
		return ""
	}
	return cmp.Or(other.observed.Name, id)
}

// freePorts releases the ports of an instance. The caller holds the mutex.
func (d *Driver) freePorts(id string) {
	for p, owner := range d.ports {
		if owner == id {
			delete(d.ports, p)
		}
	}
}

// tick is the unit of times in /proc: 1/USER_HZ, which is fixed on Linux.
const tick = time.Second / 100

// startTime converts the start of a process in ticks since boot into a time.
func startTime(ticks uint64) time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Time{}
	}
	age := time.Duration(now.Nano()) - time.Duration(ticks)*tick
	return time.Now().Add(-age).UTC().Round(10 * time.Millisecond)
}

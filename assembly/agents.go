package assembly

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/agent"
	"mariposa/agent/machine"
	"mariposa/clock"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/docker"
	"mariposa/driver/dummy"
	"mariposa/driver/haproxy"
	"mariposa/driver/imagestore"
	"mariposa/driver/kvm"
	"mariposa/driver/lockfile"
	"mariposa/driver/lxc"
	"mariposa/driver/process"
	"mariposa/wire"
)

// NodeConfig is the identity of a node and where it keeps its data.
type NodeConfig struct {
	Dir    string // kept between runs
	Name   string // the host's name if empty
	Rack   string
	DC     string
	Traits map[string]string
	Dummy  bool // has only the dummy driver
	// InMemory keeps dummy instances in memory only, for load tests.
	InMemory bool
	// Process says how process instances are isolated. Where they are kept follows
	// from Dir.
	Process process.Options
	// Docker says which Docker engine the node uses; nil: none. Where its records are kept
	// follows from Dir.
	Docker *docker.Options
	// LXC says how the node runs system containers; nil: not at all. Where everything of them is
	// kept follows from Dir.
	LXC *lxc.Options
	// KVM says the same of virtual machines.
	KVM *kvm.Options
	// Balancers says how the node runs load balancers; nil: not at all. Where everything of them is
	// kept follows from Dir.
	Balancers *haproxy.Options
	// UserNetwork puts virtual machines into networks of QEMU instead of those of the node.
	UserNetwork bool
	// Subnet is the range of addresses for the networks of the node; chosen if zero.
	Subnet  netip.Prefix
	Release string // of this binary
	// Moved accepts a data directory that was at another place before.
	Moved bool
	// DNS says how the node answers DNS queries; nil: not at all.
	DNS *NodeDNS
}

// RunNode runs one node's agent until the context ends.
func RunNode(ctx context.Context, link agent.Link, cfg NodeConfig) error {
	lock, err := lockNode(cfg)
	if err != nil {
		return err
	}
	defer lock.Close() // it was only held
	hello, id, err := loadIdentity(cfg)
	if err != nil {
		return err
	}
	names := startNames(ctx, cfg, &id)
	if names != nil {
		defer names.Stop()
	}
	drivers, err := driversFor(cfg, hello.Node, names)
	if err != nil {
		return err
	}
	if !cfg.Dummy {
		slog.Info("node identity", "name", hello.Name, "id", hello.Node, "key", mariposa.Fingerprint(mariposa.HashKey(hello.Key)))
	}
	defer func() {
		for _, d := range drivers {
			_ = d.Close() // instances keep running; there is nothing else to lose
		}
	}()
	o := agent.Options{Hello: hello, Drivers: drivers, Clock: clock.Real{}, Mdata: id.Mdata, ValuesKey: id.ValuesKey, Names: names}
	if id.moved {
		o.Admitted = sync.OnceFunc(func() { id.storeHome(identityFile(cfg.Dir)) })
	}
	o.StoreKeys = func(keys agent.Keys) error { return id.storeKeys(identityFile(cfg.Dir), keys) }
	if !cfg.Dummy {
		memory := &seenFile{path: filepath.Join(cfg.Dir, "seen.json")}
		o.Seen, o.Remember = memory.read(), memory.write
		defer memory.flush()
		o.Machine, o.Reboots = factsOf(cfg.Release), machine.IsShuttingDown
	}
	return agent.Run(ctx, link, o)
}

// lockNode takes the lock of a node's directory, before anything there is read or changed: two
// agents would overwrite each other's identity and records.
func lockNode(cfg NodeConfig) (io.Closer, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the node's directory: %w", err)
	}
	if cfg.InMemory {
		return io.NopCloser(nil), nil // nothing of it is kept
	}
	lock, err := lockfile.Within(filepath.Join(cfg.Dir, "agent.lock"), 2*time.Second)
	if errors.Is(err, lockfile.ErrLocked) {
		return nil, fmt.Errorf("another agent uses the data directory %s: stop it first, or name another directory with --data", cfg.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the node's directory: %w", err)
	}
	return lock, nil
}

// factsOf returns a function that reads the facts of this machine. The kernel computes the
// time of its boot from the current time, which may be set; the first one is kept.
func factsOf(release string) func() *mariposa.Machine {
	var booted time.Time
	return func() *mariposa.Machine {
		m := machine.Read("/", release)
		if booted.IsZero() {
			booted = m.Booted
		}
		m.Booted = booted
		return m
	}
}

// driversFor creates every driver that the node supports. Those whose engine is away say so.
func driversFor(cfg NodeConfig, node string, names *agent.NameServer) ([]driver.Driver, error) {
	seed := uint64(time.Now().UnixNano())
	world := dummy.NewWorld(seed)
	if !cfg.InMemory {
		var err error
		if world, err = dummy.OpenWorld(filepath.Join(cfg.Dir, "dummies"), seed); err != nil {
			return nil, fmt.Errorf("open the dummy instances of node %s: %w", cfg.Name, err)
		}
	}
	drivers := []driver.Driver{dummy.New(world, clock.Real{})}
	if cfg.Dummy {
		return drivers, nil
	}
	var server driver.NameServer // a nil pointer would not be nil
	if names != nil {
		server = names
	}
	o := cfg.Process
	o.Names = server
	o.Root, o.Volumes, o.Networks = filepath.Join(cfg.Dir, "instances"), filepath.Join(cfg.Dir, "volumes"), filepath.Join(cfg.Dir, "networks")
	o.Hidden = append(slices.Clone(o.Hidden), cfg.Dir)
	p, err := process.New(o)
	if err != nil {
		return nil, fmt.Errorf("set up processes on this node: %w", err)
	}
	drivers = append(drivers, p)
	if cfg.Balancers != nil {
		o := *cfg.Balancers
		o.Dir = filepath.Join(cfg.Dir, "balancers")
		d, err := haproxy.New(o)
		if err != nil {
			closeAll(drivers)
			return nil, fmt.Errorf("set up load balancers on this node: %w", err)
		}
		drivers = append(drivers, d)
	}
	systems, networks, err := systemDrivers(cfg, node, server)
	if err != nil {
		closeAll(drivers)
		return nil, err
	}
	if cfg.Docker != nil {
		c := *cfg.Docker
		c.Dir, c.Scope, c.Shared, c.Names = filepath.Join(cfg.Dir, "docker"), node, networks, server
		d, err := docker.New(c)
		if err != nil {
			closeAll(append(drivers, systems...))
			return nil, fmt.Errorf("set up containers on this node: %w", err)
		}
		drivers = append(drivers, d)
	}
	return append(drivers, systems...), nil
}

// ImagesDir is the image store in the directory of a node.
const ImagesDir = "images"

// systemDrivers creates the drivers of system containers and virtual machines. They share the images
// and the networks of the node. It returns the networks as long as one of the drivers can use them.
func systemDrivers(cfg NodeConfig, node string, names driver.NameServer) (drivers []driver.Driver, inUse func() *bridge.Networks, err error) {
	if cfg.LXC == nil && cfg.KVM == nil {
		return nil, nil, nil
	}
	images, err := imagestore.Open(filepath.Join(cfg.Dir, ImagesDir))
	if err != nil {
		return nil, nil, fmt.Errorf("open the images of this node: %w", err)
	}
	networks, err := bridge.Open(bridge.Options{Dir: filepath.Join(cfg.Dir, "lxc"), Scope: node, Subnet: cfg.Subnet, Names: names}) // where system containers had them first
	if err != nil {
		return nil, nil, fmt.Errorf("open the networks of this node: %w", err)
	}
	var users []driver.Conditional
	if cfg.LXC != nil {
		o := *cfg.LXC
		o.Dir, o.Images, o.Networks, o.Scope = filepath.Join(cfg.Dir, "lxc"), images, networks, node
		d, err := lxc.New(o)
		if err != nil {
			return nil, nil, fmt.Errorf("set up system containers on this node: %w", err)
		}
		drivers, users = append(drivers, d), append(users, d)
	}
	if cfg.KVM != nil {
		o := *cfg.KVM
		o.Dir, o.Images, o.Scope = filepath.Join(cfg.Dir, "kvm"), images, node
		if !cfg.UserNetwork {
			o.Networks = networks
		}
		d, err := kvm.New(o)
		if err != nil {
			closeAll(drivers)
			return nil, nil, fmt.Errorf("set up virtual machines on this node: %w", err)
		}
		if drivers = append(drivers, d); !cfg.UserNetwork {
			users = append(users, d)
		}
	}
	networks.Clear(context.Background()) // all drivers have said which ones they use
	return drivers, func() *bridge.Networks {
		if slices.ContainsFunc(users, func(d driver.Conditional) bool { return d.Unavailable() == "" }) {
			return networks
		}
		return nil
	}, nil
}

// closeAll closes drivers; another error is reported.
func closeAll(drivers []driver.Driver) {
	for _, d := range drivers {
		_ = d.Close()
	}
}

// identity is what a node stores about itself.
type identity struct {
	ID    string `json:"id"`
	Key   string `json:"key"`
	Mdata string `json:"mdata,omitempty"` // the address where its instances read their values; running ones know no other
	// FormerKey is the key before the last rotation.
	FormerKey string `json:"former_key,omitempty"`
	// ValuesKey is the secret behind the tokens with which instances read their values: the
	// first key, because running instances know no other token. Empty if that is Key.
	ValuesKey string `json:"values_key,omitempty"`
	// Home is where the directory is; empty if an earlier release created it.
	Home  string `json:"home,omitempty"`
	DNS   string `json:"dns,omitempty"` // the address where processes ask for names; running ones know no other
	moved bool   // Home is new, and stored once the control plane admits the node
}

func identityFile(dir string) string { return filepath.Join(dir, "node.json") }

// storeKeys stores new keys. The file has either the old ones or the new ones, whenever the
// machine stops.
func (id *identity) storeKeys(path string, keys agent.Keys) error {
	next := *id
	next.ValuesKey = cmp.Or(id.ValuesKey, id.Key)
	next.Key, next.FormerKey = keys.Current, keys.Former
	b, err := json.Marshal(next)
	if err == nil {
		err = WriteFile(path, b)
	}
	if err == nil {
		*id = next
	}
	return err
}

// loadIdentity returns the node's hello and what the node stores about itself. On the
// first run it generates the node's id, its key and the address where its instances read
// their values, and stores them.
func loadIdentity(cfg NodeConfig) (h wire.Hello, id identity, err error) {
	h = wire.Hello{Name: cfg.Name, Rack: cfg.Rack, DC: cfg.DC, Traits: cfg.Traits, Dummy: cfg.Dummy, Release: cfg.Release}
	if h.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return h, id, fmt.Errorf("read the host name: %w: set a name with --name", err)
		}
		h.Name = strings.ToLower(name)
	}
	if id, err = readIdentity(cfg); err != nil {
		return h, id, err
	}
	h.Node, h.Key, h.FormerKey, h.Home = id.ID, id.Key, id.FormerKey, id.Home
	h.Capacity = capacity(cfg.Dummy)
	return h, id, nil
}

// readIdentity reads the identity of a node, and generates and stores what is missing. A
// dummy node needs no address for values, as nothing runs inside a dummy.
func readIdentity(cfg NodeConfig) (identity, error) {
	var id identity
	path := identityFile(cfg.Dir)
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		id = identity{ID: NewID(), Key: Secret()}
	case err != nil:
		return id, err
	default:
		if err := json.Unmarshal(b, &id); err != nil || id.ID == "" {
			return id, fmt.Errorf("%s does not contain a valid node identity: delete it to join as a new node", path)
		}
	}
	changed, err := id.settle(cfg)
	if err != nil {
		return id, err
	}
	if !cfg.Dummy && id.Mdata == "" {
		if id.Mdata, err = freeAddress(); err != nil {
			return id, err
		}
		changed = true
	}
	if !changed {
		return id, nil
	}
	if b, err = json.Marshal(id); err != nil {
		return id, err
	}
	return id, WriteFile(path, b)
}

// These ports are outside the range for process instances and below the kernel's range
// for outgoing connections, so no other process gets the address while the agent is
// down.
const (
	firstMdata = 12000
	lastMdata  = 19999
)

// freeAddress finds a free loopback address.
func freeAddress() (string, error) {
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", firstMdata+mathrand.IntN(lastMdata-firstMdata+1))
		if l, err := net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("no free port between %d and %d for the metadata service of instances", firstMdata, lastMdata)
}

// WriteFile writes a small secret file atomically and durably.
func WriteFile(path string, b []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Secret generates a secret.
func Secret() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// SecretFile reads a secret from a file, and generates it the first time.
func SecretFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		s := Secret()
		return s, WriteFile(path, []byte(s+"\n"))
	}
	if err != nil {
		return "", err
	}
	if s := strings.TrimSpace(string(b)); s != "" {
		return s, nil
	}
	return "", fmt.Errorf("%s is empty: delete it to generate a new token", path)
}

// capacity returns what this machine can give to instances: all its cores, and nine
// tenths of its memory. Dummies use nothing.
func capacity(isDummy bool) mariposa.Resources {
	if isDummy {
		return mariposa.Resources{}
	}
	r := mariposa.Resources{MilliCPU: int64(runtime.NumCPU()) * 1000}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		r.Memory = int64(info.Totalram) * int64(info.Unit) / 10 * 9
	}
	return r
}

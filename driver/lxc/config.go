package lxc

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"mariposa/driver/bridge"
	"mariposa/driver/cgroup"
)

// stageDir is where a supervisor mounts what its container is to have, in a mount namespace of
// its own: the root of a user namespace could not reach the places where we keep it. For LXC it is
// also the place of all containers.
const stageDir = "/run/mariposa-lxc"

// These are below it.
const (
	stageRootfs   = stageDir + "/rootfs"
	stageLower    = stageDir + "/image"
	stageInstance = stageDir + "/instance"
	stageBinds    = stageDir + "/binds"
)

// container is what the configuration of a container says.
type container struct {
	Hostname  string
	HasInit   bool
	IDs       int // the first of its ids; 0 if it is privileged
	Links     []bridge.Link
	Pairs     []string // the names of its interfaces on the node
	Console   string
	Group     cgroup.Group
	Seccomp   string
	Variables []string // NAME=VALUE
	User      owner    // of its first process, if that is not an init
	Dir       string   // where that starts
	Mounts    []mountEntry
}

// mountEntry is something that a container sees at a path.
type mountEntry struct {
	Source, Target string
	Options        string
}

// configLines collects the lines of a configuration.
type configLines struct {
	text strings.Builder
	err  error
}

// set adds a line. A value cannot begin another one.
func (c *configLines) set(key, value string) {
	if strings.ContainsAny(value, "\n\r\x00") {
		c.err = errors.Join(c.err, fmt.Errorf("the value of %s may not have more than one line", key))
		return
	}
	c.text.WriteString(key + " = " + value + "\n")
}

// config returns the configuration of a container as lxc-start reads it.
func (c *container) config() (string, error) {
	var l configLines
	l.set("lxc.uts.name", c.Hostname)
	l.set("lxc.rootfs.path", "dir:"+stageRootfs)
	if c.IDs != 0 {
		for _, kind := range []string{"u", "g"} {
			l.set("lxc.idmap", fmt.Sprintf("%s 0 %d %d", kind, c.IDs, idCount))
		}
	}
	c.setNetworks(&l)
	c.setConfinement(&l)
	l.set("lxc.autodev", "1")
	l.set("lxc.pty.max", "1024")
	l.set("lxc.console.logfile", c.Console)
	if c.HasInit {
		l.set("lxc.tty.max", "4")
		l.set("lxc.mount.auto", "proc:mixed sys:mixed cgroup:mixed")
		l.set("lxc.mount.entry", "tmpfs run tmpfs nosuid,nodev,mode=0755,create=dir,optional 0 0")
	} else {
		l.set("lxc.tty.max", "0")
		l.set("lxc.mount.auto", "proc:mixed sys:ro")
		l.set("lxc.init.uid", strconv.Itoa(c.User.UID))
		l.set("lxc.init.gid", strconv.Itoa(c.User.GID))
		if c.Dir != "" {
			l.set("lxc.init.cwd", c.Dir)
		}
	}
	for _, v := range c.Variables {
		l.set("lxc.environment", `"`+v+`"`)
	}
	for _, m := range c.Mounts {
		l.set("lxc.mount.entry", fmt.Sprintf("%s %s none %s 0 0", escapeField(m.Source), escapeField(strings.TrimPrefix(m.Target, "/")), m.Options))
	}
	if l.err != nil {
		return "", l.err
	}
	text := l.text.String()
	return text, checkPrivateNetwork(text)
}

// setNetworks gives the container its interfaces, in a network namespace of its own. It has that
// with no interface as well.
func (c *container) setNetworks(l *configLines) {
	if len(c.Links) == 0 {
		l.set("lxc.net.0.type", "empty")
	}
	for n, link := range c.Links {
		set := func(key, value string) { l.set("lxc.net."+strconv.Itoa(n)+"."+key, value) }
		set("type", "veth")
		set("link", link.Bridge)
		set("veth.pair", c.Pairs[n])
		set("name", "eth"+strconv.Itoa(n))
		set("hwaddr", link.HardwareAddress())
		set("flags", "up")
		set("ipv4.address", link.Address.String()+" "+link.Broadcast().String())
		if n == 0 && link.Gateway != (netip.Addr{}) {
			set("ipv4.gateway", link.Gateway.String())
		}
	}
}

// setConfinement takes away what a container could harm the machine with.
func (c *container) setConfinement(l *configLines) {
	l.set("lxc.cap.drop", "mac_admin mac_override sys_time sys_module sys_rawio syslog wake_alarm block_suspend audit_control audit_read")
	if c.Seccomp != "" {
		l.set("lxc.seccomp.profile", c.Seccomp)
	}
	l.set("lxc.cgroup.dir.monitor", monitorOf(c.Group.Name))
	l.set("lxc.cgroup.dir.monitor.pivot", pivotOf(c.Group.Name))
	l.set("lxc.cgroup.dir.container", payloadOf(c.Group.Name))
	devices := "lxc.cgroup.devices."
	if c.Group.IsV2() {
		devices = "lxc.cgroup2.devices."
	} else if c.Group.Dir("devices") == "" {
		return
	}
	l.set(devices+"deny", "a")
	for _, device := range []string{
		"c *:* m", "b *:* m", // a node alone does nothing
		"c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", // null, zero, full, random, urandom
		"c 5:0 rwm", "c 5:1 rwm", "c 5:2 rwm", "c 136:* rwm", // terminals
	} {
		l.set(devices+"allow", device)
	}
}

// errSharedNetwork means that a configuration would let a container change the network of the
// machine.
var errSharedNetwork = errors.New("the configuration of the container does not give it a network namespace of its own: it was not started")

// checkPrivateNetwork refuses a configuration with which a container would run in the network
// namespace of the machine: its DHCP client could take the machine's address away. It knows what
// our configurations contain, and refuses everything else that could change the network.
func checkPrivateNetwork(config string) error {
	private := false
	for line := range strings.Lines(config) {
		key, value, _ := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case key == "lxc.include", strings.HasPrefix(key, "lxc.namespace"), strings.HasPrefix(key, "lxc.network"), key == "lxc.net", strings.HasPrefix(key, "lxc.hook"):
			return errSharedNetwork
		case strings.HasPrefix(key, "lxc.net.") && strings.HasSuffix(key, ".type"):
			if value != "veth" && value != "empty" {
				return errSharedNetwork
			}
			private = true
		}
	}
	if !private {
		return errSharedNetwork
	}
	return nil
}

// escapeField writes a path as a field of an fstab line.
func escapeField(path string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(path)
}

// hostname returns a host name for an instance: its own name as far as one may look like that.
func hostname(name, id string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name)
	if name = strings.Trim(name[:min(63, len(name))], "-"); name == "" {
		return fmt.Sprintf("instance-%08x", hashOf(id))
	}
	return name
}

// pairName returns the name on the node of an interface of a container. A name of a former run
// may still be taken.
func pairName(id string, run, n int) string {
	return fmt.Sprintf("mpv-%08x", hashOf(fmt.Sprintf("%s/%d/%d", id, run, n)))
}

// bindSource returns where a supervisor mounts the nth thing that a container has of the node.
func bindSource(n int) string { return filepath.Join(stageBinds, strconv.Itoa(n)) }

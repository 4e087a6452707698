package kvm

import (
	"bytes"
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"mariposa/driver"
	"mariposa/driver/ostool"
)

const (
	// probeInterval is how often a machine that can run no virtual machine is looked at again:
	// someone may have installed what was missing.
	probeInterval = 30 * time.Second
	// accelTimeout is how long QEMU may take to show that acceleration works. A device that does
	// not work may hang.
	accelTimeout = 5 * time.Second
)

// The ways to run a machine.
const (
	accelKVM = "kvm"
	accelTCG = "tcg"
)

var accelNames = map[string]string{accelKVM: "KVM", accelTCG: "none: the processor is emulated, which is slow"}

// support is what this node can do.
type support struct {
	unavailable string // why it can run no virtual machine; empty if it can
	version     string // of QEMU
	accel       string
	noAccel     string // why there is no acceleration
}

// qemuProgram and imgProgram are the programs of QEMU.
const (
	qemuProgram = "qemu-system-x86_64"
	imgProgram  = "qemu-img"
)

// findSupport finds out what this node can do.
func (d *Driver) findSupport() (s support) {
	if os.Geteuid() != 0 {
		s.unavailable = "the agent must run as root to run virtual machines"
		return s
	}
	needs := []string{qemuProgram, imgProgram}
	if d.options.Networks != nil {
		needs = append(needs, "ip")
	}
	for _, tool := range needs {
		if ostool.Find(tool) == "" {
			s.unavailable = "this machine does not have the program " + tool + ": install " + packageOf(tool)
			return s
		}
	}
	if _, err := os.Stat(tunDevice); err != nil && d.options.Networks != nil {
		s.unavailable = "this machine has no " + tunDevice + ": load the kernel module tun, or start the agent with --kvm-network user"
		return s
	}
	ctx, cancel := context.WithTimeout(d.ctx, ostool.Timeout)
	defer cancel()
	out, err := ostool.Run(ctx, qemuProgram, "--version")
	if err != nil {
		s.unavailable = "QEMU does not work here: " + err.Error()
		return s
	}
	s.version = parseVersion(out)
	if major, _, _ := strings.Cut(s.version, "."); len(major) == 1 && major < "6" {
		s.unavailable = "QEMU " + s.version + " is too old: install version 6 or later"
		return s
	}
	s.accel, s.noAccel = accelKVM, ""
	if d.options.Emulate {
		s.accel, s.noAccel = accelTCG, "the agent was told not to use it"
	} else if err := tryKVM(ctx); err != nil {
		s.accel, s.noAccel = accelTCG, err.Error()
	}
	return s
}

func packageOf(tool string) string {
	switch tool {
	case "ip":
		return "the package iproute2"
	case imgProgram:
		return "the package qemu-utils"
	}
	return "the package qemu-system-x86"
}

// parseVersion finds the version in what QEMU says of itself.
func parseVersion(text string) string {
	_, rest, found := strings.Cut(text, "version ")
	if f := strings.Fields(rest); found && len(f) > 0 {
		return f[0]
	}
	return "of an unknown version"
}

// tryKVM starts a machine with acceleration and asks it for its state: only a machine whose
// processor has run shows that it works.
func tryKVM(ctx context.Context) error {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return errors.New("this machine has no /dev/kvm")
	}
	ctx, cancel := context.WithTimeout(ctx, accelTimeout)
	defer cancel()
	// The firmware turns the machine off at the end of a boot without a disk: it reboots, and
	// -no-reboot ends QEMU.
	cmd := exec.CommandContext(ctx, ostool.Find(qemuProgram), "-nodefaults", "-no-user-config", "-display", "none", "-machine", "pc", "-accel", "kvm", "-m", "16", "-no-reboot", "-boot", "reboot-timeout=1")
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", []string{}, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: firstUID, Gid: firstUID, Groups: kvmGroups()}} // like that of an instance
	var out bytes.Buffer
	cmd.Stderr = &out
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return errors.New("/dev/kvm does not work: a machine that uses it hangs")
	case err != nil:
		return errors.New("/dev/kvm does not work: " + lastLine(out.String()))
	}
	return nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if line := lines[len(lines)-1]; line != "" {
		return line
	}
	return "QEMU does not say why"
}

// Unavailable explains why no virtual machine can be started here.
func (d *Driver) Unavailable() string { return d.supported().unavailable }

// supported returns what this node can do.
func (d *Driver) supported() support {
	d.supportMu.Lock()
	defer d.supportMu.Unlock()
	if d.support.unavailable != "" && time.Since(d.probed) > probeInterval && d.ctx.Err() == nil {
		d.support, d.probed = d.findSupport(), time.Now()
	}
	return d.support
}

// awaitSupport reports that a node which could run no virtual machine can do so now.
func (d *Driver) awaitSupport() {
	for d.Unavailable() != "" {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(probeInterval + time.Second):
		}
		if d.Unavailable() == "" {
			d.roster.Tell(driver.Event{Kind: driver.EngineBack})
		}
	}
}

// Details describe how virtual machines run here.
func (d *Driver) Details() map[string]string {
	is := d.supported()
	if is.unavailable != "" {
		return nil
	}
	m := map[string]string{"qemu": is.version, "acceleration": accelNames[is.accel]}
	if is.noAccel != "" {
		m["acceleration"] += " (" + is.noAccel + ")"
	}
	if d.options.Networks == nil {
		m["network"] = "user mode: ports of the node lead to machines, and nothing leads out"
		m["names"] = "not resolved: in user mode, machines cannot ask the DNS server of the node"
		return m
	}
	maps.Copy(m, d.options.Networks.Details())
	return m
}

func hash(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum32()
}

package mariposa

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Machine is what an agent reports about the machine that it runs on.
type Machine struct {
	Hostname string    `json:"hostname,omitempty"`
	OS       string    `json:"os,omitempty" doc:"name and version of the operating system"`
	Kernel   string    `json:"kernel,omitempty" doc:"release of the kernel"`
	Arch     string    `json:"arch,omitempty" doc:"architecture, such as amd64 or arm64"`
	CPUs     int       `json:"cpus,omitempty" doc:"number of logical CPUs"`
	CPUModel string    `json:"cpu_model,omitempty"`
	Memory   int64     `json:"memory,omitempty" doc:"memory in bytes"`
	Booted   time.Time `json:"booted,omitzero" doc:"when the machine was started"`
	Release  string    `json:"release,omitempty" doc:"release of the agent"`
	Disks    []Disk    `json:"disks,omitempty"`
	NICs     []NIC     `json:"nics,omitempty"`
	Network  string    `json:"network,omitempty" doc:"identifies the network stack; nodes that share it have the same loopback"`
}

// Disk is a disk of a machine.
type Disk struct {
	Name       string `json:"name"`
	Size       int64  `json:"size" doc:"size in bytes"`
	Model      string `json:"model,omitempty"`
	Rotational bool   `json:"rotational,omitempty" doc:"the disk has moving parts"`
}

// NIC is a network interface of a machine.
type NIC struct {
	Name      string   `json:"name"`
	MAC       string   `json:"mac,omitempty"`
	Speed     int      `json:"speed,omitempty" doc:"speed of the link in Mbit/s; absent if it is down or has none"`
	Addresses []string `json:"addresses,omitempty" doc:"addresses with their prefix lengths"`
}

const (
	maxDisks     = 64
	maxNICs      = 32
	maxAddresses = 16 // of a network interface
	maxFact      = 128
	maxCPUs      = 1 << 20
	maxBytes     = 1 << 50       // a pebibyte
	maxSpeed     = 1_000_000_000 // Mbit/s
)

// IsPlausibleTime reports whether a time that a node reports can be one of a real machine,
// whose clock may be wrong.
func IsPlausibleTime(t time.Time) bool { return t.Year() >= 1970 && t.Year() < 2200 }

// bound returns a number of a machine, or 0, which means unknown, if no machine has it.
func bound[N int | int64](n, most N) N {
	if n < 0 || n > most {
		return 0
	}
	return n
}

// Bounded returns the usage without numbers that no instance can have; they are unknown.
func (u Usage) Bounded() Usage {
	const maxUsed = 1 << 60 // bytes since the start may be more than any disk has
	for _, n := range []**int64{&u.Memory, &u.NetworkIn, &u.NetworkOut, &u.DiskRead, &u.DiskWritten, &u.Log} {
		if *n != nil && (**n < 0 || **n > maxUsed) {
			*n = nil
		}
	}
	if u.CPU != nil && !(*u.CPU >= 0 && *u.CPU <= maxCPUs*100*365*24*3600) {
		u.CPU = nil
	}
	if !IsPlausibleTime(u.At) {
		u.At = time.Time{}
	}
	return u
}

// Bounded returns the facts in a form that is safe to store and to show: with limited
// lists, and with short texts of printable characters.
func (m *Machine) Bounded() *Machine {
	if m == nil {
		return nil
	}
	out := *m
	for _, text := range []*string{&out.Hostname, &out.OS, &out.Kernel, &out.Arch, &out.CPUModel, &out.Release, &out.Network} {
		*text = boundFact(*text)
	}
	out.CPUs, out.Memory = bound(out.CPUs, maxCPUs), bound(out.Memory, maxBytes)
	if !IsPlausibleTime(out.Booted) {
		out.Booted = time.Time{}
	}
	out.Disks, out.NICs = nil, nil
	for _, d := range m.Disks[:min(len(m.Disks), maxDisks)] {
		d.Name, d.Model, d.Size = boundFact(d.Name), boundFact(d.Model), bound(d.Size, maxBytes)
		out.Disks = append(out.Disks, d)
	}
	for _, n := range m.NICs[:min(len(m.NICs), maxNICs)] {
		n.Name, n.MAC, n.Speed = boundFact(n.Name), boundFact(n.MAC), bound(n.Speed, maxSpeed)
		var all []string
		for _, a := range n.Addresses[:min(len(n.Addresses), maxAddresses)] {
			all = append(all, boundFact(a))
		}
		n.Addresses = all
		out.NICs = append(out.NICs, n)
	}
	return &out
}

// Summary returns the few facts of a machine that are kept of a node which was not
// accepted, in the form of Bounded.
func (m *Machine) Summary() *Machine {
	if m == nil {
		return nil
	}
	return (&Machine{Hostname: m.Hostname, OS: m.OS, Kernel: m.Kernel, Arch: m.Arch, CPUs: m.CPUs, CPUModel: m.CPUModel, Memory: m.Memory, Release: m.Release}).Bounded()
}

// boundFact removes what cannot be printed from a text, and cuts it.
func boundFact(text string) string {
	if len(text) > 4*maxFact {
		text = text[:4*maxFact]
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, text)
	for len(text) > maxFact {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return strings.TrimSpace(text)
}

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	"github.com/spf13/pflag"

	"mariposa/assembly"
	"mariposa/discover"
)

const (
	dnsOff  = "off"
	dnsAuto = "auto"
	// devDNS is where a dev answers, unless the port is in use. Port 53 needs root, and is often
	// in use.
	devDNS = "127.0.0.1:8053"
)

// nameFlags are the flags of DNS servers.
type nameFlags struct {
	listen string
	allow  []string
	ttl    time.Duration
}

func (f *nameFlags) addControl(to *pflag.FlagSet, listen, help string) {
	to.StringVar(&f.listen, "dns", listen, help)
	to.StringSliceVar(&f.allow, "dns-allow", nil, "network whose clients may ask the DNS server for every name, such as 10.1.0.0/16 (repeatable); users of this machine always may")
	f.addTTL(to)
}

func (f *nameFlags) addNode(to *pflag.FlagSet) {
	to.StringVar(&f.listen, "dns", dnsAuto, "DNS server of the node for its instances: auto, off, or the address for processes on the machine; auto picks a loopback address with port 53 once and keeps it")
	f.addTTL(to)
}

func (f *nameFlags) addTTL(to *pflag.FlagSet) {
	to.DurationVar(&f.ttl, "dns-ttl", discover.DefaultTTL, "time for which clients may keep the answers of the DNS server, from 0s to 1h")
}

func (f *nameFlags) checkTTL() error {
	if f.ttl < 0 || f.ttl > discover.MaxTTL {
		return errors.New("--dns-ttl must be a time from 0s to 1h, such as 5s")
	}
	if f.ttl < time.Second { // zero means the default
		f.ttl = 1
	}
	return nil
}

// control returns how a control plane answers DNS queries; nil: not at all.
func (f *nameFlags) control() (*assembly.DNSConfig, error) {
	if err := f.checkTTL(); err != nil {
		return nil, err
	}
	if f.listen == "" || f.listen == dnsOff {
		return nil, nil
	}
	at, err := discover.ParseAddress(f.listen)
	if err != nil {
		return nil, errors.New("--dns must be an address with a port, such as 127.0.0.1:8053, or off")
	}
	cfg := &assembly.DNSConfig{Listen: at, TTL: f.ttl, Fallback: f.listen == devDNS}
	for _, text := range f.allow {
		p, err := netip.ParsePrefix(text)
		if a, single := netip.ParseAddr(text); err != nil && single == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("--dns-allow %s: give a network, such as 10.1.0.0/16, or an address", text)
		}
		cfg.Allow = append(cfg.Allow, p.Masked())
	}
	return cfg, nil
}

// node returns how a node answers DNS queries; nil: not at all.
func (f *nameFlags) node() (*assembly.NodeDNS, error) {
	if err := f.checkTTL(); err != nil {
		return nil, err
	}
	switch f.listen {
	case dnsOff:
		return nil, nil
	case dnsAuto, "":
		return &assembly.NodeDNS{TTL: f.ttl}, nil
	}
	at, err := discover.ParseAddress(f.listen)
	if err != nil {
		return nil, errors.New("--dns must be auto, off or an address, such as 127.0.0.2")
	}
	return &assembly.NodeDNS{Listen: at, TTL: f.ttl}, nil
}

// checkDomain refuses a domain that names cannot be under.
func checkDomain(domain string) error {
	if domain == "" {
		return nil
	}
	// The names of an instance, a network, a project, an organization and a data center, with dots
	// between them, must fit too.
	if _, ok := dns.IsDomainName(domain); !ok || domain == "." || len(domain) > 100 {
		return fmt.Errorf("--domain %s: give a domain name of at most 100 characters, such as mariposa.internal", domain)
	}
	return nil
}

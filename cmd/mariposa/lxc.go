package main

import (
	"errors"
	"net/netip"

	"github.com/spf13/pflag"

	"mariposa/driver/lxc"
)

// lxcFlags are the flags for system containers.
type lxcFlags struct {
	use    string
	subnet string
}

func (f *lxcFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.use, "lxc", "on", "run system containers with LXC if this machine can: on or off; privileged: even if it cannot give them ids of their own, so that root inside is root of the machine")
	to.StringVar(&f.subnet, "lxc-subnet", "", "private range of IPv4 addresses for system containers, such as 10.96.0.0/16 (default: one that the machine does not use, chosen once)")
}

// options returns how the node runs system containers; nil if it does not.
func (f *lxcFlags) options() (*lxc.Options, error) {
	switch f.use {
	case "off":
		return nil, nil
	case "on", "privileged":
	default:
		return nil, errors.New("--lxc must be on, off or privileged")
	}
	o := &lxc.Options{Privileged: f.use == "privileged"}
	if f.subnet != "" {
		p, err := netip.ParsePrefix(f.subnet)
		if err != nil || !p.Addr().Is4() || p.Bits() > 24 || !p.Addr().IsPrivate() {
			return nil, errors.New("--lxc-subnet must be a private range of at least 256 IPv4 addresses, such as 10.96.0.0/16")
		}
		o.Subnet = p.Masked()
	}
	return o, nil
}

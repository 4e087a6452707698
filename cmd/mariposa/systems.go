package main

import (
	"errors"
	"net/netip"

	"github.com/spf13/pflag"

	"mariposa/assembly"
	"mariposa/driver/haproxy"
	"mariposa/driver/kvm"
	"mariposa/driver/lxc"
)

// systemFlags are the flags for load balancers, system containers and virtual machines.
type systemFlags struct {
	balancers  string
	addresses  []string
	lxc        string
	kvm        string
	kvmNetwork string
	subnet     string
}

func (f *systemFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.balancers, "balancers", "on", "run load balancers with HAProxy if this machine has it: on or off")
	to.StringSliceVar(&f.addresses, "balancer-address", nil, "control socket of an external HAProxy that projects may use as a load balancer: a path or host:port; may be repeated")
	to.StringVar(&f.lxc, "lxc", "on", "run system containers with LXC if this machine can: on or off; privileged: even if it cannot give them ids of their own, so that root inside is root of the machine")
	to.StringVar(&f.kvm, "kvm", "on", "run virtual machines with QEMU if this machine can: on or off; emulate: without the acceleration of the processor")
	to.StringVar(&f.kvmNetwork, "kvm-network", "bridge", "network of virtual machines: bridge; or user: ports of the node are forwarded to them, and they cannot make outgoing connections")
	to.StringVar(&f.subnet, "subnet", "", "private range of IPv4 addresses for system containers and virtual machines, such as 10.96.0.0/16 (default: one that the machine does not use, chosen once)")
}

// apply sets how the node runs them.
func (f *systemFlags) apply(cfg *assembly.NodeConfig) error {
	switch f.balancers {
	case "off":
	case "on":
		cfg.Balancers = &haproxy.Options{Addresses: f.addresses}
	default:
		return errors.New("--balancers must be on or off")
	}
	switch f.lxc {
	case "off":
	case "on", "privileged":
		cfg.LXC = &lxc.Options{Privileged: f.lxc == "privileged"}
	default:
		return errors.New("--lxc must be on, off or privileged")
	}
	switch f.kvm {
	case "off":
	case "on", "emulate":
		cfg.KVM = &kvm.Options{Emulate: f.kvm == "emulate"}
	default:
		return errors.New("--kvm must be on, off or emulate")
	}
	switch f.kvmNetwork {
	case "bridge", "user":
		cfg.UserNetwork = f.kvmNetwork == "user"
	default:
		return errors.New("--kvm-network must be bridge or user")
	}
	if f.subnet != "" {
		p, err := netip.ParsePrefix(f.subnet)
		if err != nil || !p.Addr().Is4() || p.Bits() > 24 || !p.Addr().IsPrivate() {
			return errors.New("--subnet must be a private range of at least 256 IPv4 addresses, such as 10.96.0.0/16")
		}
		cfg.Subnet = p.Masked()
	}
	return nil
}

package assembly

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"mariposa"
	"mariposa/relay"
)

// checkAdvertised validates the address that a replica publishes: other replicas and agents
// send what people must not read to it.
func checkAdvertised(cfg Config) error {
	if cfg.Advertise == "" {
		return nil
	}
	if err := relay.CheckURL(cfg.Advertise); err != nil {
		return fmt.Errorf("--advertise: %w", err)
	}
	u, err := url.Parse(cfg.Advertise)
	if err != nil {
		return fmt.Errorf("--advertise: %w", err)
	}
	ip := net.ParseIP(u.Hostname())
	switch {
	case ip != nil && ip.IsUnspecified():
		return fmt.Errorf("--advertise: %s stands for all addresses of a machine: name one at which other machines reach this one", u.Host)
	case u.Scheme == "http" && cfg.cert != nil:
		return errors.New("--advertise: this server has a certificate: use an https address")
	case u.Scheme == "http" && mariposa.CheckEncrypted(u, cfg.Insecure) != nil:
		return fmt.Errorf("--advertise: replicas and agents would connect to %s unencrypted: use an https address, or pass --insecure", cfg.Advertise)
	}
	return nil
}

// isWildcard reports whether a listener accepts connections to all addresses of the machine.
func isWildcard(at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return ok && tcp.IP.IsUnspecified()
}

// note returns the function that says what this replica publishes with its lease. A renewed
// certificate is published with the next renewal of the lease.
func (c *plane) note(since time.Time) func() string {
	return func() string {
		r := relay.Replica{URL: c.cfg.Advertise, Version: c.cfg.Version, Since: since.UTC()}
		if c.cfg.cert != nil {
			r.Pin = relay.Pin(c.cfg.cert.leaf())
		}
		return r.Note()
	}
}

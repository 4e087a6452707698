package haproxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/statefile"
)

// These are in the directory of a balancer.
const (
	configFile = "haproxy.cfg"
	certFile   = "cert.pem"
	adminFile  = "admin.sock"
	masterFile = "master.sock"
)

// maxFiles bounds the connections of a balancer: each one has two files.
const maxFiles = 100_000

// values are the live values of a balancer.
type values struct {
	config mariposa.Balancer
	cert   string
}

// readValues reads and checks the live values of a balancer.
func readValues(list []mariposa.Variable) (v values, err error) {
	text := ""
	for _, one := range list {
		switch one.Name {
		case mariposa.BalancerValue:
			text = one.Value
		case mariposa.CertificateValue:
			v.cert = one.Value
		}
	}
	if text == "" {
		return v, errors.New("this node does not have the routes of the load balancer")
	}
	if err := json.Unmarshal([]byte(text), &v.config); err != nil {
		return v, fmt.Errorf("the routes of the load balancer cannot be read: %w", err)
	}
	if err := v.config.Check(); err != nil {
		return v, err
	}
	if !v.config.TLS {
		v.cert = ""
		return v, nil
	}
	if v.cert == "" {
		return v, errors.New("its certificate is missing: set the metadata that `tls` refers to")
	}
	v.cert = strings.TrimSpace(v.cert) + "\n"
	if _, err := tls.X509KeyPair([]byte(v.cert), []byte(v.cert)); err != nil || strings.Contains(v.cert, "\n\n") || strings.Contains(v.cert, "\r") {
		return v, errors.New("its certificate cannot be used: the value of `tls` must be a certificate and its private key as PEM, one after the other and without blank lines")
	}
	return v, nil
}

// valuesForStart returns the values that a balancer starts with. One that ran before uses its former
// ones if it cannot use the new ones, and the second result says why.
func (d *Driver) valuesForStart(ctx context.Context, i *driver.Instance) (v values, problem, err error) {
	if v, err = readValues(i.Mdata.Values); err == nil {
		return v, nil, nil
	}
	former, lost := d.inner.PublishedValues(ctx, i.ID)
	if lost == nil {
		v, lost = readValues(former)
	}
	if lost != nil {
		return v, nil, err
	}
	i.Mdata.Values = former
	return v, err, nil
}

// prepare writes the files of a balancer that is started.
func (d *Driver) prepare(e *entry, v values, problem error) error {
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return fmt.Errorf("cannot create the directory of its configuration: %w", err)
	}
	e.mu.Lock()
	e.config, e.cert, e.problem = v.config, v.cert, problemText(problem)
	e.mu.Unlock()
	if err := d.writeFiles(e); err != nil {
		return err
	}
	return d.storeRecord(e)
}

// writeFiles writes the configuration and the certificate of a balancer.
func (d *Driver) writeFiles(e *entry) error {
	e.mu.Lock()
	text, cert := e.render(), e.cert
	e.mu.Unlock()
	var err error
	if cert != "" {
		err = statefile.Replace(filepath.Join(e.dir, certFile), []byte(cert), 0o600, -1, -1)
	}
	if err == nil {
		err = statefile.Replace(filepath.Join(e.dir, configFile), []byte(text), 0o600, -1, -1)
	}
	if err == nil && cert == "" {
		err = statefile.IgnoreMissing(os.Remove(filepath.Join(e.dir, certFile)))
	}
	if err != nil {
		return fmt.Errorf("cannot write its configuration: %w", err)
	}
	return nil
}

// backends returns the names of a balancer's backends, each once.
func (e *entry) backends() []string {
	var all []string
	for _, r := range e.config.Routes {
		if name := e.config.Backend(e.record.Service, r); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// render returns the configuration of a balancer with its members. Everything in it was checked:
// names, numbers, hosts and paths that mean nothing to HAProxy. The caller holds the mutex.
func (e *entry) render() string {
	b := &e.config
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line("# Written by Mariposa. Changes are lost.")
	line("global")
	line("    stats socket %s mode 600 level admin expose-fd listeners", filepath.Join(e.dir, adminFile))
	line("    hard-stop-after %ds", int(max(b.Drain, time.Second)/time.Second))
	// Without this, the kernel would share a port among all HAProxy processes that root starts. A
	// reload needs it not: new workers get the sockets of the former ones.
	line("    noreuseport")
	line("    fd-hard-limit %d", maxFiles) // agents may be allowed a million, and connections need memory
	if name, group := unprivileged(); name != "" {
		line("    user %s", name)
		line("    group %s", group)
	}
	line("defaults")
	line("    mode %s", b.Mode)
	line("    timeout connect 3s")
	line("    retries 3")
	line("    option redispatch 1")
	if b.Mode == "http" {
		line("    timeout http-request 30s")
		line("    timeout http-keep-alive 60s")
		line("    timeout client 5m")
		line("    timeout server 5m")
		line("    timeout tunnel 1h") // WebSockets
		// A request that a server did not answer at all is sent to another one, unless it may
		// have changed something.
		line("    retry-on conn-failure empty-response")
	} else {
		line("    timeout client 1h")
		line("    timeout server 1h")
	}
	e.renderFrontend(line)
	for _, name := range e.backends() {
		line("backend %s", name)
		if b.Mode == "http" {
			line("    balance roundrobin")
			line("    http-request disable-l7-retry if !METH_GET")
		} else {
			line("    balance leastconn")
		}
		for _, m := range e.record.Members {
			if m.Backend == name && m.Address != "" && m.State == mariposa.MemberUp {
				line("    server %s %s weight %d", m.Instance, m.Address, m.Weight)
			}
		}
	}
	return s.String()
}

// renderFrontend writes the ports and the routes.
func (e *entry) renderFrontend(line func(format string, args ...any)) {
	b := &e.config
	line("frontend in")
	for _, port := range b.Listen {
		suffix := ""
		if b.TLS {
			suffix = " ssl crt " + filepath.Join(e.dir, certFile)
			if b.Mode == "http" {
				suffix += " alpn h2,http/1.1"
			}
		}
		if hasIPv6() {
			line("    bind :::%d v4v6%s", port, suffix)
		} else {
			line("    bind :%d%s", port, suffix)
		}
	}
	if b.Mode == "http" { // what clients claim does not count
		line("    http-request set-header X-Forwarded-Proto %%[ssl_fc,iif(https,http)]")
		// An IPv4 client of a port for both has an address like ::ffff:192.0.2.1 there.
		line("    http-request add-header X-Forwarded-For %%[src,regsub(^::ffff:,)]")
	}
	for _, r := range b.Routes {
		name := b.Backend(e.record.Service, r)
		host := ""
		switch {
		case strings.HasPrefix(r.Host, "*."):
			host = " { req.hdr(host),field(1,:) -i -m end " + r.Host[1:] + " }"
		case r.Host != "":
			host = " { req.hdr(host),field(1,:) -i " + r.Host + " }"
		}
		switch {
		case r.Path != "":
			line("    use_backend %s if%s { path %s }", name, host, r.Path)
			line("    use_backend %s if%s { path_beg %s/ }", name, host, r.Path)
		case host != "":
			line("    use_backend %s if%s", name, host)
		default:
			line("    default_backend %s", name)
		}
	}
}

// hasIPv6 reports whether the kernel of this machine has IPv6.
var hasIPv6 = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrInet6{}) == nil
})

// unprivileged returns the user that HAProxy runs as, with its group; empty if the agent cannot
// change users.
func unprivileged() (name, group string) {
	if os.Geteuid() != 0 {
		return "", ""
	}
	for _, name := range []string{"haproxy", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			if g, err := user.LookupGroupId(u.Gid); err == nil {
				return name, g.Name
			}
		}
	}
	return "", ""
}

// command returns how HAProxy is started: one process that starts workers, so that its routes can
// change without the end of a connection.
func (d *Driver) command(e *entry) []string {
	return []string{d.supported().path, "-W", "-S", filepath.Join(e.dir, masterFile) + ",mode,600", "-f", filepath.Join(e.dir, configFile)}
}

func (e *entry) socket() socket {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.record.External; x != nil {
		if strings.HasPrefix(x.Config.Address, "/") {
			return socket{"unix", x.Config.Address}
		}
		return socket{"tcp", x.Config.Address}
	}
	return socket{"unix", filepath.Join(e.dir, adminFile)}
}

// pid returns the main process of a balancer; 0 if it is not known.
func (e *entry) pid() int {
	n, _ := strconv.Atoi(e.observed().Details["pid"]) // absent while it does not run
	return n
}

package haproxy

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"mariposa/driver"
)

// support is what the machine can do.
type support struct {
	path        string // of HAProxy
	version     string
	unavailable string
	at          time.Time // when that was found out
}

// probeInterval is how often a machine without HAProxy is looked at again.
const probeInterval = 10 * time.Second

// supported returns what the machine can do. It looks again now and then while that is nothing.
func (d *Driver) supported() support {
	d.supportMu.Lock()
	defer d.supportMu.Unlock()
	if d.support.at.IsZero() || d.support.unavailable != "" && time.Since(d.support.at) > probeInterval {
		d.support = findSupport()
	}
	return d.support
}

var versionText = regexp.MustCompile(`version (\d+)\.(\d+)[^\s]*`)

func findSupport() support {
	s := support{at: time.Now()}
	for _, name := range []string{"haproxy", "/usr/sbin/haproxy", "/usr/local/sbin/haproxy"} {
		if path, err := exec.LookPath(name); err == nil {
			s.path = path
			break
		}
	}
	if s.path == "" {
		s.unavailable = "HAProxy is not installed; install haproxy (apt-get install haproxy)"
		return s
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.path, "-v").Output()
	m := versionText.FindSubmatch(out)
	if err != nil || m == nil {
		s.unavailable = fmt.Sprintf("%s does not say its version", s.path)
		return s
	}
	s.version = string(m[0][len("version "):])
	major, _ := strconv.Atoi(string(m[1])) // digits
	minor, _ := strconv.Atoi(string(m[2]))
	if major < 2 || major == 2 && minor < 6 {
		s.unavailable = fmt.Sprintf("HAProxy %s is too old; install HAProxy 2.6 or later", s.version)
	}
	return s
}

// Unavailable says why no balancer can be started here.
func (d *Driver) Unavailable() string { return d.supported().unavailable }

// Details describe how balancers run here.
func (d *Driver) Details() map[string]string {
	s := d.supported()
	if s.unavailable != "" {
		return nil
	}
	m := map[string]string{"haproxy": s.version}
	if name, _ := unprivileged(); name != "" {
		m["user"] = name
	}
	return m
}

// awaitSupport reports that a machine which could run no balancer can do so now.
func (d *Driver) awaitSupport() {
	for d.Unavailable() != "" {
		select {
		case <-d.gate.Context().Done():
			return
		case <-time.After(probeInterval + time.Second):
		}
		if d.Unavailable() == "" {
			d.tell(driver.Event{Kind: driver.EngineBack})
		}
	}
}

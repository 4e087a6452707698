package haproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"mariposa"
	"mariposa/driver"
)

// PublishValues applies other routes and another certificate to a running balancer. Neither ends
// a connection.
func (d *Driver) PublishValues(ctx context.Context, id string, list []mariposa.Variable) error {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e := d.entry(id)
	if e == nil {
		return driver.ErrNotFound
	}
	wanted, err := readValues(list)
	if err == nil {
		err = d.apply(ctx, e, wanted)
	}
	d.describeProblem(e, err)
	if err != nil || e.isExternal() {
		return err
	}
	return d.inner.PublishValues(ctx, id, list)
}

// PublishedValues returns the values that a balancer has.
func (d *Driver) PublishedValues(ctx context.Context, id string) ([]mariposa.Variable, error) {
	e := d.entry(id)
	if e == nil {
		return nil, driver.ErrNotFound
	}
	if !e.isExternal() {
		return d.inner.PublishedValues(ctx, id)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return []mariposa.Variable{{Name: mariposa.BalancerValue, Value: e.config.Encode()}}, nil
}

// apply makes a running balancer use other values.
func (d *Driver) apply(ctx context.Context, e *entry, wanted values) error {
	e.work.Lock()
	defer e.work.Unlock()
	e.mu.Lock()
	is, x := values{e.config, e.cert}, e.record.External
	e.mu.Unlock()
	if x != nil {
		return d.applyExternal(e, wanted)
	}
	if wanted.config.Address != "" {
		return errors.New("a load balancer cannot become an external one")
	}
	wanted.config.Listen = is.config.Listen // other ports make another instance
	before, old := e.rendered(is)
	after, _ := e.rendered(wanted)
	outdated := e.outdated || before != after
	if wanted.cert != is.cert && is.cert != "" && wanted.cert != "" && old.Running {
		if len(wanted.cert) > maxSocketCert {
			outdated = true
		} else if err := e.renew(ctx, wanted.cert); err != nil {
			return err
		}
	}
	if err := d.replaceFiles(e, wanted); err != nil {
		return err
	}
	e.outdated = outdated && old.Running
	if !e.outdated {
		return nil
	}
	err := d.checkFiles(ctx, e)
	if err == nil {
		err = d.reload(ctx, e)
	}
	if err != nil { // it may have been carried out all the same, so the next one is needed
		return errors.Join(err, d.replaceFiles(e, is))
	}
	e.outdated = false
	return nil
}

// checkFiles returns why HAProxy would not accept the configuration and the certificate that were
// written.
func (d *Driver) checkFiles(ctx context.Context, e *entry) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, d.supported().path, "-c", "-f", filepath.Join(e.dir, configFile)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("HAProxy does not accept them: %s", cmp.Or(alertIn(string(out)), err.Error()))
	}
	return nil
}

// maxSocketCert is the size of the largest certificate that is sent over the control socket. A
// command must fit into a buffer of HAProxy, with 16 KiB.
const maxSocketCert = 12 << 10

// replaceFiles writes the configuration and the certificate of other values, which a restarted
// HAProxy uses.
func (d *Driver) replaceFiles(e *entry, v values) error {
	e.mu.Lock()
	e.config, e.cert = v.config, v.cert
	e.mu.Unlock()
	return d.writeFiles(e)
}

// rendered returns the configuration of some values with the current members.
func (e *entry) rendered(v values) (string, driver.Observed) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.config
	e.config = v.config
	text := e.render()
	e.config = was
	return text, e.seen
}

// renew replaces the certificate of a running HAProxy. New connections get the new one; open ones
// are not affected.
func (e *entry) renew(ctx context.Context, cert string) error {
	path, s := filepath.Join(e.dir, certFile), e.socket()
	answer, err := s.ask(ctx, "set ssl cert "+path+" <<\n"+cert)
	if err == nil && !strings.Contains(answer, "Transaction") {
		err = errors.New("HAProxy refuses the certificate")
	}
	if err == nil {
		answer, err = s.ask(ctx, "commit ssl cert "+path)
	}
	if err == nil && !strings.Contains(answer, "Success") {
		err = errors.New("HAProxy does not use the certificate")
	}
	if err != nil {
		_, _ = s.ask(ctx, "abort ssl cert "+path) // what is not committed has no effect
		return err
	}
	return nil
}

// reload makes HAProxy read its configuration again: new workers take over its ports, and the old
// ones finish their connections.
func (d *Driver) reload(ctx context.Context, e *entry) error {
	admin := e.socket()
	before, err := admin.ask(ctx, "show info")
	if err != nil {
		return err
	}
	if _, err := (socket{"unix", filepath.Join(e.dir, masterFile)}).ask(ctx, "reload"); err != nil {
		return fmt.Errorf("cannot reload HAProxy: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if now, err := admin.ask(ctx, "show info"); err == nil && infoOf(now, "Pid") != infoOf(before, "Pid") {
			e.wakeUp()
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("HAProxy does not accept its new configuration: see its log")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// infoOf returns a line of "show info".
func infoOf(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// softStop asks HAProxy to end once its connections have ended.
func softStop(pid int) bool {
	return pid > 1 && syscall.Kill(pid, syscall.SIGUSR1) == nil
}

// startExternal begins to use an external balancer.
func (d *Driver) startExternal(e *entry, i driver.Instance, v values) (driver.Observed, error) {
	err := d.checkAddress(v.config.Address)
	if err == nil {
		err = d.checkBackend(e, i, v.config.Address)
	}
	if err != nil {
		d.dropUnused(e)
		return driver.Observed{ID: i.ID}, err
	}
	e.mu.Lock()
	e.config, e.problem = v.config, ""
	e.record.External = &external{
		Name: i.Name, Project: i.Project, Labels: i.Labels, Origin: i.Origin, Config: v.config, ManualRestarts: i.ManualRestarts, Started: time.Now().UTC(),
	}
	e.seen = e.record.External.observe(e.id, nil)
	e.mu.Unlock()
	if err := d.storeRecord(e); err != nil {
		return driver.Observed{ID: i.ID}, err
	}
	d.follow(e)
	return e.observed(), nil
}

// checkAddress refuses a control socket that the operator of the node has not allowed.
func (d *Driver) checkAddress(address string) error {
	for _, allowed := range d.options.Addresses {
		if allowed == address {
			return nil
		}
	}
	return fmt.Errorf("this node does not allow the external balancer %s: start its agent with --balancer-address %s", address, address)
}

// allowedSocket returns the control socket of a balancer, unless the operator of the node no longer
// allows it.
func (d *Driver) allowedSocket(e *entry) (socket, error) {
	s := e.socket()
	if e.isExternal() {
		return s, d.checkAddress(s.address)
	}
	return s, nil
}

// checkBackend refuses a backend of an external balancer that another project uses: its requests
// would go to both.
func (d *Driver) checkBackend(e *entry, i driver.Instance, address string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, other := range d.entries {
		if other != e && other.usesBackend(address, i.Service) && !other.isOf(i.Origin) {
			return fmt.Errorf("another project uses the backend %s of the external balancer %s: rename the load balancer, and give it a backend of its own", i.Service, address)
		}
	}
	return nil
}

// usesBackend reports whether this is an external balancer with a backend.
func (e *entry) usesBackend(address, name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.record.External
	return x != nil && x.Config.Address == address && e.record.Service == name
}

// isOf reports whether this is an external balancer of the same project.
func (e *entry) isOf(origin *mariposa.Provenance) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	own := e.record.External.Origin
	return own == nil || origin == nil || own.Project == origin.Project
}

// observe returns an external balancer as an instance.
func (x *external) observe(id string, members []mariposa.MemberStatus) driver.Observed {
	o := driver.Observed{
		ID: id, Labels: x.Labels, Origin: x.Origin, Name: x.Name, Project: x.Project, Running: x.Finished.IsZero(), PhysicalID: "external-" + id,
		Started: x.Started, Finished: x.Finished, ManualRestarts: x.ManualRestarts, Details: map[string]string{"address": x.Config.Address},
	}
	if o.Running {
		o.Members = withoutCounters(members)
	} else {
		o.Reason = "was stopped"
	}
	return o
}

// applyExternal keeps other settings of an external balancer. Its loop uses them.
func (d *Driver) applyExternal(e *entry, wanted values) error {
	e.mu.Lock()
	if wanted.config.Address != e.record.External.Config.Address {
		e.mu.Unlock()
		return errors.New("another address makes another instance")
	}
	e.config, e.record.External.Config = wanted.config, wanted.config
	e.mu.Unlock()
	e.wakeUp()
	return d.storeRecord(e)
}

// stopExternal ends the use of an external balancer. Its members stay until it is removed.
func (d *Driver) stopExternal(e *entry) (driver.Observed, error) {
	e.unfollow()
	e.mu.Lock()
	if x := e.record.External; x.Finished.IsZero() {
		x.Finished = time.Now().UTC()
		e.seen = x.observe(e.id, nil)
	}
	e.mu.Unlock()
	return e.observed(), d.storeRecord(e)
}

// clearExternal takes the members of a removed balancer out of an external one, as far as it
// answers.
func (d *Driver) clearExternal(ctx context.Context, e *entry) {
	e.setMembers(nil)
	for range 3 { // the first takes them out, the next delete those whose connections have ended
		e.work.Lock()
		_, err := d.correct(ctx, e)
		e.work.Unlock()
		e.mu.Lock()
		left := len(e.record.Ours)
		e.mu.Unlock()
		if err != nil || left == 0 {
			return
		}
	}
}

package docker

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
)

// Start creates the container of an instance and starts it, or starts the one that has ended.
func (d *Driver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	if i.Adopts != "" {
		return d.startAdopted(ctx, i)
	}
	return d.operate(ctx, i.ID, func(ctx context.Context, _ *entry) (driver.Observed, error) {
		plan, more, err := d.plan(i)
		if err != nil {
			return driver.Observed{}, err
		}
		c, err := d.container(ctx, i.ID)
		switch {
		case errdefs.IsNotFound(err):
			c = nil
		case err != nil:
			return driver.Observed{}, err
		case c.State.Running:
			return d.observed(i.ID, c), nil
		case c.Config.Labels[labelConfig] != plan.Config.Labels[labelConfig] || c.State.Dead || hasNeverRun(c):
			if _, err := d.removeContainer(ctx, i.ID); err != nil {
				return driver.Observed{}, err
			}
			c = nil
		}
		isNew := c == nil
		if isNew {
			if err = d.create(ctx, i, plan, more); err == nil {
				err = d.run(ctx, i)
			}
		} else {
			err = d.runAgain(ctx, i, c)
		}
		if own := plan.Config.Labels[labelNetwork]; isMissingNetwork(err) && (!isNew || own != "") { // someone has removed it
			d.forgetNetworks(own)
			if _, err = d.removeContainer(ctx, i.ID); err == nil {
				err = d.create(ctx, i, plan, more)
			}
			if err == nil {
				err = d.run(ctx, i)
			}
			isNew = true
		}
		if err != nil {
			if isNew {
				d.discard(i.ID, plan.Config.Labels[labelNetwork])
			}
			return driver.Observed{}, err
		}
		return d.startedState(ctx, i.ID)
	})
}

// hasNeverRun reports whether a container was created and never started. The agent or the engine may
// have ended before it was complete.
func hasNeverRun(c *container.InspectResponse) bool { return parseTime(c.State.StartedAt).IsZero() }

// runAgain starts a container that has ended, with the limits that its instance has now.
func (d *Driver) runAgain(ctx context.Context, i driver.Instance, c *container.InspectResponse) error {
	if err := d.prepare(ctx, i, c.Config.User); err != nil {
		return err
	}
	if !d.isPodman.Load() {
		if err := d.limit(ctx, c, i.Workload); err != nil {
			return err
		}
		return d.run(ctx, i)
	}
	if err := d.run(ctx, i); err != nil || hasLimits(c.HostConfig, i.Workload) {
		return err
	}
	err := d.limit(ctx, c, i.Workload)
	if now, lookErr := d.container(ctx, i.ID); lookErr == nil && !now.State.Running {
		return nil // it has ended already
	}
	return err
}

// create creates the container of an instance, and fetches its image if it is missing.
func (d *Driver) create(ctx context.Context, i driver.Instance, plan client.ContainerCreateOptions, more []string) error {
	if err := d.markPending(i.ID); err != nil {
		return err
	}
	if err := d.writePrivate(i, owner{}); err != nil { // the engine checks that it is there
		return err
	}
	err := d.createContainer(ctx, i, plan)
	if errdefs.IsNotFound(err) && isMissingImage(err) {
		if err := d.EnsureImage(ctx, plan.Config.Image, i.Login, func(driver.Progress) {}); err != nil {
			return err
		}
		err = d.createContainer(ctx, i, plan)
	}
	if err != nil {
		return err
	}
	for _, name := range more {
		if _, err := d.api().NetworkConnect(ctx, name, client.NetworkConnectOptions{Container: containerName(i.ID), EndpointConfig: endpoint(i)}); err != nil {
			return err
		}
	}
	c, err := d.container(ctx, i.ID)
	if err != nil {
		return err
	}
	return d.prepare(ctx, i, c.Config.User)
}

// prepare writes the files and values of a container for the user that it runs as.
func (d *Driver) prepare(ctx context.Context, i driver.Instance, user string) error {
	to, err := d.resolveUser(ctx, i.ID, user)
	if err != nil {
		return err
	}
	return d.writePrivate(i, to)
}

// limit gives a container the limits of a workload, if it has others.
func (d *Driver) limit(ctx context.Context, c *container.InspectResponse, w *mariposa.Workload) error {
	if w == nil || hasLimits(c.HostConfig, w) && !d.isPodman.Load() || d.unlimited() != "" {
		return nil
	}
	r := limits(w, true)
	if d.isPodman.Load() {
		return d.limitPodman(ctx, c.ID, r)
	}
	_, err := d.api().ContainerUpdate(ctx, c.ID, client.ContainerUpdateOptions{Resources: &r})
	return err
}

// run starts a container that is ready.
func (d *Driver) run(ctx context.Context, i driver.Instance) error {
	if err := d.writeRecord(i.ID, record{ManualRestarts: i.ManualRestarts, Limited: hasOwnLimits(i.Workload)}); err != nil {
		return err
	}
	d.awaitCleanups(ctx)
	for attempt := 1; ; attempt++ {
		_, err := d.api().ContainerStart(ctx, d.reference(i.ID), client.ContainerStartOptions{})
		if attempt == startAttempts || !isRuntimeCrash(err) {
			return err
		}
	}
}

// startAttempts is how often the engine is asked to start a container whose runtime crashes.
const startAttempts = 3

// runtimeCrash matches what the engine says if runc's first process died before it could run
// the program, without saying why. With runc 1.1 this happens now and then on a busy machine
// where many containers start at once, and the next attempt succeeds. The process may also be
// gone when the engine's hook wants to enter its network namespace.
var runtimeCrash = regexp.MustCompile(`error during container init: (read init-p|write init-p|writing syncT|%!w\(<nil>\))` +
	`|error running hook #\d+: .*msg="?no such file or directory`)

func isRuntimeCrash(err error) bool { return err != nil && runtimeCrash.MatchString(err.Error()) }

// startedState returns a container that was just started. If it has ended already, that is
// reported like any other end.
func (d *Driver) startedState(ctx context.Context, id string) (driver.Observed, error) {
	c, err := d.container(ctx, id)
	if err != nil {
		return driver.Observed{}, err
	}
	if !c.State.Running {
		running := *c
		state := *c.State
		state.Running, state.FinishedAt, state.ExitCode, state.Error, state.OOMKilled = true, "", 0, "", false
		running.State = &state
		c = &running
	}
	return d.observed(id, c), nil
}

// discard removes what a failed start has created.
func (d *Driver) discard(id, network string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), probeTimeout)
	defer cancel()
	if _, err := d.removeContainer(ctx, id); err == nil {
		_ = d.removePrivate(id)          // a removal of the instance tries again
		_ = d.removeUnused(ctx, network) // as above
	}
}

// Update changes the limits of a running container.
func (d *Driver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	return d.operate(ctx, i.ID, func(ctx context.Context, _ *entry) (driver.Observed, error) {
		c, err := d.container(ctx, i.ID)
		if errdefs.IsNotFound(err) {
			return driver.Observed{}, driver.ErrNotFound
		}
		if err != nil {
			return driver.Observed{}, err
		}
		if d.adoptions.of(i.ID) == nil { // an adopted container keeps its own limits
			err = d.limit(ctx, c, i.Workload)
		}
		if err != nil {
			return driver.Observed{}, err
		}
		return d.inspect(ctx, i.ID)
	})
}

// hasLimits reports whether a container has the limits of a workload already.
func hasLimits(c *container.HostConfig, w *mariposa.Workload) bool {
	if c == nil {
		return false
	}
	memory, quota := c.Memory, c.CPUQuota
	if memory == noMemoryLimit {
		memory = 0
	}
	return memory == w.Memory && max(0, quota) == w.MilliCPU*cpuPeriod/1000
}

// resolveUser returns the numbers of the user that a container runs as. Names are looked up in
// its own files.
func (d *Driver) resolveUser(ctx context.Context, id, user string) (owner, error) {
	name, group, hasGroup := strings.Cut(user, ":")
	var to owner
	if name == "" || name == "0" || name == "root" {
		name = "0"
	}
	uid, err := strconv.Atoi(name)
	if err != nil {
		fields, err := d.lookUp(ctx, id, "/etc/passwd", name)
		if err != nil {
			return to, err
		}
		if len(fields) < 4 {
			return to, &explained{fmt.Sprintf("its image has no user %q: check `user`", name), nil}
		}
		uid, _ = strconv.Atoi(fields[2])
		to.gid, _ = strconv.Atoi(fields[3])
	}
	to.uid = uid
	if !hasGroup {
		return to, nil
	}
	if to.gid, err = strconv.Atoi(group); err != nil {
		fields, err := d.lookUp(ctx, id, "/etc/group", group)
		if err != nil {
			return to, err
		}
		if len(fields) < 3 {
			return to, &explained{fmt.Sprintf("its image has no group %q: check `user`", group), nil}
		}
		to.gid, _ = strconv.Atoi(fields[2])
	}
	return to, nil
}

// lookUp returns the fields of a name in a file like /etc/passwd of a container; nil if it is
// not there.
func (d *Driver) lookUp(ctx context.Context, id, path, name string) ([]string, error) {
	r, err := d.api().CopyFromContainer(ctx, containerName(id), client.CopyFromContainerOptions{SourcePath: path})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.Content.Close() // it was only read
	files := tar.NewReader(r.Content)
	if _, err := files.Next(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(io.LimitReader(files, 1<<20))
	for lines.Scan() {
		if fields := strings.Split(lines.Text(), ":"); fields[0] == name {
			return fields, nil
		}
	}
	return nil, errors.Join(lines.Err())
}

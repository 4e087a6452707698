package docker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mariposa/driver"
)

// Stop sends a container its stop signal, and kills it after the timeout.
func (d *Driver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	return d.operate(ctx, id, func(ctx context.Context, _ *entry) (driver.Observed, error) {
		c, err := d.container(ctx, id)
		switch {
		case errdefs.IsNotFound(err):
			return driver.Observed{}, nil
		case err != nil:
			return driver.Observed{}, err
		case c.State.Paused:
			if _, err := d.api().ContainerUnpause(ctx, d.reference(id), client.ContainerUnpauseOptions{}); err != nil && !errdefs.IsConflict(err) {
				return driver.Observed{}, err
			}
		}
		if c.State.Running {
			if err := d.end(ctx, id, cmp.Or(c.Config.StopSignal, "SIGTERM"), d.stopTimeout(id, c, timeout)); err != nil {
				return driver.Observed{}, err
			}
		}
		o, err := d.inspect(ctx, id)
		if errdefs.IsNotFound(err) { // an adopted container may be removed when it ends
			return driver.Observed{}, nil
		}
		return o, err
	})
}

// end sends a signal to a container and waits for its end.
func (d *Driver) end(ctx context.Context, id, signal string, timeout time.Duration) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := func() client.ContainerWaitResult {
		return d.api().ContainerWait(waiting, d.reference(id), client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	}
	ended := wait()
	if timeout != 0 {
		if err := d.kill(ctx, id, signal); err != nil {
			return err
		}
	}
	var force <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		force = timer.C
	}
	for {
		select {
		case <-ended.Result:
			return nil
		case err := <-ended.Error:
			switch {
			case errdefs.IsNotFound(err):
				return nil
			case err == nil || !strings.Contains(err.Error(), slowExit):
				return err
			}
			ended = wait()
		case <-force:
			if err := d.kill(ctx, id, "SIGKILL"); err != nil {
				return err
			}
		}
	}
}

// slowExit is in the error of Podman for an end that it has not learned of within some seconds, which
// happens on a busy machine.
const slowExit = "timed out waiting for file"

// kill sends a signal to a container. It is not an error if it has ended.
func (d *Driver) kill(ctx context.Context, id, signal string) error {
	_, err := d.api().ContainerKill(ctx, d.reference(id), client.ContainerKillOptions{Signal: signal})
	if errdefs.IsConflict(err) || errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Remove removes a container, running or not, with everything that belongs to it.
func (d *Driver) Remove(ctx context.Context, id string) error {
	_, err := d.operate(ctx, id, func(ctx context.Context, _ *entry) (driver.Observed, error) {
		network, err := d.removeContainer(ctx, id)
		if err != nil {
			return driver.Observed{}, err
		}
		if err := d.removeUnused(ctx, network); err != nil {
			slog.Warn("cannot remove the network of a project; it is tried again later", "network", network, "err", d.explain(err))
		}
		return driver.Observed{}, errors.Join(d.forget(ctx, id), d.removePrivate(id)) // after its container, so that a crash leaves none behind
	})
	return err
}

// removeContainer removes the container of an instance with its anonymous volumes. It returns the
// network of its project; empty if it has none.
func (d *Driver) removeContainer(ctx context.Context, id string) (network string, err error) {
	for {
		c, err := d.container(ctx, id) // whose it is may not have been checked yet
		if err == nil {
			network = c.Config.Labels[labelNetwork]
			err = d.markPending(id)
		}
		if err == nil {
			_, err = d.api().ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: d.adoptions.of(id) == nil}) // the volumes of an adopted container are not ours
		}
		switch {
		case errdefs.IsNotFound(err):
			return network, nil
		case !errdefs.IsConflict(err):
			return network, err
		}
		select { // someone else is removing it
		case <-ctx.Done():
			return network, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

package docker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/moby/moby/client"
)

// After the end of a container the engine releases its network, ports and files. A container that
// starts meanwhile needs the same locks of the engine and of the kernel, and is up later than one that
// starts when all of that is done. Creating one takes none of them for long, so it does not wait.

// cleanupTime bounds how long a start waits for the engine to clean up.
const cleanupTime = time.Second

// noteCleanup notes that the engine cleans up after a container, until it answers a question about it.
func (d *Driver) noteCleanup(container string) {
	done := make(chan struct{})
	d.mu.Lock()
	d.cleanups[container] = done
	d.mu.Unlock()
	d.gate.Go(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(d.gate.Context(), cleanupTime)
		defer cancel()
		_, _ = d.api().ContainerInspect(ctx, container, client.ContainerInspectOptions{}) // only the time of the answer counts
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.cleanups, container)
	})
}

// awaitCleanups waits until the engine has cleaned up after the containers that have just ended.
func (d *Driver) awaitCleanups(ctx context.Context) {
	d.mu.Lock()
	all := slices.Collect(maps.Values(d.cleanups))
	d.mu.Unlock()
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

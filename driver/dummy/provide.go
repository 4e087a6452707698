package dummy

import (
	"context"

	"mariposa"
	"mariposa/driver"
)

var (
	_ driver.Provider = (*Driver)(nil)
	_ driver.Imager   = (*Driver)(nil)
)

// EnsureImage simulates pulling an image that is new to the world: at once, with two
// reports. Images are kept in memory only.
func (d *Driver) EnsureImage(ctx context.Context, image string, _ *mariposa.Login, report func(driver.Progress)) error {
	d.world.mu.Lock()
	err, known := d.usableLocked(ctx), d.world.images[image]
	if err == nil {
		d.world.images[image] = true
	}
	d.world.mu.Unlock()
	if err == nil && !known {
		report(driver.Progress{})
		report(driver.Progress{Done: imageSize, Total: imageSize})
	}
	return err
}

// imageSize is the size of every simulated image.
const imageSize = 1 << 20

// Provide does nothing: a dummy's volume is only a record.
func (d *Driver) Provide(ctx context.Context, _ driver.Resource) (string, error) {
	return "", d.checkUsable(ctx)
}

// Withdraw does nothing.
func (d *Driver) Withdraw(ctx context.Context, _ driver.Resource) error {
	return d.checkUsable(ctx)
}

// Provided returns nothing.
func (d *Driver) Provided(ctx context.Context) ([]driver.Resource, error) {
	return nil, d.checkUsable(ctx)
}

func (d *Driver) checkUsable(ctx context.Context) error {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	return d.usableLocked(ctx)
}

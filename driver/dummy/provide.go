package dummy

import (
	"context"

	"mariposa/driver"
)

var (
	_ driver.Provider = (*Driver)(nil)
	_ driver.Imager   = (*Driver)(nil)
)

// EnsureImage plays the fetching of an image that the world has not had yet: all at
// once, with two reports. It is forgotten with the program.
func (d *Driver) EnsureImage(ctx context.Context, image string, report func(driver.Progress)) error {
	d.world.mu.Lock()
	err, known := d.whyRefused(ctx), d.world.images[image]
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

// imageSize is how large every image of dummies is.
const imageSize = 1 << 20

// Provide has nothing to make: a dummy's volume is a record and nothing else.
func (d *Driver) Provide(ctx context.Context, _ driver.Resource) (string, error) {
	return "", d.checkUsable(ctx)
}

// Withdraw has nothing to take away.
func (d *Driver) Withdraw(ctx context.Context, _ driver.Resource) error {
	return d.checkUsable(ctx)
}

// Provided finds nothing: there is nothing to find.
func (d *Driver) Provided(ctx context.Context) ([]driver.Resource, error) {
	return nil, d.checkUsable(ctx)
}

func (d *Driver) checkUsable(ctx context.Context) error {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	return d.whyRefused(ctx)
}

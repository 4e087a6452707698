package dummy

import (
	"context"

	"mariposa/driver"
)

var _ driver.Provider = (*Driver)(nil)

// Provide has nothing to make: a dummy's volume is a record and nothing else.
func (d *Driver) Provide(ctx context.Context, _ driver.Resource, done func(string, error)) {
	done("", d.mayAct(ctx))
}

// Withdraw has nothing to take away.
func (d *Driver) Withdraw(ctx context.Context, _ driver.Resource, done func(error)) {
	done(d.mayAct(ctx))
}

// Provided finds nothing: there is nothing to find.
func (d *Driver) Provided(ctx context.Context) ([]driver.Resource, error) {
	return nil, d.mayAct(ctx)
}

func (d *Driver) mayAct(ctx context.Context) error {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	return d.refuses(ctx)
}

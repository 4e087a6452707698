package process

import (
	"context"

	"mariposa"
	"mariposa/driver"
)

var _ driver.Teller = (*Driver)(nil)

// Tell replaces the file that an instance reads its values from.
func (d *Driver) Tell(ctx context.Context, id string, values []mariposa.Variable, done func(error)) {
	d.mu.Lock()
	e, err := d.known(id)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		d.mu.Unlock()
		done(err)
		return
	}
	d.work.Add(1)
	d.mu.Unlock()
	go func() { // a disk may take its time
		defer d.work.Done()
		done(e.folder.tell(values))
	}()
}

// Told reads that file.
func (d *Driver) Told(_ context.Context, id string) ([]mariposa.Variable, error) {
	d.mu.Lock()
	e, err := d.known(id)
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return e.folder.told()
}

// known finds an instance. The caller holds the mutex.
func (d *Driver) known(id string) (*entry, error) {
	e := d.entries[id]
	switch {
	case d.closed:
		return nil, errClosed
	case e == nil || e.seen.ID == "":
		return nil, driver.ErrNotFound
	}
	return e, nil
}

package process

import (
	"context"

	"mariposa"
	"mariposa/driver"
)

var _ driver.Teller = (*Driver)(nil)

// Tell replaces the file that an instance reads its values from.
func (d *Driver) Tell(ctx context.Context, id string, values []mariposa.Variable) error {
	_, leave, err := d.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	d.mu.Lock()
	e, err := d.known(id)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	return e.folder.tell(values)
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

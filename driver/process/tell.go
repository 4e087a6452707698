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
	e, _, err := d.known(id)
	if err != nil {
		return err
	}
	return e.folder.tell(values)
}

// Told reads that file.
func (d *Driver) Told(_ context.Context, id string) ([]mariposa.Variable, error) {
	e, _, err := d.known(id)
	if err != nil {
		return nil, err
	}
	return e.folder.told()
}

// known finds an instance, and what a command inside it needs to know; nil: it does
// not run.
func (d *Driver) known(id string) (*entry, *inside, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[id]
	switch {
	case d.closed:
		return nil, nil, errClosed
	case e == nil || e.seen.ID == "":
		return nil, nil, driver.ErrNotFound
	}
	return e, e.inside, nil
}

// running finds what a command inside an instance needs to know.
func (d *Driver) running(id string) (*inside, error) {
	_, in, err := d.known(id)
	if err == nil && in == nil { // it has ended, or is a stray
		err = driver.ErrNotFound
	}
	return in, err
}

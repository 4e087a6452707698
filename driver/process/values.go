package process

import (
	"context"

	"mariposa"
	"mariposa/driver"
)

var _ driver.ValuePublisher = (*Driver)(nil)

// PublishValues replaces the file that an instance reads its values from.
func (d *Driver) PublishValues(ctx context.Context, id string, values []mariposa.Variable) error {
	_, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e, _, err := d.findEntry(id)
	if err != nil {
		return err
	}
	return e.private.publish(values)
}

// PublishedValues reads that file.
func (d *Driver) PublishedValues(_ context.Context, id string) ([]mariposa.Variable, error) {
	e, _, err := d.findEntry(id)
	if err != nil {
		return nil, err
	}
	return e.private.published()
}

// findEntry returns an instance and its execContext, which is nil if it is not running.
func (d *Driver) findEntry(id string) (*entry, *execContext, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[id]
	switch {
	case d.gate.IsShut():
		return nil, nil, errClosed
	case e == nil || e.observed.ID == "":
		return nil, nil, driver.ErrNotFound
	}
	return e, e.execContext, nil
}

// running returns the execContext of a running instance.
func (d *Driver) running(id string) (*execContext, error) {
	_, in, err := d.findEntry(id)
	if err == nil && in == nil { // it has ended, or is a stray
		err = driver.ErrNotFound
	}
	return in, err
}

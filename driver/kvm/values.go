package kvm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/statefile"
)

// The values of an instance are in a file that its supervisor reads for each request of the guest.

// writeValues replaces the values of an instance atomically.
func writeValues(r *record, values []mariposa.Variable) error {
	object := make(map[string]string, len(values))
	for _, v := range values {
		object[v.Name] = v.Value
	}
	if err := statefile.Write(filepath.Join(r.Private, mdataFile), object); err != nil {
		return fmt.Errorf("cannot write the live values of an instance: %w", err)
	}
	return nil
}

// kept returns an instance with its record. Use it for calls that are allowed while another
// operation on the instance is in progress.
func (d *Driver) kept(ctx context.Context, id string) (e *entry, r record, leave func(), err error) {
	_, leave, err = d.gate.Enter(ctx)
	if err != nil {
		return nil, r, nil, err
	}
	if e, err = d.roster.Find(ctx, id); err != nil {
		leave()
		return nil, r, nil, err
	}
	d.roster.Lock()
	defer d.roster.Unlock()
	return e, e.known, leave, nil
}

// PublishValues replaces the values that an instance can read.
func (d *Driver) PublishValues(ctx context.Context, id string, values []mariposa.Variable) error {
	e, r, leave, err := d.kept(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	e.values.Lock()
	defer e.values.Unlock()
	if _, err := os.Stat(r.Private); statefile.IsGone(err) {
		return driver.ErrNotFound
	}
	return writeValues(&r, values)
}

// PublishedValues returns the values that an instance can read.
func (d *Driver) PublishedValues(ctx context.Context, id string) ([]mariposa.Variable, error) {
	e, r, leave, err := d.kept(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	e.values.Lock()
	defer e.values.Unlock()
	var values map[string]string
	if err := statefile.IgnoreMissing(statefile.Read(filepath.Join(r.Private, mdataFile), &values)); err != nil {
		return nil, fmt.Errorf("cannot read the live values of an instance: %w", err)
	}
	list := make([]mariposa.Variable, 0, len(values))
	for name, value := range values {
		list = append(list, mariposa.Variable{Name: name, Value: value})
	}
	slices.SortFunc(list, func(a, b mariposa.Variable) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

package mdata

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"mariposa/driver/statefile"
)

// MaxOwn bounds what a guest can set: the bytes of all its keys and values.
const MaxOwn = 256 << 10

// Files are the values of an instance in files. They are read again for each request.
type Files struct {
	Published string            // the values of its project: a JSON object
	Own       string            // what its guest has set: another one
	Fixed     map[string]string // what nobody can change; keys that begin with sdc: are not listed

	mu   sync.Mutex
	pace pace
}

// A guest that asks all the time would keep a processor and the disk of the node busy, which none
// of its own limits counts. It is slowed down.
const (
	paceBurst = 500.0 // requests at once
	paceRate  = 100.0 // and then in a second
	pacePut   = 10.0  // what a change counts: it is written to the disk
)

// pace limits how often a guest asks.
type pace struct {
	spent float64 // requests that the time since has not made up for
	at    time.Time
}

// wait waits until a guest may ask again.
func (p *pace) wait(cost float64) {
	now := time.Now()
	p.spent = max(0, p.spent-now.Sub(p.at).Seconds()*paceRate) + cost
	p.at = now
	if over := p.spent - paceBurst; over > 0 {
		time.Sleep(time.Duration(over / paceRate * float64(time.Second)))
	}
}

var _ Values = (*Files)(nil)

// reserved begins the names of keys that describe the instance. Guests cannot set them.
const reserved = "sdc:"

func read(path string) (map[string]string, error) {
	all := map[string]string{}
	if err := statefile.IgnoreMissing(statefile.Read(path, &all)); err != nil {
		return nil, errors.New("the values of the instance cannot be read")
	}
	return all, nil
}

// all returns every value. Those of the project take precedence over those of the guest.
func (f *Files) all() (map[string]string, error) {
	all, err := read(f.Own)
	if err != nil {
		return nil, err
	}
	published, err := read(f.Published)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, published)
	for key, value := range f.Fixed {
		if _, set := all[key]; !set || strings.HasPrefix(key, reserved) {
			all[key] = value
		}
	}
	return all, nil
}

// Keys returns the names of all values that are listed.
func (f *Files) Keys() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pace.wait(1)
	all, err := f.all()
	return slices.DeleteFunc(slices.Collect(maps.Keys(all)), func(key string) bool { return strings.HasPrefix(key, reserved) }), err
}

// Get returns a value.
func (f *Files) Get(key string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pace.wait(1)
	all, err := f.all()
	if err != nil {
		return "", err
	}
	value, ok := all[key]
	if !ok {
		return "", ErrNotFound
	}
	return value, nil
}

// Put sets a value of the guest's own, unless the project sets it.
func (f *Files) Put(key, value string) error {
	if !utf8.ValidString(key) || !utf8.ValidString(value) { // the file would have another value
		return errors.New("keys and values are text in UTF-8: encode other data in base64 first")
	}
	return f.change(key, func(own map[string]string) error {
		own[key] = value
		size := 0
		for key, value := range own {
			size += len(key) + len(value)
		}
		if size > MaxOwn {
			return fmt.Errorf("the instance would have set %d bytes; it may set %d", size, MaxOwn)
		}
		return nil
	})
}

// Delete removes a value of the guest's own.
func (f *Files) Delete(key string) error {
	return f.change(key, func(own map[string]string) error {
		delete(own, key)
		return nil
	})
}

func (f *Files) change(key string, edit func(own map[string]string) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pace.wait(pacePut)
	published, err := read(f.Published)
	if err != nil {
		return err
	}
	_, fixed := f.Fixed[key]
	_, projects := published[key]
	switch {
	case key == "":
		return errors.New("a key needs a name")
	case strings.Contains(key, "\n"): // the list of keys has one in each line
		return errors.New("a key has one line")
	case fixed || strings.HasPrefix(key, reserved):
		return fmt.Errorf("the key %s cannot be changed", key)
	case projects:
		return fmt.Errorf("the project sets the key %s", key)
	}
	own, err := read(f.Own)
	if err == nil {
		err = edit(own)
	}
	if err == nil {
		err = statefile.Write(f.Own, own)
	}
	return err
}

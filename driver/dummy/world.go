package dummy

import (
	"strconv"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
)

// World contains the dummies of one node. It outlives the drivers that use it and, with a
// journal, the program.
type World struct {
	mu        sync.Mutex
	seed      uint64
	instances map[string]*instance
	images    map[string]bool
	journal   *journal // nil if in memory only
	changes   int
}

// NewWorld returns an empty world in memory. The seed determines every physical id and
// every random wait.
func NewWorld(seed uint64) *World {
	return &World{seed: seed, instances: map[string]*instance{}, images: map[string]bool{}}
}

// OpenWorld restores a world from the file at path, and keeps it there. Each change is
// written before the operation returns, so a killed program loses none.
func OpenWorld(path string, seed uint64) (*World, error) {
	w := NewWorld(seed)
	var err error
	if w.journal, err = openJournal(path, w.instances); err != nil {
		return nil, err
	}
	return w, nil
}

// Close closes the file. No driver may be in use any more.
func (w *World) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.journal == nil {
		return nil
	}
	return w.journal.close()
}

// Len returns the number of dummies, running or not.
func (w *World) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.instances)
}

// Changes returns how often a dummy was created or removed.
func (w *World) Changes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}

// instance is one dummy, in memory and in the journal.
type instance struct {
	ID             string               `json:"id"`
	Labels         driver.Labels        `json:"labels"`
	Origin         *mariposa.Provenance `json:"origin,omitempty"`
	Name           string               `json:"name,omitempty"`
	Project        string               `json:"project,omitempty"`
	Physical       string               `json:"physical_id"`
	Addresses      []string             `json:"addresses,omitempty"`
	Running        bool                 `json:"running,omitempty"`
	Started        time.Time            `json:"started,omitzero"`
	Finished       time.Time            `json:"finished,omitzero"`
	Exit           *int                 `json:"exit_code,omitempty"`
	Reason         string               `json:"reason,omitempty"`
	Attempt        uint64               `json:"attempt"` // operations so far; each has its own random wait
	ManualRestarts int                  `json:"bounces,omitempty"`
	Knobs          mariposa.Dummy       `json:"dummy"`
	Sick           bool                 `json:"sick,omitempty"` // its health checks fail
	Gone           bool                 `json:"gone,omitempty"` // in the journal: removed

	values []mariposa.Variable // in memory only: they may be secret
}

// observe returns the driver's view of a dummy; for nil, only the id.
func (in *instance) observe(id string) driver.Observed {
	if in == nil {
		return driver.Observed{ID: id}
	}
	o := driver.Observed{
		ID: in.ID, Labels: in.Labels, Origin: in.Origin, Name: in.Name, Project: in.Project, Running: in.Running, PhysicalID: in.Physical, Addresses: in.Addresses,
		Started: in.Started, ManualRestarts: in.ManualRestarts, Finished: in.Finished, ExitCode: in.Exit, Reason: in.Reason,
	}
	if in.Knobs.UpdateInPlaceProp != "" {
		o.Details = map[string]string{"update_in_place_prop": in.Knobs.UpdateInPlaceProp}
	}
	return o
}

func knobsOf(i driver.Instance) mariposa.Dummy {
	if i.Workload == nil || i.Workload.Dummy == nil {
		return mariposa.Dummy{}
	}
	return *i.Workload.Dummy
}

// make adds a dummy that is not running yet.
func (w *World) make(i driver.Instance) *instance {
	in := &instance{ID: i.ID, Name: i.Name, Project: i.Project, Labels: i.Labels, Origin: i.Origin, Physical: w.physicalID(i.ID, knobsOf(i).NameLen)}
	in.Addresses = w.addresses(i)
	w.instances[i.ID] = in
	w.changes++
	return in
}

// put stores a dummy in the journal.
func (w *World) put(in *instance) error {
	if w.journal == nil {
		return nil
	}
	return w.journal.append(in, w.instances)
}

// drop removes a dummy.
func (w *World) drop(id string) error {
	if w.journal != nil {
		if err := w.journal.append(&instance{ID: id, Gone: true}, w.instances); err != nil {
			return err
		}
	}
	delete(w.instances, id)
	w.changes++
	return nil
}

// wait returns how long the next operation on a dummy takes.
func (w *World) wait(in *instance) time.Duration { return w.waitFor(in, in.Knobs) }

func (w *World) waitFor(in *instance, k mariposa.Dummy) time.Duration {
	wait := k.Wait
	if k.MaxWait > 0 {
		r := w.random(in.ID, in.Attempt)
		wait += time.Duration(r.next() % uint64(k.MaxWait+1))
	}
	return wait
}

const letters = "abcdefghijklmnopqrstuvwxyz0123456789"

// physicalID returns a name of n characters, 32 if n is not positive.
func (w *World) physicalID(id string, n int) string {
	if n <= 0 {
		n = 32
	}
	var space [64]byte
	name := space[:0]
	r := w.random(id, 0)
	for bits := uint64(0); len(name) < n; bits /= uint64(len(letters)) {
		if len(name)%12 == 0 { // 36^12 still fits
			bits = r.next()
		}
		name = append(name, letters[bits%uint64(len(letters))])
	}
	return string(name)
}

// addresses returns loopback addresses on which nothing listens: connections to a dummy
// are refused at once.
func (w *World) addresses(i driver.Instance) []string {
	r := w.random(i.ID, 0)
	bits := r.next()
	var space [24]byte
	ip := append(space[:0], "127."...)
	for n, octet := range []uint64{1 + bits%254, bits >> 16 & 0xff, 1 + bits>>32%254} {
		if n > 0 {
			ip = append(ip, '.')
		}
		ip = strconv.AppendUint(ip, octet, 10)
	}
	if i.Workload == nil || len(i.Workload.Ports) == 0 {
		return []string{string(ip)}
	}
	list := make([]string, len(i.Workload.Ports))
	for n, p := range i.Workload.Ports {
		list[n] = string(strconv.AppendInt(append(ip, ':'), int64(p.Target), 10))
	}
	return list
}

// random returns a stream of numbers that depends only on the seed, an id and an
// attempt.
func (w *World) random(id string, attempt uint64) stream {
	h := uint64(14695981039346656037) // FNV-1a
	for k := range len(id) {
		h = (h ^ uint64(id[k])) * 1099511628211
	}
	return stream(h ^ w.seed*0x9e3779b97f4a7c15 ^ attempt*0xd1342543de82ef95)
}

// stream is splitmix64.
type stream uint64

func (s *stream) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

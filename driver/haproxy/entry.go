package haproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/balance"
	"mariposa/driver"
	"mariposa/driver/statefile"
)

// recordsDir is below Options.Dir.
const recordsDir = "records"

// entry is the driver's state of one balancer.
type entry struct {
	id   string
	dir  string     // with its configuration and its socket
	work sync.Mutex // held while its values are applied, or its members compared
	// outdated: HAProxy may not have read its configuration. The mutex above guards it.
	outdated bool

	mu       sync.Mutex // guards what follows
	record   record
	config   mariposa.Balancer
	cert     string
	statuses []mariposa.MemberStatus // as last seen
	seen     driver.Observed
	problem  string
	contacts map[string]*contact // whether its members can be reached, by address
	trying   bool                // that is being found out
	failures int                 // rounds in a row in which it did not answer
	silent   time.Time           // when that began
	quiet    bool                // an operation expects its end, which is not reported
	stop     context.CancelFunc
	wake     chan struct{}
}

// record is what the driver stores of a balancer. It has no secrets.
type record struct {
	ID      string            `json:"id"`
	Service string            `json:"service"` // its name, and that of the backend of an external balancer
	Members []mariposa.Member `json:"members,omitempty"`
	Ours    []balance.Key     `json:"ours,omitempty"` // every member that it was given and that may still be there
	// External is an external balancer, which has no process that could tell.
	External *external `json:"external,omitempty"`
}

// external is an instance without a process.
type external struct {
	Name           string               `json:"name,omitempty"`
	Project        string               `json:"project,omitempty"`
	Labels         driver.Labels        `json:"labels"`
	Origin         *mariposa.Provenance `json:"origin,omitempty"`
	Config         mariposa.Balancer    `json:"config"`
	ManualRestarts int                  `json:"bounces,omitempty"`
	Started        time.Time            `json:"started"`
	Finished       time.Time            `json:"finished,omitzero"` // zero: it is in use
}

func compareIDs(a, b string) int { return strings.Compare(a, b) }

// checkID rejects ids that cannot be names of servers and directories.
func checkID(id string) error {
	if id == "" || len(id) > 100 || id[0] == '.' || id[0] == '-' || strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}) {
		return fmt.Errorf("invalid id of an instance: %q", id)
	}
	return nil
}

// checkMembers refuses members that could be mistaken for commands or settings.
func checkMembers(all []mariposa.Member) error {
	if len(all) > mariposa.MaxMembers {
		return fmt.Errorf("a load balancer cannot have %d members: the limit is %d", len(all), mariposa.MaxMembers)
	}
	for i := range all {
		m := &all[i]
		err := errors.Join(checkID(m.Instance), checkID(m.Backend))
		if m.Address != "" {
			if _, bad := netip.ParseAddrPort(m.Address); bad != nil {
				err = errors.Join(err, fmt.Errorf("invalid address of a member: %q", m.Address))
			}
		}
		if m.Weight < 0 || m.Weight > 256 {
			err = errors.Join(err, fmt.Errorf("invalid weight of a member: %d", m.Weight))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) entry(id string) *entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.entries[id]
}

// makeEntry returns the entry of an instance that is started.
func (d *Driver) makeEntry(i driver.Instance) *entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[i.ID]
	if e == nil {
		e = &entry{id: i.ID, dir: d.runDir(i.ID), wake: make(chan struct{}, 1)}
		d.entries[i.ID] = e
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.record.ID, e.record.Service = i.ID, i.Service
	return e
}

// dropUnused forgets a balancer whose first start failed.
func (d *Driver) dropUnused(e *entry) {
	if _, err := d.find(d.gate.Context(), e.id); err == nil {
		return
	}
	_ = os.RemoveAll(e.dir) // the next start writes it anew
	_ = removeRecord(d.recordFile(e.id))
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, e.id)
}

// runDir is the directory of a balancer's configuration, certificate and socket: in memory if
// possible. Paths of sockets are short, so it must not be deep.
func (d *Driver) runDir(id string) string {
	if dir := d.memory.Find(); dir != "" {
		return filepath.Join(dir, id)
	}
	return filepath.Join(d.options.Dir, "run", id)
}

func (d *Driver) recordFile(id string) string {
	return filepath.Join(d.options.Dir, recordsDir, id+".json")
}

func (d *Driver) storeRecord(e *entry) error {
	e.mu.Lock()
	b, err := json.Marshal(e.record)
	e.mu.Unlock()
	if err == nil {
		err = statefile.Replace(d.recordFile(e.id), b, 0o600, -1, -1)
	}
	if err != nil {
		return fmt.Errorf("cannot store the members of a load balancer: %w", err)
	}
	return nil
}

func removeRecord(path string) error { return statefile.IgnoreMissing(os.Remove(path)) }

// loadRecords reads what an earlier driver stored.
func (d *Driver) loadRecords() error {
	dir := filepath.Join(d.options.Dir, recordsDir)
	list, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot list the load balancers: %w", err)
	}
	for _, f := range list {
		id, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok || checkID(id) != nil {
			continue
		}
		e := &entry{id: id, dir: d.runDir(id), wake: make(chan struct{}, 1)}
		if statefile.Read(filepath.Join(dir, f.Name()), &e.record) != nil || e.record.ID != id {
			e.record = record{ID: id} // the control plane sends its members again
		}
		if x := e.record.External; x != nil {
			e.config, e.seen = x.Config, x.observe(id, nil)
		}
		d.entries[id] = e
	}
	return d.addProcesses()
}

// addProcesses adds the balancers that run although their record is lost.
func (d *Driver) addProcesses() error {
	list, err := d.inner.List(d.gate.Context())
	if err != nil {
		return err
	}
	for _, o := range list {
		e := d.entries[o.ID]
		if e == nil {
			e = &entry{id: o.ID, dir: d.runDir(o.ID), wake: make(chan struct{}, 1), record: record{ID: o.ID}}
			d.entries[o.ID] = e
		}
		d.readConfig(e)
		d.note(e, o)
	}
	return nil
}

// readConfig reads the configuration that a running balancer was given last.
func (d *Driver) readConfig(e *entry) {
	values, err := d.inner.PublishedValues(d.gate.Context(), e.id)
	if err != nil {
		return // the control plane sends them again
	}
	if is, err := readValues(values); err == nil {
		e.config, e.cert = is.config, is.cert
	}
}

// adopt follows a balancer that an earlier driver started.
func (d *Driver) adopt(e *entry, o driver.Observed) {
	d.note(e, o)
	d.follow(e)
}

func (e *entry) isExternal() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.record.External != nil
}

func (e *entry) observed() driver.Observed {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

// setMembers sets the desired members.
func (e *entry) setMembers(all []mariposa.Member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.record.Members = slices.Clone(all)
	for i := range all {
		if k := balance.KeyOf(&all[i]); !slices.Contains(e.record.Ours, k) {
			e.record.Ours = append(e.record.Ours, k)
		}
	}
}

// expectEnd says whether the end of the process is part of an operation, and not reported.
func (e *entry) expectEnd(quiet bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quiet = quiet
}

func (e *entry) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// unfollow ends the loop of a balancer.
func (e *entry) unfollow() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
}

func sameStatuses(a, b []mariposa.MemberStatus) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(withoutCounters(a), withoutCounters(b)))
}

// withoutCounters returns members without what changes with every connection.
func withoutCounters(all []mariposa.MemberStatus) []mariposa.MemberStatus {
	out := slices.Clone(all)
	for i := range out {
		out[i].Connections, out[i].Responses = 0, nil
	}
	return out
}

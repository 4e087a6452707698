// Package drivertest checks every driver against the contract of package driver. A
// driver's own test passes Run a Harness that can create and break its instances;
// behavior of a single compute type is tested in its own package. This package knows no
// compute type.
package drivertest

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"testing"
	"time"

	"mariposa/driver"
)

// Harness lets the suite use one driver in its own world (a root directory, a namespace
// of a daemon) that nothing else uses.
type Harness struct {
	// Open opens a driver on the world. After the driver is closed, Open is called again
	// on the same world, as a restarted agent would.
	Open func(t *testing.T) driver.Driver

	// Runs returns an instance that runs until it is ended.
	Runs func(t *testing.T, id string) driver.Instance

	// End makes a running instance end by itself, bypassing the driver.
	End func(t *testing.T, d driver.Driver, o driver.Observed)

	// Broken returns an instance that cannot be started.
	Broken func(t *testing.T, id string) driver.Instance

	// Stubborn returns an instance that ignores a graceful stop. Nil if this compute type
	// has none.
	Stubborn func(t *testing.T, id string) driver.Instance

	// Ready waits until a stubborn instance that was just started ignores stops.
	Ready func(t *testing.T, o driver.Observed)

	// Reads returns the values that a running instance itself can read. If nil, instances
	// of this compute type cannot read, and the driver's answer is used instead.
	Reads func(t *testing.T, d driver.Driver, id string) map[string]string

	// LosesValues means that values are lost with the agent, and must be published again.
	LosesValues bool

	// Script returns the command that runs a shell script in an instance. Nil if this
	// compute type cannot run commands, and its driver is not a driver.Execer.
	Script func(script string) []string

	// Slow returns an instance whose start takes longer than the suite waits, and that
	// List shows meanwhile. Nil if this compute type has none.
	Slow func(t *testing.T, id string) driver.Instance

	// Readdress gives a running instance another address, bypassing the driver. Nil if
	// addresses of this compute type never change.
	Readdress func(t *testing.T, d driver.Driver, o driver.Observed)

	// Restart makes the engine restart a running instance. Nil if this compute type has
	// no engine that does so.
	Restart func(t *testing.T, d driver.Driver, o driver.Observed)

	// LoseEngine makes the engine unreachable until restore is called. Nil if this
	// compute type has no engine.
	LoseEngine func(t *testing.T, d driver.Driver) (restore func())

	// Writes returns an instance that writes these lines and keeps running. Nil if this
	// compute type has no logs, which the driver must then report.
	Writes func(t *testing.T, id string, lines ...string) driver.Instance
}

// Limit is how long the suite waits for anything before it fails.
const Limit = 20 * time.Second

// NewID returns an id that no other instance has.
func NewID() string { return "t-" + rand.Text() }

// Run runs the suite, or only the tests with these names; each test gets its own harness.
func Run(t *testing.T, harness func(t *testing.T) Harness, only ...string) {
	tests := []suiteTest{
		{"Start returns once the instance is running", testStart},
		{"a second start changes nothing", testStartTwice},
		{"a start after the end restarts the same instance", testStartAgain},
		{"a failed start returns the reason and leaves nothing running", testBroken},
		{"an update keeps the physical id", testUpdate},
		{"a stop keeps the instance for inspection", testStop},
		{"a second stop changes nothing", testStopTwice},
		{"a stop kills after its timeout", testStopByForce},
		{"a stop without force waits until its context ends", testStopWithoutForce},
		{"an unexpected end is reported exactly once", testEnd},
		{"a requested end is not reported", testAskedEnd},
		{"remove stops and removes a running instance", testRemove},
		{"a second remove is not an error", testRemoveTwice},
		{"unknown ids can be stopped and removed, and are not found otherwise", testUnknown},
		{"a restarted agent finds its instances", testReopen},
		{"ends are reported to a restarted agent", testEndAfterReopen},
		{"operations after Close fail", testClosed},
		{"logs can be read and followed", testLogs},
		{"an instance starts with its values, and receives new ones", testPublishValues},
		{"values survive a restart of the agent, and a new start has the newest", testPublishAgain},
		{"values are published while a stop waits", testPublishWhileStopping},
		{"values cannot be published to an unknown instance", testPublishToUnknown},
		{"a command runs like the instance", testExec},
		{"a command reads its input", testExecInput},
		{"a command can have a terminal", testExecTerminal},
		{"a command ends with its session and with its instance", testExecEnds},
		{"a command that cannot run is refused", testExecRefused},
		{"a command runs while a stop waits", testExecStopping},
		{"volumes are created once, found again, and removed with their content", testVolumes},
		{"networks are created once, found again, and removed with their content", testNetworks},
		{"manual restarts are counted by successful starts", testManualRestarts},
		{"a new address is reported", testReaddress},
		{"a restart by the engine is reported", testEngineRestart},
		{"a lost engine is reported, and changes meanwhile are found when it is back", testEngineLost},
		{"an operation ends with its context, and can be repeated", testCancel},
		{"an operation ends with the driver", testCloseInMidCall},
		{"capabilities match the behavior", testCapabilities},
		{"usage of a running instance is measured", testUsage},
		{"images are fetched once, with progress", testImages},
		{"operations on many instances run concurrently", testMany},
	}
	for _, name := range only {
		if !slices.ContainsFunc(tests, func(test suiteTest) bool { return test.name == name }) {
			t.Errorf("the suite has no test %q", name)
		}
	}
	for _, test := range tests {
		if len(only) > 0 && !slices.Contains(only, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, newFixture(t, harness(t)))
		})
	}
}

// suiteTest is one test of the suite.
type suiteTest struct {
	name string
	run  func(t *testing.T, b *fixture)
}

// fixture is one driver under test with everything it has reported.
type fixture struct {
	Harness
	driver driver.Driver
	ids    []string

	mu          sync.Mutex
	ended       map[string][]driver.Observed
	changed     map[string][]driver.Observed // changes while they ran
	engine      []driver.Event
	changesSeen chan struct{} // a token for each event
}

func newFixture(t *testing.T, h Harness) *fixture {
	b := &fixture{Harness: h, ended: map[string][]driver.Observed{}, changed: map[string][]driver.Observed{}, changesSeen: make(chan struct{}, 10_000)}
	b.open(t)
	t.Cleanup(func() {
		for _, id := range b.ids {
			b.remove(t, id)
		}
		if err := b.driver.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func (b *fixture) open(t *testing.T) {
	t.Helper()
	b.driver = b.Open(t)
	b.driver.Watch(func(e driver.Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch o := e.Instance; {
		case e.Kind != driver.InstanceChanged:
			b.engine = append(b.engine, e)
		case o.Running:
			b.changed[o.ID] = append(b.changed[o.ID], o)
		default:
			b.ended[o.ID] = append(b.ended[o.ID], o)
		}
		b.changesSeen <- struct{}{}
	})
}

// reopen closes and opens the driver, as a restart of the agent does.
func (b *fixture) reopen(t *testing.T) {
	t.Helper()
	if err := b.driver.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	b.open(t)
}

// id returns a new id whose instance is removed when the test ends.
func (b *fixture) id() string {
	id := NewID()
	b.ids = append(b.ids, id)
	return id
}

// within returns a context that bounds an operation. It works in cleanups too, when the
// test's own context has ended.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Limit)
	t.Cleanup(cancel)
	return ctx
}

func (b *fixture) start(t *testing.T, i driver.Instance) (driver.Observed, error) {
	t.Helper()
	return b.driver.Start(within(t), i)
}

func (b *fixture) mustStart(t *testing.T, i driver.Instance) driver.Observed {
	t.Helper()
	o, err := b.start(t, i)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	if !o.Running || o.ID != i.ID || o.PhysicalID == "" || o.Labels != i.Labels {
		t.Fatalf("Start reported %+v", o)
	}
	return o
}

// startStubborn starts an instance that ignores a graceful stop or, if the kind has
// none, one that does not.
func (b *fixture) startStubborn(t *testing.T) driver.Observed {
	t.Helper()
	if b.Stubborn == nil {
		return b.mustStart(t, b.Runs(t, b.id()))
	}
	o := b.mustStart(t, b.Stubborn(t, b.id()))
	b.Ready(t, o)
	return o
}

func (b *fixture) stop(t *testing.T, id string, timeout time.Duration) driver.Observed {
	t.Helper()
	o, err := b.driver.Stop(within(t), id, timeout)
	if err != nil {
		t.Fatalf("Stop: %v", err)
	}
	return o
}

func (b *fixture) remove(t *testing.T, id string) {
	t.Helper()
	if err := b.driver.Remove(within(t), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

// find looks an instance up in the list; false if it is not there.
func (b *fixture) find(t *testing.T, id string) (driver.Observed, bool) {
	t.Helper()
	list, err := b.driver.List(t.Context())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	var found []driver.Observed
	for _, o := range list {
		if o.ID == id {
			found = append(found, o)
		}
	}
	if len(found) > 1 {
		t.Fatalf("List has %s %d times", id, len(found))
	}
	if len(found) == 0 {
		return driver.Observed{}, false
	}
	return found[0], true
}

func (b *fixture) mustFind(t *testing.T, id string) driver.Observed {
	t.Helper()
	o, ok := b.find(t, id)
	if !ok {
		t.Fatalf("%s is not in the list", id)
	}
	return o
}

// awaitEnd waits until an end of the instance is reported.
func (b *fixture) awaitEnd(t *testing.T, id string) driver.Observed {
	t.Helper()
	return awaitNewest(t, b, "the end of "+id, func() []driver.Observed { return b.ended[id] })
}

// awaitNewest waits until something is reported, and returns the last of it.
func awaitNewest[T any](t *testing.T, b *fixture, what string, reported func() []T) T {
	t.Helper()
	deadline := time.After(Limit)
	for {
		b.mu.Lock()
		all := reported()
		b.mu.Unlock()
		if len(all) > 0 {
			return all[len(all)-1]
		}
		select {
		case <-b.changesSeen:
		case <-deadline:
			t.Fatalf("%s was never reported", what)
		}
	}
}

func (b *fixture) endsReported(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ended[id])
}

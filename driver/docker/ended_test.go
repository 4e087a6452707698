package docker_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mariposa/driver/drivertest"
)

// How an instance ended is said in words.
func TestTheEndOfAContainerIsExplained(t *testing.T) {
	t.Parallel()
	d := open(t)
	for name, c := range map[string]struct {
		command string
		memory  int64
		code    int
		reason  string
	}{
		"code":   {"exit 3", 0, 3, "exited with code 3"},
		"zero":   {"exit 0", 0, 0, "exited with code 0"},
		"memory": {"sleep 2; " + eatMemory, 16 << 20, 137, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := instance(drivertest.NewID(), "sh", "-c", c.command)
			i.Workload.Memory = c.memory
			if o := d.start(i); !o.Running {
				t.Errorf("Start returned %+v", o)
			}
			if c.memory > 0 { // the engine may lose the event that says it for certain
				if c.reason = d.end(i.ID).Reason; !strings.Contains(c.reason, "ran out of memory") {
					t.Errorf("its end is explained by %q", c.reason)
				}
			}
			if o := d.end(i.ID); o.Reason != c.reason || o.ExitCode == nil || *o.ExitCode != c.code {
				t.Errorf("it ended: %+v", o)
			}
		})
	}
}

// The end of a container is reported while the engine still cleans up, and says nothing about it.
func TestAnEndIsReportedBeforeTheEngineAnswers(t *testing.T) {
	t.Parallel()
	i := instance(drivertest.NewID(), "sh", "-c", "sleep 2; exit 3")
	var isSilent atomic.Bool
	d := openOn(t, silentHost(t, "", func(r *http.Request) bool {
		return isSilent.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, i.ID)
	}), t.TempDir(), drivertest.NewID())
	before := d.start(i)
	isSilent.Store(true)
	defer isSilent.Store(false) // to remove it
	o := d.end(i.ID)
	if o.Reason != "exited with code 3" || o.ExitCode == nil || *o.ExitCode != 3 || o.PhysicalID != before.PhysicalID || !o.Finished.After(o.Started) || len(o.Addresses) > 0 || o.Details["pid"] != "" {
		t.Errorf("it ended: %+v", o)
	}
}

// A container is started when the engine has cleaned up after the one that has just ended, or when
// that takes too long. It is created meanwhile.
func TestAStartWaitsForTheCleanupOfTheEngine(t *testing.T) {
	t.Parallel()
	i, next := instance(drivertest.NewID(), "sh", "-c", "sleep 2; exit 3"), instance(drivertest.NewID(), "sleep", "1000")
	var physical atomic.Value
	var asked, answered, started atomic.Int64
	now := func(at *atomic.Int64) { at.CompareAndSwap(0, time.Now().UnixNano()) }
	d := openOn(t, silentHost(t, "", func(r *http.Request) bool {
		id, _ := physical.Load().(string)
		switch {
		case id != "" && r.Method == http.MethodGet && strings.Contains(r.URL.Path, id):
			now(&asked)
			time.Sleep(50 * time.Millisecond) // it still cleans up
			now(&answered)
		case strings.HasSuffix(r.URL.Path, "/start") && strings.Contains(r.URL.Path, next.ID):
			now(&started)
		}
		return false
	}), t.TempDir(), drivertest.NewID())
	physical.Store(d.start(i).PhysicalID)
	d.end(i.ID)
	d.start(next)
	waited := time.Duration(started.Load() - asked.Load())
	if isDone := answered.Load() > 0 && answered.Load() < started.Load(); asked.Load() == 0 || started.Load() == 0 || !isDone && waited < 500*time.Millisecond {
		t.Errorf("the engine was asked at %d, answered at %d, and had to start at %d", asked.Load(), answered.Load(), started.Load())
	}
}

// A stop goes on if the engine gives up waiting for the end, as Podman does on a busy machine.
func TestAStopOutlastsTheEngine(t *testing.T) {
	t.Parallel()
	var waits atomic.Int64
	host := changed(t, func(*http.Request) bool { return false }, func(r *http.Response) error {
		if strings.HasSuffix(r.Request.URL.Path, "/wait") && waits.Add(1) == 1 {
			_ = r.Body.Close() // another one takes its place
			r.StatusCode, r.Body, r.ContentLength = http.StatusInternalServerError, io.NopCloser(strings.NewReader(`{"message":"timed out waiting for file /exits/1: internal libpod error"}`)), -1
			r.Header.Del("Content-Length")
		}
		return nil
	}, nil)
	d := openOn(t, host, t.TempDir(), drivertest.NewID())
	i := instance(drivertest.NewID())
	d.start(i)
	if o, err := d.Stop(t.Context(), i.ID, time.Minute); err != nil || o.Running || waits.Load() < 2 {
		t.Errorf("Stop: %+v, %v after %d waits", o, err, waits.Load())
	}
}

package docker_test

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"

	"mariposa/driver"
	"mariposa/driver/drivertest"
)

// eatMemory is a script that needs more and more memory.
const eatMemory = "x=x; while :; do x=$x$x$x$x; done"

// silentHost is an engine that does not say which containers ran out of memory, and that may run on
// another kernel. It does not answer requests that hangs returns true for.
func silentHost(t *testing.T, kernel string, hangs func(*http.Request) bool) string {
	t.Helper()
	return changed(t, func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/events") {
			q := r.URL.Query()
			q.Set("filters", strings.NewReplacer(`"oom":true,`, "", `,"oom":true`, "").Replace(q.Get("filters")))
			r.URL.RawQuery = q.Encode()
		}
		if hangs(r) {
			<-r.Context().Done()
			return true
		}
		return false
	}, func(r *http.Response) error {
		path := r.Request.URL.Path
		if !strings.HasSuffix(path, "/json") && !strings.HasSuffix(path, "/version") {
			return nil
		}
		b, err := io.ReadAll(r.Body)
		b = bytes.ReplaceAll(b, []byte(`"OOMKilled":true`), []byte(`"OOMKilled":false`))
		if kernel != "" {
			b = regexp.MustCompile(`"KernelVersion":"[^"]*"`).ReplaceAll(b, []byte(`"KernelVersion":"`+kernel+`"`))
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		r.Header.Set("Content-Length", strconv.Itoa(len(b)))
		return err
	}, nil)
}

// An engine may not say that a container ran out of memory. The kernel knows that it has killed
// something: then the reason is likely. If that cannot be known, the end is reported all the same.
func TestAnEndForMemoryThatTheEngineDoesNotKnow(t *testing.T) {
	t.Parallel()
	const likely = "killed by signal 9 (SIGKILL), probably because it ran out of memory"
	limited := func(command ...string) driver.Instance {
		i := instance(drivertest.NewID(), command...)
		i.Workload.Memory = 16 << 20
		return i
	}
	never := func(*http.Request) bool { return false }
	t.Run("its event is missing", func(t *testing.T) {
		t.Parallel()
		d := openOn(t, silentHost(t, "", never), t.TempDir(), drivertest.NewID())
		i := limited("sh", "-c", "sleep 2; "+eatMemory)
		d.start(i)
		if o := d.end(i.ID); o.Reason != likely || o.ExitCode == nil || *o.ExitCode != 137 {
			t.Errorf("it ended: %+v", o)
		}
	})
	t.Run("the engine was away", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t, strings.TrimPrefix(silentHost(t, "", never), "unix://"))
		d := openOn(t, "unix://"+p.path, t.TempDir(), drivertest.NewID())
		i := limited("sh", "-c", "sleep 2; "+eatMemory)
		physical := d.start(i).PhysicalID
		p.cut()
		await(t, "it has ended", func() bool { return !inspect(t, physical).State.Running })
		p.mend(t)
		await(t, "the return is reported", func() bool { return d.saw(driver.EngineBack) })
		if o := d.listed(i.ID); o == nil || o.Reason != likely {
			t.Errorf("it is listed as %+v", o)
		}
	})
	t.Run("the kernel is another one", func(t *testing.T) {
		t.Parallel()
		var started atomic.Bool
		host := silentHost(t, "another", func(r *http.Request) bool {
			return started.Load() && strings.HasSuffix(r.URL.Path, "/containers/json") // a list would show the end too
		})
		d := openOn(t, host, t.TempDir(), drivertest.NewID())
		i := limited()
		physical := d.start(i).PhysicalID
		started.Store(true)
		defer started.Store(false) // to remove it
		if _, err := engine.API.ContainerKill(t.Context(), physical, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			t.Fatal(err)
		}
		if o := d.end(i.ID); o.Reason != "killed by signal 9 (SIGKILL)" {
			t.Errorf("it ended: %+v", o)
		}
	})
}

package docker_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"mariposa/driver/drivertest"
)

// eatMemory is a script that needs more and more memory.
const eatMemory = "x=x; while :; do x=$x$x$x$x; done"

// An engine may not say that a container ran out of memory. The kernel knows that it has killed
// something: then the reason is likely. If it has killed nothing, the reason is another one, and is
// reported without a wait.
func TestAnEndForMemoryThatTheEngineDoesNotKnow(t *testing.T) {
	t.Parallel()
	host := changed(t, func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/events") {
			q := r.URL.Query()
			q.Set("filters", strings.NewReplacer(`"oom":true,`, "", `,"oom":true`, "").Replace(q.Get("filters")))
			r.URL.RawQuery = q.Encode()
		}
		return false
	}, func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, "/json") {
			return nil
		}
		b, err := io.ReadAll(r.Body)
		b = bytes.ReplaceAll(b, []byte(`"OOMKilled":true`), []byte(`"OOMKilled":false`))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		r.Header.Set("Content-Length", strconv.Itoa(len(b)))
		return err
	}, nil)
	d := openOn(t, host, t.TempDir(), drivertest.NewID())
	i := instance(drivertest.NewID(), "sh", "-c", "sleep 2; "+eatMemory)
	i.Workload.Memory = 16 << 20
	d.start(i)
	if o := d.end(i.ID); o.Reason != "killed by signal 9 (SIGKILL), probably because it ran out of memory" || o.ExitCode == nil || *o.ExitCode != 137 {
		t.Errorf("it ended: %+v", o)
	}
}

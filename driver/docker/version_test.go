package docker_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mariposa/driver"
	"mariposa/driver/docker"
	"mariposa/driver/drivertest"
)

// versions are the API versions that an engine has, as minor numbers.
type versions struct{ least, most int }

// versioned is the engine of the tests as if it had other API versions.
func versioned(t *testing.T) (*proxy, *atomic.Pointer[versions]) {
	t.Helper()
	has := &atomic.Pointer[versions]{}
	has.Store(&versions{24, 41})
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", engine.Socket())
	}}
	to.Transport, to.FlushInterval = transport, -1
	to.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	to.ModifyResponse = func(r *http.Response) error {
		r.Header.Set("Api-Version", "1."+strconv.Itoa(has.Load().most))
		return nil
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if version, rest, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1."), "/"); found && strings.HasPrefix(r.URL.Path, "/v1.") {
			is, _ := strconv.Atoi(version)
			if is < has.Load().least {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_ = json.NewEncoder(w).Encode(map[string]string{"message": "client version 1." + version + " is too old. Minimum supported API version is 1." +
					strconv.Itoa(has.Load().least) + ", please upgrade your client to a newer version"})
				return
			}
			r.URL.Path = "/v1.41/" + rest
		}
		to.ServeHTTP(w, r)
	})}
	dir, err := os.MkdirTemp("", "mp-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		_ = server.Serve(l) // ends with Close
		close(served)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
		transport.CloseIdleConnections()
	})
	return newProxy(t, socket), has
}

// An engine that is too old or too new is refused with a sentence.
func TestAnEngineWithOtherVersionsIsExplained(t *testing.T) {
	t.Parallel()
	proxy, has := versioned(t)
	for _, c := range []struct {
		versions
		want, api string
	}{
		{versions{24, 39}, "is too old: it has version 1.39 of Docker's API, and Mariposa needs 1.40 or newer", ""},
		{versions{24, 40}, "", "1.40"},
		{versions{44, 53}, "", "1.53"},
		{versions{50, 99}, "", "1.56"},
		{versions{60, 99}, "is too new for this version of Mariposa: it needs version 1.60 of Docker's API, and Mariposa has 1.56: update Mariposa", ""},
	} {
		has.Store(&c.versions)
		d, err := docker.New(docker.Options{Host: "unix://" + proxy.path, Dir: t.TempDir(), Scope: "node"})
		if err != nil {
			t.Fatal(err)
		}
		if why := d.Unavailable(); c.want == "" && why != "" || !strings.Contains(why, c.want) || d.Details()["api"] != c.api {
			t.Errorf("%+v: %q, %v", c.versions, why, d.Details())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An engine is updated under a running agent, and no longer has the API version that they had
// agreed on.
func TestAnEngineIsUpdatedWhileTheAgentRuns(t *testing.T) {
	t.Parallel()
	proxy, has := versioned(t)
	d := openOn(t, "unix://"+proxy.path, t.TempDir(), drivertest.NewID())
	if api := d.Driver.(driver.Conditional).Details()["api"]; api != "1.41" {
		t.Fatalf("they agreed on %s", api)
	}
	i := instance(drivertest.NewID())
	before := d.start(i)
	for _, next := range []versions{{44, 53}, {24, 41}} { // and back
		proxy.cut()
		has.Store(&next)
		proxy.mend(t)
		await(t, "they agree again", func() bool { return d.Driver.(driver.Conditional).Details()["api"] == "1."+strconv.Itoa(next.most) })
		if o := d.start(i); o.PhysicalID != before.PhysicalID {
			t.Errorf("it is %+v, was %+v", o, before)
		}
	}
}

package docker_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"mariposa/driver"
	"mariposa/driver/docker/enginetest"
	"mariposa/driver/drivertest"
)

// refuser is an engine that refuses some requests. It returns the address of it.
func refuser(t *testing.T, refuses func(*http.Request) bool) string {
	t.Helper()
	return changed(t, refuses, nil, nil)
}

// changed is an engine that refuses some requests, and whose answers are changed. It listens as any
// other, unless listen is given.
func changed(t *testing.T, refuses func(*http.Request) bool, change func(*http.Response) error, listen func(path string) net.Listener) string {
	t.Helper()
	return changedOn(t, engine, refuses, change, listen)
}

// changedOn is changed for another engine than that of the tests.
func changedOn(t *testing.T, on *enginetest.Engine, refuses func(*http.Request) bool, change func(*http.Response) error, listen func(path string) net.Listener) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	if listen == nil {
		listen = func(path string) net.Listener {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
	}
	l := listen(path)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", on.Socket())
	}}
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	pass.Transport, pass.FlushInterval, pass.ModifyResponse = transport, -1, change
	pass.ErrorLog = log.New(io.Discard, "", 0) // engines are killed

	pass.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // as if it were not there
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuses(r) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"message":"error while removing network: it has active endpoints"}`)
			return
		}
		pass.ServeHTTP(w, r)
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l) // ends with Close
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-served
		transport.CloseIdleConnections()
		_ = os.RemoveAll(dir)
	})
	return "unix://" + path
}

// An engine that refuses to remove a network is not lost, and the network is removed later.
func TestANetworkThatTheEngineRefusesToRemove(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	refuse.Store(true)
	host := refuser(t, func(r *http.Request) bool {
		return refuse.Load() && r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/networks/")
	})
	dir, scope := t.TempDir(), drivertest.NewID()
	d := openOn(t, host, dir, scope)
	i := instance(drivertest.NewID())
	d.start(i)
	if err := d.Remove(t.Context(), i.ID); err != nil {
		t.Errorf("the last instance of a project is not removed: %v", err)
	}
	left := func() int {
		t.Helper()
		list, err := engine.API.NetworkList(t.Context(), client.NetworkListOptions{Filters: make(client.Filters).Add("label", "mariposa.node="+scope)})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	if left() != 1 {
		t.Fatal("the network was not refused")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openOn(t, host, dir, scope)
	if why := d.Driver.(driver.Conditional).Unavailable(); why != "" {
		t.Fatalf("the engine counts as lost: %s", why)
	}
	again := instance(drivertest.NewID())
	d.start(again)
	if err := d.Remove(t.Context(), again.ID); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	refuse.Store(false)
	openOn(t, host, dir, scope)
	if left() != 0 {
		t.Error("the network is left")
	}
}

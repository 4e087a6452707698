package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"mariposa"
)

// proxy is the server that commands talk to. It records their requests and passes them on
// to a real server. A test can set a handler for a route, to do something when a request
// arrives, or to change what the real server answers.
type proxy struct {
	url  string
	real *realServer

	mu     sync.Mutex
	routes map[string]http.HandlerFunc // by "METHOD /path"
	asked  []string                    // "METHOD /path?query body"
	tokens map[string]bool
}

// proxy starts a proxy, and stops it after the test.
func (s *realServer) proxy(t *testing.T) *proxy {
	t.Helper()
	f := &proxy{real: s, routes: map[string]http.HandlerFunc{}, tokens: map[string]bool{}}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

func (f *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	f.tokens[r.Header.Get("Authorization")] = true
	h := f.routes[r.Method+" "+r.URL.Path]
	f.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	if h == nil {
		h = f.real.ServeHTTP
	}
	h(w, r)
}

// on sets the handler of a route.
func (f *proxy) on(route string, h http.HandlerFunc) *proxy {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes[route] = h
	return f
}

// feed sets the handler of streams of events.
func (f *proxy) feed(stream http.HandlerFunc) *proxy {
	return f.on("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			stream(w, r)
			return
		}
		f.real.ServeHTTP(w, r)
	})
}

// requests returns the requests so far, a line each.
func (f *proxy) requests() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return aSince.ReplaceAllString(strings.Join(f.asked, "\n"), "since=7$1")
}

// refuse answers with an error that a test cannot make a real server return: one that
// needs a feed of days, thousands of requests, or luck.
func refuse(status int, code mariposa.Code, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(mariposa.Error{Code: code, Message: message})
	}
}

func feedTooOld(w http.ResponseWriter, r *http.Request) {
	refuse(http.StatusGone, mariposa.TooOld, "the feed begins at 90")(w, r)
}

func throttled(w http.ResponseWriter, r *http.Request) {
	refuse(http.StatusTooManyRequests, mariposa.Throttled, "slow down")(w, r)
}

// rewriting changes each line that a real server writes.
type rewriting struct {
	http.ResponseWriter
	change func(line []byte) []byte
}

func (w rewriting) Write(p []byte) (int, error) {
	_, err := w.ResponseWriter.Write(w.change(p))
	return len(p), err
}

func (w rewriting) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

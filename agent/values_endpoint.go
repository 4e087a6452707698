package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/listener"
)

const (
	mdataPath = "/v1/mdata"
	// mdataNumber is the header with the number of the values in a response.
	mdataNumber = "Mariposa-Mdata-Number"
	// maxWait is how long a request may wait for newer values.
	maxWait = 60 * time.Second
	// requestTimeout is how long a request may take to arrive.
	requestTimeout = 10 * time.Second
	// maxConnections is how many connections all instances together may have. Those
	// without a valid token are closed first.
	maxConnections = 4096
	// maxWaiting is how many requests of one instance may wait for changes.
	maxWaiting = 32
	// listenRetry is the pause before a port in use is tried again.
	listenRetry = time.Second
)

// serve answers requests of instances until the context ends. It retries a port that is
// in use until it is free: running instances know no other.
func (b *valuesServer) serve(ctx context.Context, address string) {
	for warned := false; ctx.Err() == nil; {
		tcp, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			if warned {
				slog.Info("instances can read their live values over HTTP again", "address", address)
			}
			warned = false
			err = b.serveOn(ctx, tcp)
		}
		if ctx.Err() != nil {
			return
		}
		if !warned {
			slog.Warn("instances cannot read their live values over HTTP until this port is free; retrying. Their value files are kept up to date", "address", address, "err", err)
			warned = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
}

func (b *valuesServer) serveOn(ctx context.Context, tcp net.Listener) error {
	server := &http.Server{
		Handler:           b.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      maxWait + 30*time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       listener.Context,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // nothing is lost: clients retry
	return server.Serve(listener.New(tcp, listener.Options{Max: maxConnections, Share: 4}))
}

func (b *valuesServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+mdataPath, func(w http.ResponseWriter, r *http.Request) {
		if seen, ok := b.findForRequest(w, r); ok {
			object := make(map[string]string, len(seen.values))
			for _, v := range seen.values {
				object[v.Name] = v.Value
			}
			writeJSON(w, http.StatusOK, object)
		}
	})
	mux.HandleFunc("GET "+mdataPath+"/{key...}", func(w http.ResponseWriter, r *http.Request) {
		seen, ok := b.findForRequest(w, r)
		if !ok {
			return
		}
		key := r.PathValue("key")
		for _, v := range seen.values {
			if v.Name == key {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				_, _ = io.WriteString(w, v.Value) // the client may be gone
				return
			}
		}
		writeError(w, http.StatusNotFound, mariposa.ResourceNotFound, "this instance has no value named "+strconv.Quote(key))
	})
	return mux
}

// findForRequest returns the values that a request may read, after waiting for newer
// ones if it asks for that. It writes the error response itself.
func (b *valuesServer) findForRequest(w http.ResponseWriter, r *http.Request) (publishedValues, bool) {
	w.Header().Set("Cache-Control", "no-store")
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	var seen publishedValues
	if ok {
		seen, ok = b.find(token)
	}
	if ok {
		wait, after, err := waitParameters(r)
		if err != nil {
			writeError(w, http.StatusBadRequest, mariposa.InvalidArgument, err.Error())
			return publishedValues{}, false
		}
		if wait > 0 {
			release, held := listener.Hold(r.Context())
			if held && !b.beginWait(token) {
				release()
				held = false
			}
			if !held {
				w.Header().Set("Retry-After", "1")
				writeError(w, http.StatusTooManyRequests, mariposa.Throttled, "too many requests are waiting for changes: read the current values without wait, or wait with fewer requests")
				return publishedValues{}, false
			}
			defer release()
			defer b.endWait(token)
			seen, ok = b.await(r.Context(), token, seen, wait, after)
		}
	}
	if !ok {
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeError(w, http.StatusUnauthorized, mariposa.Unauthorized, "missing or invalid token: send the token of an instance on this node as Authorization: Bearer $MARIPOSA_MDATA_TOKEN")
		return publishedValues{}, false
	}
	w.Header().Set(mdataNumber, strconv.FormatInt(seen.number, 10))
	return seen, true
}

// beginWait counts a request that waits for changes; false if its instance has too many.
func (b *valuesServer) beginWait(token string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting[token] >= maxWaiting {
		return false
	}
	b.waiting[token]++
	return true
}

func (b *valuesServer) endWait(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting[token]--; b.waiting[token] == 0 {
		delete(b.waiting, token)
	}
}

// await waits until the values are superseded or, if the client names the number it has
// seen, until the number differs.
func (b *valuesServer) await(ctx context.Context, token string, seen publishedValues, wait time.Duration, after *int64) (_ publishedValues, ok bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for after == nil || seen.number == *after {
		select {
		case <-seen.superseded:
			if seen, ok = b.find(token); !ok || after == nil {
				return seen, ok
			}
		case <-timer.C:
			return seen, true
		case <-ctx.Done():
			return seen, true
		}
	}
	return seen, true
}

// waitParameters reads how long a request waits for newer values, and the number it has
// seen.
func waitParameters(r *http.Request) (wait time.Duration, after *int64, err error) {
	if s := r.FormValue("wait"); s != "" {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil || !(n >= 0) { // also rejects NaN
			return 0, nil, errors.New("invalid wait: use a number of seconds")
		}
		wait = time.Duration(min(n, maxWait.Seconds()) * float64(time.Second))
	}
	if s := r.FormValue("after"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, nil, errors.New("invalid after: use the number in the " + mdataNumber + " header of an earlier response")
		}
		after = &n
	}
	return wait, after, nil
}

func writeError(w http.ResponseWriter, status int, code mariposa.Code, message string) {
	writeJSON(w, status, mariposa.Error{Code: code, Message: message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

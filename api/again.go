package api

import (
	"bytes"
	lists "container/list"
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"sync"
	"time"

	"mariposa"
)

// again remembers the answers to changes that came with an Idempotency-Key, so
// that who lost an answer can ask again without doing it twice. It remembers for
// this process alone: after a restart, or at another replica, a repeated change
// is a new one. Only successes are kept; what failed changed nothing.
type again struct {
	mu    sync.Mutex
	byKey map[string]*lists.Element
	order lists.List // of *remembered, oldest first
}

const (
	keepAnswers = 24 * time.Hour
	maxAnswers  = 10_000
	maxKey      = 255
	maxKept     = 64 << 10 // of one answer; those to changes are small
)

type remembered struct {
	key    string
	seal   [sha256.Size]byte // of the request
	since  time.Time
	done   chan struct{} // closed when the request has ended
	status int           // 0: it failed, and is to be tried anew
	kind   string
	body   []byte
}

// once answers a change that carries a key: the first time it is done, later the
// first answer is given again.
func (s *server) once(key string, rec *recorder, r *http.Request, do func(*http.Request)) {
	if len(key) > maxKey {
		newError(mariposa.InvalidArgument, "the Idempotency-Key is too long", nil).write(rec)
		return
	}
	_ = http.NewResponseController(rec).SetReadDeadline(time.Now().Add(patience)) // where it cannot be set, the listener's own limits hold
	body, err := io.ReadAll(io.LimitReader(r.Body, maxWrapped+1))
	if err != nil {
		newError(mariposa.InvalidArgument, "the body of the request did not arrive", nil).write(rec)
		return
	}
	seal := fingerprint(r, body)
	r.Body = &rejoined{Reader: io.MultiReader(bytes.NewReader(body), r.Body), Closer: r.Body}
	mine, first := s.again.begin(actor(r.Context())+" "+key, seal)
	switch {
	case !first && mine.seal != seal:
		newError(mariposa.Conflict, "this Idempotency-Key was used for another request: choose a new one for each change", nil).write(rec)
	case !first && mine.wait(r.Context()):
		rec.Header().Set("Idempotency-Replayed", "true")
		rec.Header().Set("Content-Type", mine.kind)
		rec.WriteHeader(mine.status)
		_, _ = rec.Write(mine.body) // whoever asked may be gone
	case !first:
		do(r) // the first one failed: this is the first that counts for its caller
	default:
		defer func() { s.again.end(mine, rec) }()
		rec.kept = &bytes.Buffer{}
		do(r)
	}
}

type rejoined struct {
	io.Reader
	io.Closer
}

func fingerprint(r *http.Request, body []byte) [sha256.Size]byte {
	h := sha256.New()
	for _, part := range []string{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type")} {
		io.WriteString(h, part+"\x00") //nolint:errcheck // a hash takes everything
	}
	h.Write(body)
	return [sha256.Size]byte(h.Sum(nil))
}

// begin finds the request with a key, or makes this one the first.
func (a *again) begin(key string, seal [sha256.Size]byte) (*remembered, bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for e := a.order.Front(); e != nil && (a.order.Len() >= maxAnswers || now.Sub(e.Value.(*remembered).since) > keepAnswers); e = a.order.Front() {
		a.forget(e)
	}
	if e := a.byKey[key]; e != nil {
		return e.Value.(*remembered), false
	}
	m := &remembered{key: key, seal: seal, since: now, done: make(chan struct{})}
	if a.byKey == nil {
		a.byKey = map[string]*lists.Element{}
	}
	a.byKey[key] = a.order.PushBack(m)
	return m, true
}

func (a *again) forget(e *lists.Element) {
	delete(a.byKey, e.Value.(*remembered).key)
	a.order.Remove(e)
}

// end keeps the answer, or forgets the request if it failed.
func (a *again) end(m *remembered, rec *recorder) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if rec.status >= 200 && rec.status < 300 && rec.kept.Len() <= maxKept {
		m.status, m.kind, m.body = rec.status, rec.Header().Get("Content-Type"), rec.kept.Bytes()
	} else if e := a.byKey[m.key]; e != nil && e.Value == m {
		a.forget(e)
	}
	close(m.done)
}

// wait reports whether there is an answer to give again.
func (m *remembered) wait(ctx context.Context) bool {
	select {
	case <-m.done:
		return m.status != 0
	case <-ctx.Done():
		return false
	}
}

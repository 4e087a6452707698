package api_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// conflictingStore changes a project just before each commit that requires it to be
// unchanged.
type conflictingStore struct {
	store.Store
	spoil atomic.Bool
	times int
}

func (s *conflictingStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	for _, u := range units {
		for _, q := range u.Require {
			if q.Kind == mariposa.KindProject && s.spoil.Load() && s.times > 0 {
				s.times--
				r, err := s.Get(ctx, q.Kind, q.ID)
				if err != nil {
					return store.FailAll(units, err)
				}
				spec := *r.Spec.(*mariposa.ProjectSpec)
				s.Store.Commit(ctx, store.Unit{Writes: []store.Write{{Kind: q.Kind, ID: q.ID, Spec: &spec}}})
			}
		}
	}
	return s.Store.Commit(ctx, units...)
}

// failingStore is a store that returns errors.
type failingStore struct {
	store.Store
	err   atomic.Pointer[error]
	panic atomic.Bool
}

func (f *failingStore) fail(err error) { f.err.Store(&err) }

func (f *failingStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	if err := f.err.Load(); err != nil {
		return store.FailAll(units, *err)
	}
	return f.Store.Commit(ctx, units...)
}

func (f *failingStore) Ping(ctx context.Context) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return f.Store.Ping(ctx)
}

func (f *failingStore) History(ctx context.Context, q store.HistoryQuery) ([]store.Change, error) {
	if err := f.err.Load(); err != nil {
		return nil, *err
	}
	return f.Store.History(ctx, q)
}

func (f *failingStore) Get(ctx context.Context, k mariposa.Kind, id string) (store.Record, error) {
	if f.panic.Load() {
		panic("secret of the house")
	}
	return f.Store.Get(ctx, k, id)
}

func TestAStoreThatCannotBeWrittenIsReportedAsSuch(t *testing.T) {
	t.Parallel()
	f := &failingStore{}
	h := newTestServer(t, withStore(func(s store.Store) store.Store { f.Store = s; return f }))
	h.create("shop", hello)
	want[contract.Health](h.call("GET", "/readyz", nil), 200)
	f.fail(fmt.Errorf("%w: no space left on device", store.ErrUnavailable))
	r := h.call("POST", "/v1/projects?name=other", hello)
	r.wantError(503, mariposa.Unavailable, "cannot write to the store")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	h.call("GET", "/readyz", nil).wantError(503, mariposa.Unavailable)
	want[contract.Health](h.call("GET", "/healthz", nil), 200)
	want[contract.Projects](h.call("GET", "/v1/projects", nil), 200) // reading goes on
	f.fail(fmt.Errorf("the secret word is swordfish"))
	e := h.call("POST", "/v1/projects?name=third", hello).wantError(500, mariposa.Internal, "request")
	if contains(e.Message, "swordfish") || !contains(h.logs.String(), "swordfish") {
		t.Errorf("the cause belongs in the log alone: %s", e.Message)
	}
}

// coded is an error like those of the SQLite and PostgreSQL drivers.
type coded struct {
	error
	code  int
	state string
}

func (c coded) Code() int        { return c.code }
func (c coded) SQLState() string { return c.state }

func TestWhyTheStoreCannotBeWrittenIsSaidInPlainWords(t *testing.T) {
	t.Parallel()
	f := &failingStore{}
	h := newTestServer(t, withStore(func(s store.Store) store.Store { f.Store = s; return f }))
	secret := errors.New("write /srv/secret/mariposa.db")
	for _, c := range []struct {
		cause error
		says  string
	}{
		{coded{error: secret, code: 13}, "its disk is full"},
		{coded{error: secret, code: 8 | 3<<8}, "its disk is read-only"},
		{coded{error: secret, code: 10 | 4<<8}, "I/O error"},
		{coded{error: secret, state: "53100"}, "its disk is full"},
		{coded{error: secret, state: "25006"}, "its database accepts no writes: it is a standby or in read-only mode"},
		{fmt.Errorf("%w: %w", secret, syscall.ENOSPC), "its disk is full"},
		{fmt.Errorf("%w: %w", secret, syscall.EROFS), "its disk is read-only"},
		{fmt.Errorf("%w: %w", secret, syscall.EIO), "I/O error"},
		{secret, "cannot write to the store;"},
	} {
		f.fail(fmt.Errorf("%w: %w", store.ErrUnavailable, c.cause))
		made := h.call("POST", "/v1/projects?name=shop", hello).wantError(503, mariposa.Unavailable, c.says, "nothing was changed")
		ready := h.call("GET", "/readyz", nil).wantError(503, mariposa.Unavailable, strings.TrimSuffix(c.says, ";"))
		if contains(made.Message+ready.Message, "secret") {
			t.Errorf("the error contains a path: %s %s", made.Message, ready.Message)
		}
	}
}

// The error of a read does not say that nothing was changed.
func TestAStoreThatDoesNotAnswerIsReportedToReaders(t *testing.T) {
	t.Parallel()
	f := &failingStore{}
	h := newTestServer(t, withStore(func(s store.Store) store.Store { f.Store = s; return f }))
	f.fail(fmt.Errorf("%w: the connection is gone", store.ErrUnavailable))
	e := h.call("GET", "/v1/events", nil).wantError(503, mariposa.Unavailable, "the store does not respond", "try again")
	if contains(e.Message, "changed") {
		t.Errorf("it says %q", e.Message)
	}
}

func TestAPanicStaysInItsRequest(t *testing.T) {
	t.Parallel()
	f := &failingStore{}
	h := newTestServer(t, withStore(func(s store.Store) store.Store { f.Store = s; return f }))
	h.create("shop", hello)
	f.panic.Store(true)
	r := h.call("GET", "/v1/projects/shop/manifest", nil)
	e := r.wantError(500, mariposa.Internal, r.header.Get("X-Request-Id"))
	if contains(e.Message, "secret") || !contains(h.logs.String(), "secret of the house") {
		t.Errorf("the cause belongs in the log alone: %s", e.Message)
	}
	f.panic.Store(false)
	if r := h.call("GET", "/v1/projects/shop/manifest", nil); r.status != 200 {
		t.Errorf("afterwards: %d", r.status)
	}
}

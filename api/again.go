package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
	"mariposa/auth"
	"mariposa/store"
)

// replay is where the answer to a change that carries an Idempotency-Key is kept:
// in the store, committed together with the change itself, so that whoever lost an
// answer can ask again, after a crash and at another replica too, without doing it
// twice. Only successes are kept; what failed changed nothing.
type replay struct {
	id      string // of the answer in the store
	request string // a hash of what is asked
	status  int    // of a success
}

const (
	replayedHeader = "Idempotency-Replayed"

	keepAnswers = 24 * time.Hour
	maxKey      = 255
)

func newReplay(c *auth.Caller, key string, r *http.Request, body []byte, status int) *replay {
	b := c.Bounds // an answer may hold more than a token bound to less may see
	return &replay{id: digest(c.User, c.By, b.Organization, b.Project, string(b.Role), key), request: fingerprint(r, body), status: status}
}

func fingerprint(r *http.Request, body []byte) string {
	return digest(r.Method, r.URL.RequestURI(), mediaType(r.Header.Get("Content-Type")), string(body))
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		n := len(p)
		h.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		io.WriteString(h, p) //nolint:errcheck // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil))
}

// answered finds the answer that a change was given before. Nil: there is none;
// old is the record of one that is no longer kept.
func (s *server) answered(ctx context.Context, p *replay) (body []byte, old *store.Record, err error) {
	r, err := s.Store.Get(ctx, mariposa.KindAnswer, p.id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	spec := r.Spec.(*mariposa.AnswerSpec)
	switch {
	case s.Clock.Now().Sub(spec.Created) > keepAnswers:
		return nil, &r, nil
	case spec.Request != p.request:
		return nil, nil, conflict("this Idempotency-Key was used for another request: choose a new one for each change")
	}
	p.status = spec.Status
	box, err := s.Vault.Box(ctx, mariposa.StoreKey)
	if err != nil {
		return nil, nil, err
	}
	body, err = box.Open(spec.Sealed, []byte(r.ID))
	return body, nil, err
}

// keep adds the answer to a change to its unit. It is sealed: it may hold a token.
func (s *server) keep(ctx context.Context, p *replay, old *store.Record, unit *store.Unit, answer any) error {
	var body bytes.Buffer
	if err := huma.DefaultJSONFormat.Marshal(&body, answer); err != nil { // byte for byte as it is answered
		return err
	}
	box, err := s.Vault.Box(ctx, mariposa.StoreKey)
	if err != nil {
		return err
	}
	require := store.Require{Kind: mariposa.KindAnswer, ID: p.id, Absent: true}
	if old != nil {
		require = store.Require{Kind: mariposa.KindAnswer, ID: p.id, SpecRevision: old.SpecRevision, StatusRevision: -1}
	}
	now := s.Clock.Now()
	unit.Require = append(unit.Require, require)
	unit.Writes = append(unit.Writes, store.Write{
		Kind: mariposa.KindAnswer, ID: p.id, Project: AnswerDay(now),
		Spec: &mariposa.AnswerSpec{Request: p.request, Status: p.status, Sealed: box.Seal(body.Bytes(), []byte(p.id)), Created: now},
	})
	return nil
}

// remember notes what was done to something that is not in the store, and keeps the
// answer. It is done by then, so what goes wrong here is logged.
func (s *server) remember(ctx context.Context, a mariposa.Audit, answer any) {
	unit := store.Unit{Audit: []mariposa.Audit{a}}
	if again := asking(ctx).again; again != nil {
		_, old, err := s.answered(ctx, again)
		if err == nil {
			err = s.keep(ctx, again, old, &unit, answer)
		}
		if err != nil {
			s.Logger.WarnContext(ctx, "cannot keep an answer", "err", err, "action", a.Action)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.Store.Commit(ctx, unit)[0].Err; err != nil {
		s.Logger.WarnContext(ctx, "cannot write an audit record", "err", err, "action", a.Action)
	}
}

// AnswerDay is the day that answers are filed under, so that whole days can be
// forgotten.
func AnswerDay(at time.Time) string { return at.UTC().Format("2006-01-02") }

// ForgetAnswers removes the answers that are no longer kept.
func ForgetAnswers(ctx context.Context, st store.Store, now time.Time) error {
	for day := range 5 { // whoever was away for longer than this finds the rest by asking
		q := store.Query{Kind: mariposa.KindAnswer, Project: AnswerDay(now.AddDate(0, 0, -2-day)), Limit: 500}
		for {
			old, err := st.List(ctx, q)
			if err != nil {
				return err
			}
			var unit store.Unit
			for i := range old {
				unit.Writes = append(unit.Writes, store.Write{Kind: mariposa.KindAnswer, ID: old[i].ID, Delete: true})
			}
			if len(old) == 0 {
				break
			}
			if err := st.Commit(ctx, unit)[0].Err; err != nil {
				return err
			}
		}
	}
	return nil
}

type rejoined struct {
	io.Reader
	io.Closer
}

package change

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"mariposa"
	"mariposa/store"
)

// Idempotency identifies the stored answer to a change, for a client that lost the
// answer and repeats the request. The answer is committed with the change, so the change
// is not made twice, even after a crash or at another replica. Only successes are
// stored; a failure changed nothing.
type Idempotency struct {
	ID      string // of the answer in the store: the caller, and the key that they chose
	Request string // a hash of the request
	Status  int    // of a success, as the front end defines it
}

// answerLifetime is how long an answer is kept.
const answerLifetime = 24 * time.Hour

// FindAnswer returns the earlier answer to a change; nil if there is none. Old is the
// record of an expired one.
func (c *Changer) FindAnswer(ctx context.Context, p *Idempotency) (body []byte, old *store.Record, err error) {
	r, err := c.Store.Get(ctx, mariposa.KindAnswer, p.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	spec := (*store.Answer)(&r).Spec()
	box, err := c.Vault.Box(ctx, mariposa.StoreKey)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case c.Clock.Now().Sub(spec.Created) > answerLifetime:
		return nil, &r, nil
	case spec.Request != box.MAC(p.Request) && spec.Request != p.Request: // a plain hash, as in former releases
		return nil, nil, conflict("this Idempotency-Key was already used for a different request: use a new key for each change")
	}
	p.Status = spec.Status
	body, err = box.Open(spec.Sealed, []byte(r.ID))
	return body, nil, err
}

// keepAnswer adds the answer to a change to its unit, encrypted because it may contain a
// token. The hash of the request is keyed: the request may contain a secret, and a plain
// hash in a copy of the store could be used to verify guesses.
func (c *Changer) keepAnswer(ctx context.Context, p *Idempotency, old *store.Record, unit *store.Unit, answer any) error {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false) // keeps the bytes identical to the response
	if err := e.Encode(answer); err != nil {
		return err
	}
	box, err := c.Vault.Box(ctx, mariposa.StoreKey)
	if err != nil {
		return err
	}
	if old != nil {
		unit.Unchanged(old)
	} else {
		unit.Absent(mariposa.KindAnswer, p.ID)
	}
	now := c.Clock.Now()
	unit.Put(store.Write{
		Kind: mariposa.KindAnswer, ID: p.ID, Project: answerDay(now),
		Spec: &mariposa.AnswerSpec{Request: box.MAC(p.Request), Status: p.Status, Sealed: box.Seal(body.Bytes(), []byte(p.ID)), Created: now},
	})
	return nil
}

// Record audits an action on an object that is not in the store, and keeps the answer.
func (c *Changer) Record(ctx context.Context, req *Request, a mariposa.Audit, answer any) error {
	unit := store.Unit{Audit: []mariposa.Audit{a}}
	var lost error
	if req.Idempotency != nil {
		_, old, err := c.FindAnswer(ctx, req.Idempotency)
		if err == nil {
			err = c.keepAnswer(ctx, req.Idempotency, old, &unit, answer)
		}
		lost = err
	}
	return errors.Join(lost, c.Store.Commit(ctx, unit)[0].Err)
}

// answerDay is the day that answers are indexed by, so that whole days can be deleted.
func answerDay(at time.Time) string { return at.UTC().Format("2006-01-02") }

// ForgetAnswers deletes the expired answers.
func ForgetAnswers(ctx context.Context, st store.Store, now time.Time) error {
	for day := range 5 { // after a longer downtime, the rest is replaced when its key is used again
		q := store.Query{Kind: mariposa.KindAnswer, Project: answerDay(now.AddDate(0, 0, -2-day)), Limit: 500}
		for {
			old, err := st.List(ctx, q)
			if err != nil {
				return err
			}
			var unit store.Unit
			for i := range old {
				unit.Unchanged(&old[i]) // its key may be in use again
				unit.Delete(mariposa.KindAnswer, old[i].ID, mariposa.Event{})
			}
			if len(old) == 0 {
				break
			}
			if err := st.Commit(ctx, unit)[0].Err; err != nil && !errors.Is(err, store.ErrConflict) {
				return err
			}
		}
	}
	return nil
}

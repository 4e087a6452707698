package change

import (
	"context"
	"time"

	"mariposa"
	"mariposa/store"
)

// RecordAudit writes an audit record on its own: of a request that changes no object,
// or that was refused.
func (c *Changer) RecordAudit(ctx context.Context, a mariposa.Audit) error {
	return c.Store.Commit(ctx, store.Unit{Audit: []mariposa.Audit{a}})[0].Err
}

// RecordTokenUse writes when a token was last used, and from where.
func (c *Changer) RecordTokenUse(ctx context.Context, token, from string, at time.Time) error {
	w := store.Write{Kind: mariposa.KindToken, ID: token, Status: &mariposa.TokenStatus{Used: at, From: from}}
	return c.Store.Commit(ctx, store.Unit{Writes: []store.Write{w}})[0].Err
}

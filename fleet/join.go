package fleet

import (
	"context"
	"errors"

	"mariposa/store"
	"mariposa/wire"
)

// maxJoinAttempts bounds how often a replica tries to let a node join: each time, a node
// that joined elsewhere with the same token was faster.
const maxJoinAttempts = 20

// openInTurn begins a session like Open. Nodes that join with a token do so one after the
// other: each use of a token, and each name, depends on those before.
func (f *Fleet) openInTurn(ctx context.Context, h *wire.Hello, by Admission, out Outlet, wake func()) (*Session, *wire.Bye) {
	if by.Token == nil || f.Picture.Nodes.Get(h.Node) != nil {
		return f.Open(ctx, h, by, out, wake)
	}
	select {
	case f.joining <- struct{}{}:
		defer func() { <-f.joining }()
	case <-ctx.Done(): // the agent has left
		return nil, unavailableError("let a node join", ctx.Err())
	}
	for attempt := 1; ; attempt++ {
		if err := f.catchUp(ctx); err != nil {
			return nil, unavailableError("let a node join", err)
		}
		if by.Token = f.Picture.Tokens.Get(by.Token.ID); by.Token == nil || by.Token.Spec().Spent() || by.Token.Spec().Expired(f.Clock.Now()) {
			return nil, &wire.Bye{Reason: "the join token has just become invalid; try again"} // then the agent is told why
		}
		s, bye, err := f.open(ctx, h, by, out, wake)
		if !errors.Is(err, store.ErrConflict) || attempt == maxJoinAttempts {
			return s, bye
		}
	}
}

// catchUp waits until the picture shows everything that was stored before the call.
func (f *Fleet) catchUp(ctx context.Context) error {
	newest, err := f.Store.Revision(ctx)
	if err != nil {
		return err
	}
	return f.Picture.Await(ctx, newest)
}

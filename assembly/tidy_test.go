package assembly

import (
	"context"
	"errors"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/memory"
)

func TestRevokedTokensAreForgottenAfterAWhile(t *testing.T) {
	t.Parallel()
	ctx, st, now := context.Background(), memory.New(clock.Real{}), time.Now()
	for id, revoked := range map[string]time.Time{"good": {}, "lately": now.Add(-time.Hour), "long ago": now.Add(-48 * time.Hour)} {
		w := store.Write{Kind: mariposa.KindToken, ID: id, Spec: &mariposa.TokenSpec{Revoked: revoked}, Archive: !revoked.IsZero()}
		if err := st.Commit(ctx, store.Unit{Writes: []store.Write{w}})[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	if err := forgetTokens(ctx, st, now.Add(-24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	for id, kept := range map[string]bool{"good": true, "lately": true, "long ago": false} {
		if _, err := st.Get(ctx, mariposa.KindToken, id); errors.Is(err, store.ErrNotFound) == kept {
			t.Errorf("%s: %v", id, err)
		}
	}
}

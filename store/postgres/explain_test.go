package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"mariposa/store"
	"mariposa/store/postgres"
)

func TestWhyADatabaseCannotBeReachedIsSaidInPlainWords(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"postgres://ann:swordfish@127.0.0.1:1/mariposa":               "nothing accepts connections at 127.0.0.1:1",
		"postgres://ann:swordfish@no-such-host.invalid:5432/mariposa": "the host name no-such-host.invalid cannot be resolved",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := postgres.Open(ctx, url, postgres.Options{})
		cancel()
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if why := postgres.Explain(err); !strings.Contains(why, says) || strings.Contains(why+err.Error(), "swordfish") {
			t.Errorf("%s: %s", url, why)
		}
	}
}

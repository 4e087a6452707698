package assembly

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/store"
)

// AdminToken reads the admin token from a file, creates it the first time, and makes
// sure that the store has it. If it was revoked, a new one replaces it, so that the
// owner of the directory is never locked out.
func AdminToken(ctx context.Context, st store.Store, path string) (string, error) {
	token, err := SecretFile(path)
	if err != nil {
		return "", err
	}
	err = ensureAdminToken(ctx, st, token)
	if !errors.Is(err, auth.ErrRevoked) {
		return token, err
	}
	token = Secret()
	if err := WriteFile(path, []byte(token+"\n")); err != nil {
		return "", err
	}
	slog.Warn("the admin token was revoked: created a new one", "file", path)
	return token, ensureAdminToken(ctx, st, token)
}

func ensureAdminToken(ctx context.Context, st store.Store, token string) error {
	return auth.EnsureToken(ctx, st, token, mariposa.TokenSpec{
		Use: mariposa.TokenAdmin, Name: "admin.token " + mariposa.HashToken(token)[:6], User: mariposa.FirstUser, Created: time.Now(), Author: "mariposa",
	}, "the admin token in the server's data directory")
}

// MigrateJoinToken creates a record of the join token that earlier releases kept in a
// file, and removes the file. The token works for LegacyJoinLifetime, unless it is
// revoked.
func MigrateJoinToken(ctx context.Context, st store.Store, path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if token := strings.TrimSpace(string(b)); token != "" {
		now := time.Now()
		ends := now.Add(mariposa.LegacyJoinLifetime)
		err := auth.EnsureToken(ctx, st, token, mariposa.TokenSpec{
			Use: mariposa.TokenJoin, Name: "join.token", Created: now, Expires: ends, Author: "mariposa",
		}, "the join token from an earlier release")
		if err != nil && !errors.Is(err, auth.ErrRevoked) {
			return fmt.Errorf("import the join token from an earlier release: %w", err)
		}
		slog.Warn("the join token from an earlier release will expire: nodes that have joined do not need it; create new ones with `mariposa node join-token`", "until", ends.Format(time.RFC3339))
	}
	return os.Remove(path)
}

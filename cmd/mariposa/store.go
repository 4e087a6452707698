package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mariposa/cli"
	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/postgres"
	"mariposa/store/sqlite"
)

// openStore opens the store given with --store. dir is the directory of a SQLite store
// and its secrets. It is empty for replicas on PostgreSQL.
func openStore(ctx context.Context, where string) (st store.Store, name, dir string, err error) {
	if isPostgres(where) {
		st, err = postgres.Open(ctx, where, postgres.Options{})
		return st, "postgres", "", err
	}
	path, ok := strings.CutPrefix(where, "sqlite:")
	if !ok || path == "" {
		return nil, "", "", cli.Usage(fmt.Errorf("--store must be sqlite:PATH or postgres://…, not %q", masked(where)))
	}
	dir = filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", "", err
	}
	st, err = sqlite.Open(ctx, path, sqlite.Options{Clock: clock.Real{}})
	return st, "sqlite", dir, err
}

// masked returns the scheme of a mistyped URL and hides the rest, which may contain a
// password.
func masked(where string) string {
	if begins, _, ok := strings.Cut(where, ":"); ok && len(begins) < 16 && !strings.ContainsAny(begins, " =@") {
		return begins + ":…"
	}
	if where == "" {
		return where
	}
	return "…"
}

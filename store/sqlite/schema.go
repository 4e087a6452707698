package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"net/url"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver

	"mariposa/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Settings of connections. A busy connection waits: only our own connections use the
// file, so it is never for long. Each checkpoint costs a sync of the whole file, so one
// every 16 MB is enough. The journal mode is not a pragma here, because the driver sorts
// those and the page size must be set before it.
var (
	writing = url.Values{
		"_busy_timeout": {"10000"}, "_journal_mode": {"WAL"}, "_synchronous": {"FULL"},
		"_pragma": {"page_size(8192)", "wal_autocheckpoint(2048)", "journal_size_limit(67108864)", "cache_size(-24576)", "temp_store(MEMORY)"},
	}
	reading = url.Values{
		"_busy_timeout": {"10000"}, "_query_only": {"1"},
		"_pragma": {"cache_size(-4096)", "temp_store(MEMORY)"},
	}
)

func openDB(path string, settings url.Values) (*sql.DB, error) {
	name := url.URL{Scheme: "file", Path: path, RawQuery: settings.Encode()}
	return sql.Open("sqlite", name.String())
}

// migrate migrates the file to the schema of this binary.
func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	current, known, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read schema: %w", err)
	}
	if current > known {
		return fmt.Errorf("written by a newer version of mariposa (schema %d; this version supports up to %d): run that version", current, known)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate schema: %w", err)
	}
	return nil
}

// identify reads the ids of the store, and creates them if it is new.
func identify(ctx context.Context, db *sql.DB) (store.Identity, error) {
	var id store.Identity
	for key, value := range map[string]*string{"cluster": &id.Cluster, "incarnation": &id.Incarnation} {
		const put = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING"
		if _, err := db.ExecContext(ctx, put, key, uuid.NewString()); err != nil {
			return id, err
		}
		if err := db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", key).Scan(value); err != nil {
			return id, err
		}
	}
	return id, nil
}

package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"mariposa/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationLock is the advisory lock under which the schema is checked and changed by
// one replica at a time. The number has no other meaning.
const migrationLock = 0x6d617269706f7361

// migrationTimeout is how long a migration may take, or waiting for the migration of
// another replica.
const migrationTimeout = 10 * time.Minute

// migrate migrates the database to the schema of this binary. Replicas may do so
// concurrently; all but the first wait and find it done. A database that is up to date
// is left alone: it may be read-only.
func migrate(ctx context.Context, config *pgx.ConnConfig, conn *pgx.Conn) error {
	var encoding string
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_encoding')").Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("unsupported encoding %s: create the database with ENCODING 'UTF8'", encoding)
	}
	config = config.Copy()
	for _, name := range []string{"statement_timeout", "lock_timeout"} {
		config.RuntimeParams[name] = fmt.Sprint(migrationTimeout.Milliseconds())
	}
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "0" // goose leaves it idle
	db := stdlib.OpenDB(*config)
	defer db.Close()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	if done, err := upToDate(ctx, conn, p); done || err != nil {
		return err
	}
	return up(ctx, config, p)
}

// upToDate reports whether the schema is current. A schema newer than this binary is an
// error.
func upToDate(ctx context.Context, conn *pgx.Conn, p *goose.Provider) (bool, error) {
	current, err := schemaVersion(ctx, conn)
	if err != nil {
		return false, fmt.Errorf("read schema: %w", err)
	}
	sources := p.ListSources()
	known := sources[len(sources)-1].Version
	if current > known {
		return false, fmt.Errorf("written by a newer version of mariposa (schema %d; this version supports up to %d): run that version", current, known)
	}
	return current == known, nil
}

func schemaVersion(ctx context.Context, conn *pgx.Conn) (version int64, err error) {
	var there bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('goose_db_version') IS NOT NULL").Scan(&there); err != nil || !there {
		return 0, err
	}
	err = conn.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&version)
	return version, err
}

// up migrates the schema under the lock.
func up(ctx context.Context, config *pgx.ConnConfig, p *goose.Provider) error {
	guard, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer disconnect(guard) // also releases the lock
	if _, err := guard.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(migrationLock)); err != nil {
		return err
	}
	if done, err := upToDate(ctx, guard, p); done || err != nil {
		return err // another replica was first
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate schema: %w", err)
	}
	return nil
}

// identify reads the ids of the store, and creates them if it is new. If replicas do so
// concurrently, one creates them and all read the same.
func identify(ctx context.Context, conn *pgx.Conn) (store.Identity, error) {
	var id store.Identity
	const put = "INSERT INTO meta (key, value) VALUES ('cluster', $1), ('incarnation', $2) ON CONFLICT DO NOTHING"
	const get = "SELECT (SELECT value FROM meta WHERE key = 'cluster'), (SELECT value FROM meta WHERE key = 'incarnation')"
	var missing bool
	if err := conn.QueryRow(ctx, "SELECT count(*) < 2 FROM meta WHERE key IN ('cluster', 'incarnation')").Scan(&missing); err != nil {
		return id, err
	}
	if missing { // a store that cannot be written now can still be read
		if _, err := conn.Exec(ctx, put, uuid.NewString(), uuid.NewString()); err != nil {
			return id, err
		}
	}
	err := conn.QueryRow(ctx, get).Scan(&id.Cluster, &id.Incarnation)
	return id, err
}

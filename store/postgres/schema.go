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

// migrationLock is the advisory lock under which the schema is looked at and
// changed: one replica at a time. The number means nothing but this.
const migrationLock = 0x6d617269706f7361

// migrationTimeout is how long a change of the schema may take, or waiting for
// another replica that makes it.
const migrationTimeout = 10 * time.Minute

// migrate brings the database to the schema of this binary. Replicas may do so
// at once; all but the first wait and find it done.
func migrate(ctx context.Context, config *pgx.ConnConfig) error {
	config = config.Copy()
	for _, name := range []string{"statement_timeout", "lock_timeout"} {
		config.RuntimeParams[name] = fmt.Sprint(migrationTimeout.Milliseconds())
	}
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "0" // goose takes its time
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer disconnect(conn) // this also frees the lock
	var encoding string
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_encoding')").Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("its encoding is %s: make the database with ENCODING 'UTF8'", encoding)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(migrationLock)); err != nil {
		return err
	}
	return up(ctx, config)
}

func up(ctx context.Context, config *pgx.ConnConfig) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	current, known, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read its schema: %w", err)
	}
	if current > known {
		return fmt.Errorf("it was written by a newer mariposa (schema %d; this one knows up to %d): run that one", current, known)
	}
	if current == known {
		return nil
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("bring its schema up to date: %w", err)
	}
	return nil
}

// identify reads the ids of the store, and makes them when it is new. Of
// replicas that do so at once, one makes them and all read the same.
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

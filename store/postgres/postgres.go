// Package postgres is the store that several replicas share: one PostgreSQL database,
// which any number of processes read and write concurrently. It is as durable as the
// server.
//
// It owns the schema, the group commit and the connections: in each process one goroutine
// writes and one follows the log, on a connection of their own; readers share a small
// pool. It does not know what the objects mean. It uses the server's clock instead of a
// replica's. It caches nothing that another replica could have changed, except the log,
// which only grows.
//
// # How replicas write at once
//
// A group is one transaction. It locks, in this order and each in the order of names:
// its writer's own row, the leases it reads, the ledger rows it claims from, and the
// counter, if it reads any object or adds to the audit log. The counter's lock is the
// lock of all objects: its owner sees every earlier change, including that objects do
// not exist, and gives its own changes the next revisions. So revisions have no gaps and
// become visible in order, and replicas never deadlock. The counter comes last because
// all replicas need it; it is held for one round trip and the sync of the commit.
package postgres

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
	"mariposa/store/internal/feed"
)

var _ store.Store = (*Store)(nil)

// Options change how a store is opened. The zero value is right for a server.
type Options struct {
	// How much of the newest part of the log is kept in memory for readers.
	RecentChanges int // 0: 16,384
	RecentBytes   int // 0: 16 MB

	// Existing refuses a database without tables instead of creating them.
	Existing bool
}

// Store is an open database. Its methods may be called from any goroutine.
type Store struct {
	identity store.Identity

	codec    *codec.Codec
	readers  *pgxpool.Pool
	visits   chan struct{} // one token for each snapshot in progress
	queue    *batch.Queue
	feed     *feed.Feed
	guard    *guard
	writer   *writer
	listener *listener

	// life ends with Close, and ends reads in progress.
	life    context.Context
	end     context.CancelFunc
	close   sync.Once
	running sync.WaitGroup
}

// Open opens a store, and creates its tables if there are none. The URL is like
// postgres://user:password@host:port/database. Close the store to release its
// connections.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	if o.RecentChanges == 0 {
		o.RecentChanges = 16 << 10
	}
	if o.RecentBytes == 0 {
		o.RecentBytes = 16 << 20
	}
	config, err := parse(url)
	if err != nil {
		return nil, err
	}
	s := &Store{
		queue:  batch.NewQueue(),
		feed:   feed.New(o.RecentChanges, o.RecentBytes),
		visits: make(chan struct{}, maxReaders/2),
	}
	s.life, s.end = context.WithCancel(context.Background())
	if err := s.open(ctx, config, o); err != nil {
		s.free()
		return nil, fmt.Errorf("store %s/%s: %w", config.ConnConfig.Host, config.ConnConfig.Database, openError(ctx, err))
	}
	s.running.Go(s.writer.run)
	s.running.Go(func() { s.listener.run(s.life) })
	return s, nil
}

func (s *Store) open(ctx context.Context, config *pgxpool.Config, o Options) (err error) {
	if s.codec, err = codec.New(); err != nil {
		return err
	}
	conn, err := connect(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	if o.Existing {
		if current, err := schemaVersion(ctx, conn); err != nil || current == 0 {
			return cmp.Or(err, fmt.Errorf("%w: the database is empty", store.ErrUnavailable))
		}
	}
	if err := migrate(ctx, config.ConnConfig, conn); err != nil {
		return err
	}
	if s.identity, err = identify(ctx, conn); err != nil {
		return err
	}
	var trimmed, revision int64
	if err := conn.QueryRow(ctx, readBounds).Scan(&trimmed, &revision, &s.identity.Incarnation); err != nil {
		return err
	}
	s.feed.Reset(trimmed, revision)
	s.guard = &guard{feed: s.feed, incarnation: s.identity.Incarnation, rewound: make(chan struct{})}
	config.AfterConnect = s.guard.check
	log := &log{feed: s.feed, codec: s.codec, guard: s.guard, recent: int64(o.RecentChanges)}
	s.writer = newWriter(config.ConnConfig, s.queue, log)
	s.listener = &listener{config: config.ConnConfig.Copy(), log: log, own: &s.writer.backend}
	s.readers, err = pgxpool.NewWithConfig(s.life, config)
	return err
}

// Close rejects new work, waits for the queue, and releases the database.
func (s *Store) Close() error {
	s.close.Do(func() {
		s.queue.Close()
		close(s.writer.closing)
		<-s.writer.ended
		s.feed.Close()
		s.end()
		s.running.Wait()
		s.free()
	})
	return nil
}

// free undoes Open, as far as it had come.
func (s *Store) free() {
	s.end()
	if s.readers != nil {
		s.readers.Close()
	}
	if s.codec != nil {
		s.codec.Close()
	}
}

// Commit queues units for the group commit. A unit that the database cannot store fails
// alone, before it can fail its group.
func (s *Store) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	var refused []error // by unit; nil if all can be stored
	for i := range units {
		if err := checkStorable(&units[i]); err != nil {
			if refused == nil {
				refused = make([]error, len(units))
			}
			refused[i] = err
		}
	}
	if refused == nil {
		return s.queue.Commit(ctx, units)
	}
	good := make([]store.Unit, 0, len(units))
	for i := range units {
		if refused[i] == nil {
			good = append(good, units[i])
		}
	}
	done := s.queue.Commit(ctx, good)
	results := make([]store.Result, len(units))
	for i := range results {
		if results[i].Err = refused[i]; refused[i] == nil {
			results[i], done = done[0], done[1:]
		}
	}
	return results
}

// Shared is true: any number of replicas can use the database.
func (*Store) Shared() bool { return true }

// Identity returns the ids created when the database was first used.
func (s *Store) Identity(ctx context.Context) (store.Identity, error) {
	if err := s.usable(ctx); err != nil {
		return store.Identity{}, err
	}
	return s.identity, nil
}

// Ping commits a group that changes only its writer's own row, because nothing less
// proves that the server accepts writes and its disk has room.
func (s *Store) Ping(ctx context.Context) error {
	return s.queue.Do(ctx, func(g *batch.Group) error {
		g.ExtraActions = append(g.ExtraActions, func(context.Context) error { return nil })
		return nil
	})
}

// usable is for reads, which bypass the queue.
func (s *Store) usable(ctx context.Context) error {
	if s.feed.Closed() {
		return store.ErrClosed
	}
	if err := s.guard.err(); err != nil {
		return err
	}
	return ctx.Err()
}

// readBounds reads the bounds of the log: it is complete after trimmed, up to the
// counter.
const readBounds = "SELECT t.revision, c.revision, (" + readIncarnation + ") FROM trimmed AS t, counter AS c"

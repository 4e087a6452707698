// Package sqlite is the embedded store: one file, one process, no server. It is
// durable to the last acknowledged commit, through kill -9 and power cuts.
//
// It owns the file, the group commit and the connections: one goroutine writes, on a
// connection of its own; readers have theirs and see committed state only. It does not
// know what the objects mean, and does not share its file with other processes.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
	"mariposa/store/internal/feed"
)

var _ store.Store = (*Store)(nil)

// Options change how a store is opened. The zero value is right for a server.
type Options struct {
	Clock clock.Clock // dates changes and expires leases; nil: the machine's clock

	// How much of the newest part of the log is kept in memory for readers.
	RecentChanges int // 0: 65,536
	RecentBytes   int // 0: 64 MB
}

// Store is an open file. Its methods may be called from any goroutine; the writer's
// fields belong to the writer's goroutine.
type Store struct {
	path     string
	clock    clock.Clock
	identity atomic.Pointer[store.Identity]

	lock    *lock
	codec   *codec.Codec
	readers *sql.DB
	queue   *batch.Queue
	feed    *feed.Feed
	writer  *writer

	close sync.Once
	ended chan struct{} // closed once the writer's goroutine has ended
}

// maxReaders is how many reads run at once; the others wait. SQLite keeps the file of
// every connection that was ever open at the same time, and a cache for each that is.
const maxReaders = 64

// Open opens a store, and creates it if there is none. Close it to release the file.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.RecentChanges == 0 {
		o.RecentChanges = 16 << 10
	}
	if o.RecentBytes == 0 {
		o.RecentBytes = 16 << 20
	}
	path, err := prepare(path)
	if err != nil {
		return nil, err
	}
	held, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	s := &Store{
		path:  path,
		clock: o.Clock,
		lock:  held,
		queue: batch.NewQueue(),
		feed:  feed.New(o.RecentChanges, o.RecentBytes),
		ended: make(chan struct{}),
	}
	if err := s.open(ctx, path); err != nil {
		_ = s.free() // the first error is the one to return
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	go s.writer.run(s.ended)
	return s, nil
}

func (s *Store) open(ctx context.Context, path string) (err error) {
	if err := createFile(path); err != nil {
		return err
	}
	if s.codec, err = codec.New(); err != nil {
		return err
	}
	s.writer = &writer{clock: s.clock, queue: s.queue, feed: s.feed, codec: s.codec}
	if s.writer.db, err = openDB(path, writing); err != nil {
		return err
	}
	s.writer.db.SetMaxOpenConns(1)
	if err := migrate(ctx, s.writer.db); err != nil {
		return err
	}
	id, err := identify(ctx, s.writer.db)
	if err != nil {
		return err
	}
	s.identity.Store(&id)
	if err := s.writer.connect(ctx); err != nil {
		return err
	}
	if s.readers, err = openDB(path, reading); err != nil {
		return err
	}
	s.readers.SetMaxOpenConns(maxReaders)
	s.readers.SetMaxIdleConns(4)
	return nil
}

// Close rejects new work, waits for the queue, and releases the file.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		s.queue.Close()
		<-s.ended
		s.feed.Close()
		err = s.free()
	})
	return err
}

// free undoes Open, as far as it had come.
func (s *Store) free() error {
	var errs []error
	if s.readers != nil {
		errs = append(errs, s.readers.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.close())
	}
	if s.codec != nil {
		s.codec.Close()
	}
	return errors.Join(append(errs, s.lock.free())...)
}

// prepare creates the directory of a store, readable only by its owner.
func prepare(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return path, os.MkdirAll(filepath.Dir(path), 0o700)
}

// createFile creates the file before SQLite does, which would use the umask for its
// mode. The other files that SQLite creates take the same mode.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

// Commit queues units for the group commit.
func (s *Store) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	return s.queue.Commit(ctx, units)
}

// Shared is false: one process at a time can use the file.
func (*Store) Shared() bool { return false }

// Identity returns the ids created with the file.
func (s *Store) Identity(ctx context.Context) (store.Identity, error) {
	if err := s.usable(ctx); err != nil {
		return store.Identity{}, err
	}
	return *s.identity.Load(), nil
}

// Reincarnate replaces the incarnation.
func (s *Store) Reincarnate(ctx context.Context, old string) error {
	id := *s.identity.Load()
	if id.Incarnation != old {
		return s.usable(ctx)
	}
	id.Incarnation = uuid.NewString()
	err := s.queue.Do(ctx, func(g *batch.Group) error {
		g.ExtraActions = append(g.ExtraActions, func(ctx context.Context) error {
			_, err := s.writer.conn.ExecContext(ctx, "UPDATE meta SET value = ? WHERE key = 'incarnation'", id.Incarnation)
			return err
		})
		return nil
	})
	if err == nil {
		s.identity.Store(&id)
	}
	return err
}

// Rewound is nil: no other process can change the file.
func (*Store) Rewound() <-chan struct{} { return nil }

// Revision returns the newest revision.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	_, revision := s.feed.Bounds()
	return revision, s.usable(ctx)
}

// Ping writes a few bytes to the disk, because nothing less proves that it accepts
// writes.
func (s *Store) Ping(ctx context.Context) error {
	return s.queue.Do(ctx, func(g *batch.Group) error {
		g.ExtraActions = append(g.ExtraActions, func(ctx context.Context) error {
			return s.writer.setMeta(ctx, "ping", g.Now.UnixNano())
		})
		return nil
	})
}

// usable is for reads, which bypass the queue.
func (s *Store) usable(ctx context.Context) error {
	if s.feed.Closed() {
		return store.ErrClosed
	}
	return ctx.Err()
}

// readError interprets a failed read: one interrupted by Close returns ErrClosed.
func (s *Store) readError(err error) error {
	if err != nil && s.feed.Closed() {
		return store.ErrClosed
	}
	return err
}

package assembly

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

const rewoundMessage = "the database is not in the state that this server has seen (it was restored, replaced or emptied): the server is reading it again; try again shortly"

// ServeHTTP answers a request by what is in the store, and refuses it while that changes.
func (c *Control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p := c.current.Load(); p != nil {
		p.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	health, why := contract.Health{Status: "starting", Version: c.cfg.Version}, ""
	if waits := c.waiting.Load(); waits != nil {
		why = "the server is starting: " + *waits + "; try again shortly" // the installation is not known yet
	} else {
		health.Status, health.Installation, why = "ok", c.cluster, rewoundMessage
	}
	if r.URL.Path == "/healthz" { // the process is alive; a restart would not help
		_ = json.NewEncoder(w).Encode(health) // the client has gone
		return
	}
	refuse(w, why)
}

func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(mariposa.Error{Code: mariposa.Unavailable, Message: why}) // the client has gone
}

// noteOutdated notes that a node has seen a revision which the store does not have.
func (c *plane) noteOutdated(seen int64) {
	select {
	case c.outdated <- seen:
	default: // one is enough
	}
}

// followStore replaces the plane whenever the store turns out to be another one than it
// was: everything that was read from it is wrong then. The store gets a new incarnation,
// so that nodes do not take its goals for older ones of the state that is gone, and keep
// what only that state knew.
func (c *Control) followStore(ctx context.Context, p *plane) {
	known := map[string]bool{}
	for told := false; ; {
		known[p.identity.Incarnation] = true
		select {
		case <-ctx.Done():
			return
		case <-p.store.Rewound():
			told = false
		case <-p.outdated:
			// Nodes are believed once: a store that goes back while it is open is noticed
			// without them, and a node could make the server restart again and again.
			told = true
			renewed := retry(ctx, "give the database a new incarnation", func() error {
				if err := p.store.Reincarnate(ctx, p.identity.Incarnation); !errors.Is(err, store.ErrRewound) {
					return err
				}
				return nil // another replica has done so
			})
			if !renewed {
				return
			}
		}
		slog.Error("the database has gone back to an earlier state (a restored backup, or a standby that lacked the newest changes); " +
			"reading it again. Later changes are lost. Nodes keep what they run; see `mariposa node list`")
		c.current.Store(nil)
		p.stop()
		if p = c.restart(ctx, p, known, told); p == nil {
			return
		}
		c.current.Store(p)
		slog.Info("serving the restored state of the database", "revision", p.pic.Revision())
	}
}

// restart starts a plane on the present state of the store; nil if the context ended. A
// state with an incarnation that was known before gets a new one: nodes know it from the
// time that is lost.
func (c *Control) restart(ctx context.Context, old *plane, known map[string]bool, told bool) (p *plane) {
	st := old.store
	reopen := func() (err error) {
		if c.cfg.Reopen != nil {
			closeStore(st)
			if st, err = c.cfg.Reopen(ctx); err != nil {
				st = nil
			}
		}
		return err
	}
	retry(ctx, "read the database again", func() error {
		if err := reopen(); err != nil {
			return err
		}
		id, err := st.Identity(ctx)
		if err != nil {
			return err
		}
		if id.Cluster != old.identity.Cluster {
			return errors.New("it belongs to another installation: put the right one in its place, or restart this server to use it")
		}
		if known[id.Incarnation] {
			if err := st.Reincarnate(ctx, id.Incarnation); err != nil {
				return err
			}
			if err := reopen(); err != nil {
				return err
			}
		}
		p, err = newPlane(ctx, c.cfg, st, c.gate, old.trusting && !told)
		return err
	})
	if p == nil {
		closeStore(st)
	}
	return p
}

// firstPlane starts a plane on a store that was just opened. Another replica may give it a
// new incarnation meanwhile, and a shared database may go away: then it waits for it.
func (c *Control) firstPlane(ctx context.Context) (p *plane, err error) {
	st := c.cfg.Store
	for range 10 {
		open := func() error {
			p, err = newPlane(ctx, c.cfg, st, c.gate, true)
			if errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrRewound) && st.Shared() {
				return err
			}
			return nil
		}
		if !retry(ctx, "read the database", open) {
			break
		}
		if !errors.Is(err, store.ErrRewound) || c.cfg.Reopen == nil {
			break
		}
		closeStore(st)
		if st, err = c.cfg.Reopen(ctx); err != nil {
			return nil, err
		}
	}
	if err != nil && st != c.cfg.Store { // that one is the caller's
		closeStore(st)
	}
	return p, err
}

// retry tries until it succeeds, and returns false if the context ends first.
func retry(ctx context.Context, what string, try func() error) bool {
	told, at := "", time.Time{}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := try()
		if err == nil {
			return true
		}
		if err.Error() != told || time.Since(at) >= waitReminder {
			slog.Warn("cannot "+what+"; will retry", "err", err)
			told, at = err.Error(), time.Now()
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

func closeStore(st store.Store) {
	if st == nil {
		return
	}
	if err := st.Close(); err != nil {
		slog.Warn("cannot close the store", "err", err)
	}
}

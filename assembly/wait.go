package assembly

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"mariposa/store"
)

const (
	waitingMessage = "waiting for the database"
	// waitPause is between two attempts to open the store, and waitReminder between two
	// messages that say the same.
	waitPause    = time.Second
	waitReminder = time.Minute
)

// startFirst opens the store, if the caller has not, and starts a plane on it. Requests are
// answered meanwhile: after a power cut, everything starts at the same time.
func (c *Control) startFirst(ctx context.Context) (*plane, error) {
	if c.cfg.Store != nil {
		return c.firstPlane(ctx)
	}
	if err := c.openStore(ctx); err != nil {
		return nil, err
	}
	first, err := c.firstPlane(ctx)
	if err != nil {
		closeStore(c.cfg.Store)
	}
	return first, err
}

// openStore opens the store, and waits for it if it is not available.
func (c *Control) openStore(ctx context.Context) (err error) {
	var told string
	var at time.Time
	for {
		if c.cfg.Store, err = c.cfg.Open(ctx); err == nil || !errors.Is(err, store.ErrUnavailable) {
			return err
		}
		why := err.Error()
		if c.cfg.Explain != nil {
			why = c.cfg.Explain(err)
		}
		c.waiting.Store(new(waitingMessage + ": " + why))
		if why != told || time.Since(at) >= waitReminder {
			slog.Warn(waitingMessage, "reason", why, "listening", c.URL)
			told, at = why, time.Now()
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(waitPause):
		}
	}
}

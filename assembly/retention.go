package assembly

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/change"
	"mariposa/store"
)

const (
	keepFeed    = 7 * 24 * time.Hour
	keepChanges = 2_000_000

	// The newest changes are not thinned, so that slow followers of the feed miss none;
	// unless those of one project alone take up more than it may have. Then fewer stay.
	keepWhole  = 100_000
	keepNewest = 1000
)

// trim keeps the feed within its bounds.
func (c *plane) trim(ctx context.Context) {
	every := time.NewTicker(time.Minute)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			if err := c.trimOnce(ctx); err != nil && ctx.Err() == nil {
				slog.Warn("cannot trim the event feed; will retry", "err", err)
			}
		}
	}
}

// trimOnce deletes old changes, then the oldest changes of projects that exceed their
// share. This way a project with many changes does not displace the history of others.
func (c *plane) trimOnce(ctx context.Context) error {
	st := c.store
	if _, err := st.Trim(ctx, cmp.Or(c.cfg.Keep, keepFeed), 0); err != nil {
		return err
	}
	sizes, err := st.LogSizes(ctx)
	if err != nil {
		return err
	}
	limit := func(project string) int64 { return change.EventsLimit(c.pic, project) }
	upTo := c.pic.Revision() - cmp.Or(c.cfg.KeepWhole, keepWhole)
	over := overShare(sizes, cmp.Or(c.cfg.KeepRows, keepChanges), limit)
	for project, keep := range over {
		if _, err := st.Thin(ctx, project, keep, upTo); err != nil {
			return err
		}
	}
	return c.trimLarge(ctx, slices.Sorted(maps.Keys(over)), limit)
}

// trimLarge deletes changes of projects whose newest ones alone take up more bytes than
// they may have.
func (c *plane) trimLarge(ctx context.Context, projects []string, limit func(project string) int64) error {
	projects = slices.DeleteFunc(projects, func(p string) bool { return p == "" })
	if len(projects) == 0 {
		return nil
	}
	sizes, err := c.store.LogSizes(ctx, projects...)
	if err != nil {
		return err
	}
	upTo := c.pic.Revision() - min(keepNewest, cmp.Or(c.cfg.KeepWhole, keepWhole))
	for _, project := range projects {
		if most := limit(project); most > 0 && sizes[project].Bytes > most {
			if _, err := c.store.Thin(ctx, project, store.LogSize{Bytes: most - most/10}, upTo); err != nil {
				return err
			}
		}
	}
	return nil
}

// overShare returns what to keep of the projects that exceed their share of the log:
// more bytes than their limit or, if all together have more changes than most, more than
// an equal share of these. What small projects leave is shared by the large ones. To
// stay below the limit for a while, these keep a tenth less than allowed.
func overShare(sizes map[string]store.LogSize, most int64, limit func(project string) int64) map[string]store.LogSize {
	share := fairShare(sizes, most)
	keep := make(map[string]store.LogSize)
	for project, size := range sizes {
		may := store.LogSize{Changes: share}
		if project != "" {
			may.Bytes = limit(project)
		}
		if !size.Within(may) {
			keep[project] = store.LogSize{Changes: max(1, may.Changes-may.Changes/10), Bytes: may.Bytes - may.Bytes/10}
		}
	}
	return keep
}

// fairShare returns how many changes each project may have so that all of them together
// have no more than most.
func fairShare(sizes map[string]store.LogSize, most int64) int64 {
	counts := make([]int64, 0, len(sizes))
	for _, size := range sizes {
		counts = append(counts, size.Changes)
	}
	slices.Sort(counts)
	share := most
	for i, n := range counts {
		share = most / int64(len(counts)-i)
		if n > share {
			return max(1, share)
		}
		most -= n
	}
	return max(share, 1)
}

// removeExpired removes data past its retention: audit records, idempotency records,
// tasks and tokens.
func (c *plane) removeExpired(ctx context.Context) {
	every := time.NewTicker(time.Hour)
	defer every.Stop()
	for {
		keep := cmp.Or(c.cfg.KeepAudit, 365*24*time.Hour)
		if keep > 0 {
			if _, err := c.store.TrimAudit(ctx, keep); err != nil && ctx.Err() == nil {
				slog.Warn("cannot trim the audit log; will retry", "err", err)
			}
		}
		if keep > 0 {
			if err := forgetTokens(ctx, c.store, c.clock.Now().Add(-keep)); err != nil && ctx.Err() == nil {
				slog.Warn("cannot delete expired tokens; will retry", "err", err)
			}
		}
		if keep := cmp.Or(c.cfg.KeepTasks, 30*24*time.Hour); keep > 0 {
			if err := forgetTasks(ctx, c.store, c.clock.Now().Add(-keep)); err != nil && ctx.Err() == nil {
				slog.Warn("cannot delete old tasks; will retry", "err", err)
			}
		}
		if err := change.ForgetAnswers(ctx, c.store, c.clock.Now()); err != nil && ctx.Err() == nil {
			slog.Warn("cannot delete old idempotency records; will retry", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// forgetTasks removes ended tasks that were created before a time. Ids grow with
// time, so no search is needed.
func forgetTasks(ctx context.Context, st store.Store, before time.Time) error {
	ms := before.UnixMilli()
	q := store.Query{Kind: mariposa.KindTask, Before: fmt.Sprintf("%08x-%04x-7000-8000-000000000000", ms>>16, ms&0xffff), Limit: 500}
	for {
		old, err := st.List(ctx, q)
		if err != nil || len(old) == 0 {
			return err
		}
		var unit store.Unit
		for i := range old {
			if old[i].Archived {
				unit.Delete(mariposa.KindTask, old[i].ID, mariposa.Event{})
			}
		}
		if len(unit.Writes) > 0 {
			if err := st.Commit(ctx, unit)[0].Err; err != nil {
				return err
			}
		}
		q.Before = old[len(old)-1].ID
	}
}

// forgetTokens removes tokens that were revoked or expired before a time. From then on
// they are unknown rather than revoked or expired.
func forgetTokens(ctx context.Context, st store.Store, before time.Time) error {
	q := store.Query{Kind: mariposa.KindToken, Limit: 500}
	for {
		some, err := st.List(ctx, q)
		if err != nil || len(some) == 0 {
			return err
		}
		var unit store.Unit
		for i := range some {
			spec := some[i].Spec.(*mariposa.TokenSpec)
			if at := cmp.Or(spec.Revoked, spec.Expires); !at.IsZero() && at.Before(before) {
				unit.Delete(mariposa.KindToken, some[i].ID, mariposa.Event{})
			}
		}
		if len(unit.Writes) > 0 {
			if err := st.Commit(ctx, unit)[0].Err; err != nil {
				return err
			}
		}
		q.Before = some[len(some)-1].ID
	}
}

package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mariposa/store"
)

// newest lists the newest events, oldest first.
func (f *feed) newest(ctx context.Context) (*eventPage, error) {
	limit := f.pageSize()
	page := eventPage{revision: f.s.Picture.Revision()}
	found, before, err := f.scanBack(ctx, limit)
	if err != nil {
		return nil, err
	}
	if before > 0 && len(found) < limit {
		older, err := f.histories(ctx, before, limit-len(found))
		if err != nil {
			return nil, err
		}
		found = append(found, older...)
	}
	v := f.s.viewer(ctx)
	for i := range found { // the newest ones, if not all of them fit
		if page.isFull() {
			break
		}
		if err := page.add(v.event(&found[i])); err != nil {
			return nil, err
		}
	}
	slices.Reverse(page.events)
	if len(found) > 0 {
		page.revision = max(page.revision, found[0].Revision)
	}
	return &page, nil
}

// scanBack reads the newest changes until it has found enough that are included. If it
// stops early because it has read too many, before is the revision where it stopped;
// otherwise zero.
func (f *feed) scanBack(ctx context.Context, limit int) (found []store.Change, before int64, err error) {
	q, scanned := f.project, 0
	if q.Project == "" {
		if found, q.Before, scanned = f.scanRecent(limit); len(found) == limit {
			return found, 0, nil
		}
	}
	most := maxScanned
	if f.kinds != nil {
		most = maxOfKinds
	}
	q.Limit = limit // enough for callers who see most of the feed
	for ; ; q.Limit = max(limit, scanBatch) {
		if scanned >= most && q.Project == "" {
			return found, q.Before, nil
		}
		changes, err := f.s.Store.History(ctx, q)
		if err != nil {
			return nil, 0, err
		}
		for i := range changes {
			if f.isIncluded(&changes[i]) {
				if found = append(found, changes[i]); len(found) == limit {
					return found, 0, nil
				}
			}
			q.Before = changes[i].Revision
		}
		if len(changes) < q.Limit {
			return found, 0, nil
		}
		scanned += len(changes)
	}
}

// scanRecent finds the newest changes among those that the picture has. before is the revision
// of the oldest of these.
func (f *feed) scanRecent(limit int) (found []store.Change, before int64, scanned int) {
	batches, from := f.s.Picture.Recent()
	for _, batch := range slices.Backward(batches) {
		for i := len(batch) - 1; i >= 0; i-- {
			if f.isIncluded(&batch[i]) {
				if found = append(found, batch[i]); len(found) == limit {
					return found, 0, 0
				}
			}
		}
		scanned += len(batch)
	}
	if scanned == 0 {
		return nil, 0, 0 // the newest are in the store
	}
	return found, from + 1, scanned
}

// histories returns the newest changes before a revision from the histories of the projects
// that the caller can see, newest first.
func (f *feed) histories(ctx context.Context, before int64, limit int) ([]store.Change, error) {
	if f.organization == "" && f.visible.all {
		return nil, nil // the scan was complete
	}
	projects, err := f.s.projectsFor(ctx, f.organization)
	if err != nil {
		return nil, err
	}
	var found []store.Change
	for _, p := range projects[max(0, len(projects)-maxHistories):] { // the newest ones
		changes, err := f.s.Store.History(ctx, store.HistoryQuery{Project: p.ID, Before: before, Limit: limit})
		if err != nil {
			return nil, err
		}
		found = append(found, slices.DeleteFunc(changes, func(c store.Change) bool { return !f.isIncluded(&c) })...)
	}
	slices.SortFunc(found, func(a, b store.Change) int { return cmp.Compare(b.Revision, a.Revision) })
	found = slices.CompactFunc(found, func(a, b store.Change) bool { return a.Revision == b.Revision }) // a change may belong to two histories
	return found[:min(limit, len(found))], nil
}

// list lists the events after a revision. It ends early, and sets More, if the page is full,
// if it has read too many changes, or has searched too long without finding an event for the
// caller.
func (f *feed) list(ctx context.Context) (*eventPage, error) {
	limit := f.pageSize()
	page := eventPage{}
	v := f.s.viewer(ctx)
	began, scanned := time.Now(), 0
	for {
		changes, err := f.s.Store.Changes(ctx, f.after, scanBatch)
		if err != nil {
			return nil, err
		}
		for i := range changes {
			f.after = changes[i].Revision
			if f.isIncluded(&changes[i]) {
				if err := page.add(v.event(&changes[i])); err != nil {
					return nil, err
				}
			}
			if len(page.events) == limit || page.isFull() {
				break
			}
		}
		scanned += len(changes)
		tooMany := scanned >= maxScanned && (len(page.events) > 0 || time.Since(began) > scanTime) // clients take an empty page for the last one
		full := len(page.events) == limit || page.isFull()
		if full || len(changes) < scanBatch || tooMany {
			page.revision, page.more = f.after, full || len(changes) == scanBatch
			return &page, nil
		}
	}
}

// older lists the newest events before a revision and after another one, oldest first. It ends
// early if it has read too many changes: callers who need more continue from its before.
func (f *feed) older(ctx context.Context) (*eventPage, error) {
	limit := f.pageSize()
	page := eventPage{revision: min(f.before-1, f.s.Picture.Revision())}
	q, v := f.project, f.s.viewer(ctx)
	q.Before, q.Limit = f.before, limit
	for scanned := 0; scanned < maxScanned && len(page.events) < limit && !page.isFull(); q.Limit = max(limit, scanBatch) {
		changes, err := f.s.Store.History(ctx, q)
		if err != nil {
			return nil, err
		}
		scanned += len(changes)
		for i := range changes {
			c := &changes[i]
			if c.Revision <= f.after {
				q.Before = 0
				break
			}
			if q.Before = c.Revision; !f.isIncluded(c) {
				continue
			}
			if err := page.add(v.event(c)); err != nil {
				return nil, err
			}
			if len(page.events) == limit || page.isFull() {
				break
			}
		}
		if q.Before == 0 || len(changes) < q.Limit && len(page.events) < limit && !page.isFull() {
			q.Before = 0 // there are no older ones
			break
		}
	}
	page.before = q.Before
	slices.Reverse(page.events)
	return &page, nil
}

func (f *feed) pageSize() int {
	if f.limit == 0 {
		return 100
	}
	return f.limit
}

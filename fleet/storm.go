package fleet

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"mariposa"
	"mariposa/pace"
	"mariposa/picture"
	"mariposa/store"
)

// watchStorm stores when rescheduling stops because many nodes were lost at once, and when
// it continues. Every planner decides the same from the same state (pace.JudgeWeather); the
// record makes the decision last until most of the nodes are back, and is the event that
// people see.
func (f *Fleet) watchStorm(ctx context.Context) {
	r := f.Picture.Settings.Get(mariposa.SettingsID)
	was, is := picture.StormOf(r), f.Picture.Weather(f.StormBreaker)
	if was != nil && is.Storm != nil && !was.Since.Equal(is.Storm.Since) {
		is.Storm = nil // another one: this one ends now, and that one begins with the next tick
	}
	if (was == nil) == (is.Storm == nil) || was == nil && !f.allAreNoticed(is) {
		return
	}
	var unit store.Unit
	w := store.Write{Kind: mariposa.KindSettings, ID: mariposa.SettingsID, Status: &mariposa.SettingsStatus{Storm: is.Storm}}
	if storm := is.Storm; storm != nil {
		w.Event = mariposa.Event{Kind: "nodes.storm_began", Actor: "mariposa", Reason: &mariposa.Reason{Code: mariposa.ReasonStormBegan, Count: storm.Count, Of: storm.Of, Since: storm.Since}}
		slog.Warn("many nodes were lost at once; their instances are not rescheduled until they return", "lost", storm.Count, "of", storm.Of)
	} else {
		lost := f.countLost(was.Since)
		w.Event = mariposa.Event{Kind: "nodes.storm_ended", Actor: "mariposa", Reason: &mariposa.Reason{Code: mariposa.ReasonStormEnded, Count: lost}}
		slog.Info("rescheduling continues", "lost", lost)
	}
	if r != nil {
		unit.StatusUnchanged(r)
		unit.Unchanged(r)
	} else {
		unit.Absent(mariposa.KindSettings, mariposa.SettingsID)
		w.Spec = &mariposa.SettingsSpec{}
	}
	unit.Put(w)
	if res := f.Store.Commit(ctx, unit)[0]; res.Err != nil && !errors.Is(res.Err, store.ErrConflict) {
		slog.Warn("cannot store that many nodes were lost; retrying", "err", res.Err)
	}
}

// allAreNoticed reports whether a storm has lasted long enough to tell how many nodes it
// is about: those that vanish at the same moment are noticed one after another, within a
// heartbeat interval. If they never stop, it is told anyway.
func (f *Fleet) allAreNoticed(w pace.Weather) bool {
	now := f.Clock.Now()
	if now.Sub(w.Storm.Since) > pace.StormWindow {
		return true
	}
	for id := range w.Held {
		if r := f.Picture.Nodes.Get(id); r != nil && now.Sub(r.Status().Since) <= f.Beat+f.tickInterval() {
			return false
		}
	}
	return true
}

// countLost counts the nodes with instances that have been lost since a time.
func (f *Fleet) countLost(since time.Time) (n int) {
	for _, r := range f.Picture.Nodes.All() {
		if s := r.Status(); s != nil && s.State == mariposa.NodeUnknown && !s.Since.Before(since) && r.Spec().Approval == "" && f.Picture.HasInstances(r.ID) {
			n++
		}
	}
	return n
}

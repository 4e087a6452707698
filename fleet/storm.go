package fleet

import (
	"context"
	"errors"
	"log/slog"

	"mariposa"
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
	if (was == nil) == (is.Storm == nil) && (was == nil || was.Since.Equal(is.Storm.Since)) {
		return
	}
	var unit store.Unit
	st := mariposa.SettingsStatus{}
	w := store.Write{Kind: mariposa.KindSettings, ID: mariposa.SettingsID, Status: &st}
	if is.Storm != nil {
		storm := *is.Storm
		storm.Began = f.Clock.Now()
		st.Storm = &storm
		w.Event = mariposa.Event{Kind: "nodes.storm_began", Actor: "mariposa", Reason: &mariposa.Reason{Code: mariposa.ReasonStormBegan, Count: storm.Count, Of: storm.Of, Since: storm.Since}}
		slog.Warn("many nodes were lost at once; their instances are not rescheduled until they return", "lost", storm.Count, "of", storm.Of)
	} else {
		lost := 0
		for _, n := range f.Picture.Nodes.All() {
			if s := n.Status(); s != nil && s.State == mariposa.NodeUnknown && !s.Since.Before(was.Since) && n.Spec().Approval == "" {
				lost++
			}
		}
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

package engine

import (
	"maps"
	"slices"

	"mariposa"
	"mariposa/store"
)

// Each service has its own record: if one of ten thousand changes, only that one is
// written.

// writeServices stores the services that have changed, and removes those that no longer
// exist.
func (t *turn) writeServices(are map[string]*mariposa.ServiceStatus) {
	var was map[string]*mariposa.ServiceStatus
	if t.stored != nil && !t.inline {
		was = t.stored.Services
	}
	for _, name := range t.changedServices() {
		is := are[name]
		switch {
		case is == nil && was[name] != nil:
			t.removeService(name)
		case is != nil && is != was[name] && !same(was[name], is):
			t.writeService(name, was[name], is)
		}
	}
}

// changedServices lists the services that may have changed, sorted. Unless a
// task has changed the goal, only those that the plan changed are compared:
// there may be very many.
func (t *turn) changedServices() []string {
	names := map[string]bool{}
	add := func(all map[string]*mariposa.ServiceStatus) {
		for name := range all {
			names[name] = true
		}
	}
	add(t.plan.Services)
	for _, name := range t.plan.Ended {
		names[name] = true
	}
	if t.inline || t.goal != t.stored {
		add(t.goal.Services)
		if t.stored != nil {
			add(t.stored.Services)
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (t *turn) writeService(name string, was, is *mariposa.ServiceStatus) {
	w := store.Write{Kind: mariposa.KindService, ID: mariposa.ServiceID(t.project, name), Project: t.project, Status: is}
	if was == nil {
		w.Spec = &mariposa.ServiceSpec{Project: t.project, Name: name}
	}
	if was == nil || was.Status != is.Status {
		w.Event = mariposa.Event{Kind: "service." + string(is.Status), Project: t.project, Service: name, Actor: "mariposa", Reason: is.Reason}
	}
	t.unit.Put(w)
}

func (t *turn) removeService(name string) {
	t.unit.Delete(mariposa.KindService, mariposa.ServiceID(t.project, name), mariposa.Event{Kind: "service.removed", Project: t.project, Service: name, Actor: "mariposa"})
}

// sameExceptServices reports whether two statuses of a project differ at most
// in their services.
func sameExceptServices(a, b *mariposa.ProjectStatus) bool {
	x, y := *a, *b
	x.Services, y.Services = nil, nil
	return same(x, y)
}

package engine

import (
	"testing"

	"mariposa"
)

// The status of a project is that of its worst service. Services that are frozen or paused
// do not hide that another one converges.
func TestTheStatusOfAProjectIsThatOfItsWorstService(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		services []mariposa.Status
		want     mariposa.Status
	}{
		{[]mariposa.Status{mariposa.StatusFrozen, mariposa.StatusFrozen}, mariposa.StatusFrozen},
		{[]mariposa.Status{mariposa.StatusFrozen, mariposa.StatusConverged}, mariposa.StatusFrozen},
		{[]mariposa.Status{mariposa.StatusFrozen, mariposa.StatusConverging}, mariposa.StatusConverging},
		{[]mariposa.Status{mariposa.StatusPaused, mariposa.StatusConverging}, mariposa.StatusConverging},
		{[]mariposa.Status{mariposa.StatusPaused, mariposa.StatusFrozen}, mariposa.StatusPaused},
		{[]mariposa.Status{mariposa.StatusHeld, mariposa.StatusConverging, mariposa.StatusFrozen}, mariposa.StatusHeld},
	} {
		st := &mariposa.ProjectStatus{Services: map[string]*mariposa.ServiceStatus{}}
		for n, status := range c.services {
			st.Services[string(rune('a'+n))] = &mariposa.ServiceStatus{Status: status, Reason: &mariposa.Reason{Code: mariposa.ReasonFrozen}}
		}
		if got, _ := projectStatus(st, 0); got != c.want {
			t.Errorf("%v: %s instead of %s", c.services, got, c.want)
		}
	}
}

package change

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
)

// MaxScale bounds a service, so that a slip of a finger is caught.
const MaxScale = 1_000_000

// Scaling is what is asked of one service's scale: a number, or a difference.
type Scaling struct {
	N  int
	By bool
}

func (c Scaling) String() string {
	if c.By {
		return fmt.Sprintf("by %+d", c.N)
	}
	return fmt.Sprintf("to %d", c.N)
}

// scale changes the scales of services in one task.
func (e *edit) scale(scales map[string]Scaling) (*mariposa.TaskSpec, error) {
	if err := e.something(); err != nil {
		return nil, err
	}
	goals := e.goals()
	t := &mariposa.TaskSpec{Task: mariposa.TaskScale, Component: "project", Version: e.spec.Version, Lifts: e.lifts(), Before: map[string]int{}}
	same, said := true, []string(nil)
	for _, ref := range slices.Sorted(maps.Keys(scales)) {
		name, err := e.findService(goals, ref)
		if err != nil {
			return nil, err
		}
		if slices.Contains(t.Services, name) {
			return nil, invalid("scale: %s is named twice", name)
		}
		ask, now := scales[ref], goals[name].Scale
		will := ask.N
		if ask.By {
			will += now
		}
		if will < 0 || will > MaxScale {
			return nil, invalid("scale: %s would be scaled from %d to %d; it must stay between 0 and %d", name, now, will, MaxScale)
		}
		t.Before[name] = now
		ask.into(&t.Patch, name)
		t.Services, said, same = append(t.Services, name), append(said, name+" "+ask.String()), same && will == now
	}
	if same && e.idle(t.Services) && !e.any(t.Services, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) {
		return nil, nil
	}
	t.Reason = mariposa.Asked(e.req.actor() + " scaled " + strings.Join(said, ", "))
	return t, nil
}

func (c Scaling) into(p *mariposa.Patch, service string) {
	at := &p.Scale
	if c.By {
		at = &p.ScaleBy
	}
	if *at == nil {
		*at = map[string]int{}
	}
	(*at)[service] = c.N
}

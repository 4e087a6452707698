package change

import (
	"fmt"
	"maps"
	"slices"

	"mariposa"
	"mariposa/converge"
	"mariposa/place"
	"mariposa/reason"
)

// Trying makes a copy of what is known of nodes and claims, from which some instances
// can be released.
type Trying func(instances []string) *place.Placer

// rehearsal finds out which steps of a plan no node would take as things are. The plan
// itself knows no nodes.
type rehearsal struct {
	view  *converge.View
	goal  *mariposa.ProjectStatus
	names []string // of what would be made, in the order of the steps
}

// name names what a step would make.
func (r *rehearsal) name(service string, slot int) string {
	r.names = append(r.names, fmt.Sprintf("%s.%d#%d", service, slot, len(r.names)+1))
	return r.names[len(r.names)-1]
}

// refusal is what is said of the creates of one service that no node takes.
type refusal struct {
	slot int
	why  *mariposa.Reason
	more int
}

// play goes through the steps on a stage, and says of each service for what of it there
// is no place. What goes in one plan makes room for what comes in it; where volumes
// are is not looked at.
func (r *rehearsal) play(steps []converge.Foreseen, stage *place.Placer) []string {
	refused := map[string]*refusal{}
	made := 0
	for len(steps) > 0 {
		end := slices.IndexFunc(steps, func(s converge.Foreseen) bool { return s.Round != steps[0].Round })
		if end < 0 {
			end = len(steps)
		}
		for _, s := range steps[:end] {
			if s.Action == converge.Remove || s.Action == converge.Keep || s.Action == converge.Collect {
				stage.Release(s.Instance)
			}
		}
		for _, s := range steps[:end] {
			if s.Action != converge.Create || made >= len(r.names) { // beyond what was carried out
				continue
			}
			r.enter(s, r.names[made], stage, refused)
			made++
		}
		steps = steps[end:]
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		f := refused[name]
		all = append(all, fmt.Sprintf("%s: %s.%d would have to wait: %s", name, name, f.slot, reason.Sentence(f.why.AndMore(f.more))))
	}
	return all
}

// enter looks for a place for one instance. Where one of a service finds none, the
// others are not asked for.
func (r *rehearsal) enter(s converge.Foreseen, name string, stage *place.Placer, refused map[string]*refusal) {
	if f := refused[s.Service]; f != nil {
		f.more++
		return
	}
	def, ss := r.view.Definition(s.Number, s.Service), r.goal.Services[s.Service]
	if def == nil || ss == nil {
		return
	}
	take := mariposa.Resources{Instances: 1, MilliCPU: def.MilliCPU, Memory: def.Memory}
	if _, why := stage.Pick(name, place.Need{Service: ss.ID, Compute: def.Compute, Take: take, Ports: def.FixedPorts()}); why != nil {
		refused[s.Service] = &refusal{slot: s.Slot, why: why}
	}
}

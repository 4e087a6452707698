package change

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/picture"
	"mariposa/place"
	"mariposa/reason"
	"mariposa/store"
)

// maxListedMoves bounds the list in the answer to a dry run.
const maxListedMoves = 1000

// forecastDrain says what a drain would move, where to, and what it would leave.
func (c *Changer) forecastDrain(ctx context.Context, r *store.Node, force bool) (*contract.DrainForecast, error) {
	trial, err := c.planDrain(ctx, r)
	if err != nil {
		return nil, err
	}
	doc := &contract.DrainForecast{Moves: []contract.DrainMove{}, Stays: []contract.DrainMove{}}
	nodes, all := c.Picture.Nodes, c.Picture.WouldStayOn(r, func(id string) []*mariposa.ServiceStatus { return trial.stuck[id] })
	trial.run(all)
	for _, s := range all {
		spec, project := s.Spec(), ""
		if p := c.Picture.Projects.Get(s.Spec().Project); p != nil {
			project = p.Spec().Name
		}
		move := contract.DrainMove{Instance: s.ID, Name: spec.Name, Project: spec.Project, ProjectName: project, ServiceName: spec.ServiceName}
		why := s.Why
		if s.Moves() {
			why = nil
		}
		if why.Is(mariposa.ReasonDrainUnmanaged) && force {
			move.Removed, why = true, nil
		}
		if why == nil && !move.Removed && spec.Goal != mariposa.GoalGone {
			to, refused := trial.placeOf(s)
			if move.To = to.ID; refused == nil {
				move.ToName = nodes.Get(to.ID).Spec().Name
			}
			why = refused
		}
		if why != nil {
			move.Reason, move.ReasonCode = reason.At(why, c.Clock.Now()), why.Code
			doc.Stays = append(doc.Stays, move)
			continue
		}
		doc.Moves = append(doc.Moves, move)
	}
	doc.Complete = len(doc.Stays) == 0
	byName := func(x, y contract.DrainMove) int {
		return strings.Compare(x.ProjectName+"/"+x.Name, y.ProjectName+"/"+y.Name)
	}
	slices.SortFunc(doc.Moves, byName)
	slices.SortFunc(doc.Stays, byName)
	doc.Total = len(doc.Moves) + len(doc.Stays)
	doc.Moves, doc.Stays = doc.Moves[:min(len(doc.Moves), maxListedMoves)], doc.Stays[:min(len(doc.Stays), maxListedMoves)]
	return doc, nil
}

// drainTrial plays the plans of all projects with instances on a node, as if it were
// drained, through a copy of the placer.
type drainTrial struct {
	stage *place.Placer
	plans []drainPlan
	// stuck has, by instance, the statuses of its service in which the plan had nothing to do
	// and the instance was still there: it may wait for a lost node, for example.
	stuck map[string][]*mariposa.ServiceStatus
	// places are those of the successors, by slot.
	places map[slotKey]drainPlace
}

// drainPlan is what the plan of one project would do.
type drainPlan struct {
	view  *converge.View
	goal  *mariposa.ProjectStatus
	steps []converge.ForecastStep
}

// drainPlace is the node that would take an instance, or why none does.
type drainPlace struct {
	node    place.Node
	refused *mariposa.Reason
}

// planDrain plans ahead, as if a node were drained, for all projects with instances on it.
func (c *Changer) planDrain(ctx context.Context, r *store.Node) (*drainTrial, error) {
	t := &drainTrial{stuck: map[string][]*mariposa.ServiceStatus{}, places: map[slotKey]drainPlace{}}
	var instances []string
	seen := map[string]bool{}
	for _, i := range c.Picture.InstancesOn(r.ID) {
		id := i.Spec().Project
		p := c.Picture.Projects.Get(id)
		if seen[id] || p == nil || p.Status() == nil {
			continue
		}
		seen[id] = true
		c.Picture.EachInstanceOf(id, func(r *store.Instance) bool {
			instances = append(instances, r.ID)
			return true
		})
		view, err := c.view(id, p.Status(), func(n int) (converge.Definitions, error) { return c.definitions(ctx, id, n) })
		if err != nil {
			return nil, err
		}
		node := picture.NodeOf(r)
		node.Draining = true
		view.SetNode(r.ID, node)
		view.SetProject(p.Spec().Name)
		ahead := view.Forecast(converge.ForecastOptions{Now: c.Clock.Now(), Steps: maxForecastSteps, Stuck: func(i *converge.Instance, ss *mariposa.ServiceStatus) {
			if all := t.stuck[i.ID]; i.Spec.Node == r.ID && (len(all) == 0 || all[len(all)-1] != ss) {
				t.stuck[i.ID] = append(t.stuck[i.ID], ss)
			}
		}})
		t.plans = append(t.plans, drainPlan{view, p.Status(), ahead.Steps})
	}
	t.stage = c.Trial(instances) // with the instances that a service has elsewhere: it is spread
	t.stage.RemoveNode(r.ID)
	return t, nil
}

// run places what the plans create, in their order, one project after the other. It notes
// where the successors of some instances would be.
func (t *drainTrial) run(moved []picture.Staying) {
	awaited := map[slotKey]bool{}
	for _, s := range moved {
		awaited[slotKey{s.Spec().Service, s.Spec().Slot}] = s.Spec().Service != ""
	}
	made := 0
	for _, p := range t.plans {
		for _, s := range p.steps {
			switch s.Action {
			case converge.Remove, converge.Preserve, converge.Collect:
				t.stage.Release(s.Instance)
			case converge.Create:
				def, ss := p.view.Definition(s.Number, s.Service), p.goal.Services[s.Service]
				if def == nil || ss == nil {
					continue
				}
				made++
				var to drainPlace
				to.node, to.refused = t.stage.Pick(fmt.Sprintf("created/%d", made), needOf(ss.ID, def))
				if key := (slotKey{ss.ID, s.Slot}); awaited[key] {
					t.places[key] = to
					delete(awaited, key) // what follows it in its slot is another change
				}
			}
		}
	}
}

// placeOf returns where the successor of an instance would be.
func (t *drainTrial) placeOf(s picture.Staying) (place.Node, *mariposa.Reason) {
	spec := s.Spec()
	if to, known := t.places[slotKey{spec.Service, spec.Slot}]; known {
		return to.node, to.refused
	}
	// The plan is too long, or has no step for it yet.
	return t.stage.Pick(s.ID+"/moved", place.Need{Service: spec.Service, Compute: spec.Compute, Ports: spec.Ports, Take: spec.Resources()})
}

// needOf returns what an instance with a definition needs of a node.
func needOf(service string, def *mariposa.Service) place.Need {
	return place.Need{
		Service: service, Compute: def.Compute, Ports: def.FixedPorts(),
		Take: mariposa.Resources{Instances: 1, MilliCPU: def.MilliCPU, Memory: def.Memory},
	}
}

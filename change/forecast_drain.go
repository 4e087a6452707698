package change

import (
	"context"
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
	stuck, err := c.findStuck(ctx, r)
	if err != nil {
		return nil, err
	}
	doc := &contract.DrainForecast{Moves: []contract.DrainMove{}, Stays: []contract.DrainMove{}}
	stage := c.Trial(nil)
	stage.RemoveNode(r.ID)
	nodes := c.Picture.Nodes
	for _, s := range c.Picture.WouldStayOn(r, func(id string) []*mariposa.ServiceStatus { return stuck[id] }) {
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
			need := place.Need{Service: spec.Service, Compute: spec.Compute, Ports: spec.Ports, Take: spec.Resources()}
			to, refused := stage.Pick(s.ID+"/moved", need)
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

// findStuck plans ahead, as if a node were drained, for all projects with instances on it.
// It returns, by instance, the statuses of its service in which the plan had nothing to do
// and the instance was still there: it may wait for a lost node, for example.
func (c *Changer) findStuck(ctx context.Context, r *store.Node) (map[string][]*mariposa.ServiceStatus, error) {
	stuck, seen := map[string][]*mariposa.ServiceStatus{}, map[string]bool{}
	for _, i := range c.Picture.InstancesOn(r.ID) {
		id := i.Spec().Project
		p := c.Picture.Projects.Get(id)
		if seen[id] || p == nil || p.Status() == nil {
			continue
		}
		seen[id] = true
		view, err := c.view(id, p.Status(), func(n int) (converge.Definitions, error) { return c.definitions(ctx, id, n) })
		if err != nil {
			return nil, err
		}
		node := picture.NodeOf(r)
		node.Draining = true
		view.SetNode(r.ID, node)
		view.SetProject(p.Spec().Name)
		view.Forecast(converge.ForecastOptions{Now: c.Clock.Now(), Steps: maxForecastSteps, Stuck: func(i *converge.Instance, ss *mariposa.ServiceStatus) {
			if all := stuck[i.ID]; i.Spec.Node == r.ID && (len(all) == 0 || all[len(all)-1] != ss) {
				stuck[i.ID] = append(stuck[i.ID], ss)
			}
		}})
	}
	return stuck, nil
}

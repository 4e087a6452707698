package api

import (
	"context"
	"maps"
	"slices"
	"time"

	"mariposa/contract"
	"mariposa/history"
)

// LastMinutes is how far back a history is read.
type LastMinutes struct {
	Minutes int `query:"minutes" default:"60" minimum:"1" maximum:"360" doc:"how far back to read"`
}

type projectHistoryInput struct {
	OfProject
	LastMinutes
}

func (s *server) getProjectHistory(ctx context.Context, in *projectHistoryInput) (*document[contract.ProjectHistory], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	w := s.History.Window(time.Duration(in.Minutes) * time.Minute)
	all := s.History.Project(r.ID, w)
	doc := contract.ProjectHistory{HistoryWindow: window(w), Project: r.ID, ProjectName: r.Spec().Name, Services: []contract.ServiceHistory{}}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		values := all[name]
		doc.Services = append(doc.Services, contract.ServiceHistory{
			Name: name, Goal: column(values, func(v *history.Service) *int { return &v.Goal }), Running: column(values, func(v *history.Service) *int { return &v.Running }),
			Starts: column(values, func(v *history.Service) *int { return &v.Starts }), Failures: column(values, func(v *history.Service) *int { return &v.Failures }),
		})
	}
	return answer(doc)
}

type nodeHistoryInput struct {
	Node string `path:"node" doc:"id or name" maxLength:"255"`
	LastMinutes
}

func (s *server) getNodeHistory(_ context.Context, in *nodeHistoryInput) (*document[contract.NodeHistory], error) {
	r, err := s.findNode(in.Node)
	if err != nil {
		return nil, err
	}
	w := s.History.Window(time.Duration(in.Minutes) * time.Minute)
	values := s.History.Node(r.ID, w)
	return answer(contract.NodeHistory{
		HistoryWindow: window(w), Node: r.ID, NodeName: r.Spec().Name,
		Instances: column(values, func(v *history.Node) *int { return &v.Instances }),
		MilliCPU:  column(values, func(v *history.Node) *int64 { return &v.MilliCPU }), Memory: column(values, func(v *history.Node) *int64 { return &v.Memory }),
	})
}

func window(w history.Window) contract.HistoryWindow {
	return contract.HistoryWindow{From: w.From, IntervalSecs: int(w.Step / time.Second), Since: w.Since}
}

// column returns one number of each value; nil: not known.
func column[V, N any](values []*V, of func(*V) *N) []*N {
	out := make([]*N, len(values))
	for i, v := range values {
		if v != nil {
			out[i] = of(v)
		}
	}
	return out
}

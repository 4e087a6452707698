package api

import (
	"context"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
)

func (s *server) listAllServices(ctx context.Context, in *InProject) (*document[contract.Services], error) {
	if in.Project != "" {
		return s.listServices(ctx, &OfProject{Project: in.Project, Organization: in.Organization})
	}
	projects, err := s.projectsFor(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Services{Services: []contract.Service{}}
	for _, r := range projects {
		if st, ok := s.projectState(v, r.ID); ok {
			all.Services = append(all.Services, v.serviceDocs(st)...)
		}
	}
	return answer(all)
}

func (s *server) listServices(ctx context.Context, in *OfProject) (*document[contract.Services], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	st, _ := s.projectState(v, r.ID)
	return answer(contract.Services{Services: v.serviceDocs(st)})
}

func (s *server) getService(ctx context.Context, in *OfService) (*document[contract.Service], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	st, _ := s.projectState(v, r.ID)
	for _, doc := range v.serviceDocs(narrowToService(st, in.Service)) {
		return answer(doc)
	}
	return nil, unknownService(st, in.Service)
}

// serviceDocs shows the services of a state with their definitions in force.
func (v *viewer) serviceDocs(st contract.ProjectState) []contract.Service {
	docs := []contract.Service{}
	record := v.projectRecord(st.ID)
	if record == nil {
		return docs
	}
	goals := v.goals(record)
	for _, one := range st.Services {
		doc := contract.Service{Project: st.ID, ProjectName: st.Name, ServiceState: one, DependsOn: []string{}, References: []contract.Reference{}}
		if ss := goals[one.Name]; ss != nil {
			if def := v.definition(st.ID, ss.Number, one.Name); def != nil {
				doc.ComputeType, doc.Image, doc.DependsOn = def.Compute, def.Image, neverNil(def.DependsOn)
			}
			doc.References = references(ss.Bindings)
		}
		docs = append(docs, doc)
	}
	return docs
}

// references shows the bindings of a service, without environment variables: only their
// digest is stored.
func references(b *mariposa.Bindings) []contract.Reference {
	out := []contract.Reference{}
	if b == nil {
		return out
	}
	for _, on := range slices.Sorted(maps.Keys(b.To)) {
		to := b.To[on]
		ref := contract.Reference{Service: on, Instance: to.Instance, InstanceName: to.Name, Values: map[string]string{}}
		for field, value := range to.Values {
			if !strings.HasPrefix(field, "environment.") {
				ref.Values[field] = value
			}
		}
		out = append(out, ref)
	}
	return out
}

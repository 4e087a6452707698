package api

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// discover lists running instances with ports as Prometheus reads them. Unhealthy ones are among
// them: they are to be watched too.
func (s *server) discover(ctx context.Context, in *InProject) (*document[[]contract.DiscoveryTarget], error) {
	projects, err := s.projectsFor(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	if in.Project != "" {
		r, err := s.findProject(ctx, in.Project, in.Organization)
		if err != nil {
			return nil, err
		}
		projects = []*store.Project{r}
	}
	all := []contract.DiscoveryTarget{}
	v := s.viewer(ctx)
	for _, p := range projects {
		organization := v.orgName(p.Spec().Organization)
		for _, r := range s.Picture.InstancesOf(p.ID) {
			if t := discoveryTarget(r); t != nil {
				t.Labels["__meta_mariposa_organization"], t.Labels["__meta_mariposa_project"] = organization, p.Spec().Name
				if n := v.nodeRecord(r.Spec().Node); n != nil {
					t.Labels["__meta_mariposa_node"], t.Labels["__meta_mariposa_rack"], t.Labels["__meta_mariposa_dc"] = n.Spec().Name, n.Spec().Rack, n.Spec().DC
				}
				all = append(all, *t)
			}
		}
	}
	slices.SortFunc(all, func(a, b contract.DiscoveryTarget) int {
		return cmp.Compare(a.Labels["__meta_mariposa_instance_id"], b.Labels["__meta_mariposa_instance_id"])
	})
	return answer(all)
}

// discoveryTarget returns an instance as a target; nil if it does not run or has no ports.
func discoveryTarget(r *store.Instance) *contract.DiscoveryTarget {
	spec, st := r.Spec(), r.Status()
	if st == nil || st.State != mariposa.StateRunning {
		return nil
	}
	t := &contract.DiscoveryTarget{Labels: map[string]string{
		"__meta_mariposa_instance": spec.Name, "__meta_mariposa_instance_id": r.ID, "__meta_mariposa_compute_type": string(spec.Compute),
		"__meta_mariposa_health": string(cmp.Or(st.Health, mariposa.HealthUnknown)),
	}}
	if spec.Managed {
		t.Labels["__meta_mariposa_service"], t.Labels["__meta_mariposa_slot"] = spec.ServiceName, strconv.Itoa(spec.Slot)
	}
	for _, a := range st.Addresses {
		if _, port := mariposa.SplitAddress(a); port != "" {
			t.Targets = append(t.Targets, a)
		}
	}
	if len(t.Targets) == 0 {
		return nil
	}
	return t
}

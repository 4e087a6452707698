package picture

import (
	"maps"

	"mariposa"
	"mariposa/store"
)

// Each service of a project is a separate record, so that changing one of ten thousand
// services writes only one record. Readers need them together, so the picture joins them
// into the status of their project, once per batch of changes.

// markUnjoined marks the status of a project for joining.
func (p *Picture) markUnjoined(r *store.Record) {
	switch spec := r.Spec.(type) {
	case *mariposa.ProjectSpec:
		if _, marked := p.unjoined[r.ID]; !marked {
			p.unjoined[r.ID] = nil
		}
	case *mariposa.ServiceSpec:
		p.unjoined[spec.Project] = append(p.unjoined[spec.Project], spec.Name)
	}
}

// joinServices joins the services into the statuses of their projects.
func (p *Picture) joinServices() {
	for id, changed := range p.unjoined {
		if r := p.Projects.at(id); r == nil {
			delete(p.statuses, id)
		} else if !p.inline(r) {
			p.joinProject(r, changed)
		}
	}
	clear(p.unjoined)
}

func (p *Picture) joinProject(r *store.Project, changed []string) {
	if p.statuses[r.ID] == nil {
		for id := range p.services[r.ID] {
			changed = append(changed, p.Services.at(id).Spec().Name)
		}
	}
	if len(changed) > 0 {
		p.statuses[r.ID] = p.servicesOf(r.ID, changed)
	}
	st := r.Status()
	if all := p.statuses[r.ID]; st != nil && len(all)+len(st.Services) > 0 {
		whole, record := *st, *r.Record()
		if record.Status = &whole; len(all) == 0 {
			all = nil // as in a new picture
		}
		whole.Services = all
		p.records[mariposa.KindProject][r.ID] = &record
	}
}

// servicesOf returns the services of a project by name after some of them changed.
func (p *Picture) servicesOf(project string, changed []string) map[string]*mariposa.ServiceStatus {
	all := maps.Clone(p.statuses[project])
	if all == nil {
		all = map[string]*mariposa.ServiceStatus{}
	}
	for _, name := range changed {
		delete(all, name)
		if st := p.Services.at(mariposa.ServiceID(project, name)).Status(); st != nil {
			all[name] = st
		}
	}
	return all
}

// inline reports whether a project comes from an older store, where its services were
// part of its own status.
func (p *Picture) inline(r *store.Project) bool {
	if r == nil || len(p.services[r.ID]) > 0 || p.statuses[r.ID] != nil {
		return false
	}
	st := r.Status()
	return st != nil && len(st.Services) > 0
}

package fleet

import (
	"maps"
	"slices"
	"sync"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// A node with a DNS server is told the names that instances on it may ask for: those of their own
// projects, and of projects that share a network with these. It gets changes only; how many
// there are in the meantime makes no difference, because each step sends the newest state.

// namesSent is how much a node knows of the names of projects.
type namesSent struct {
	mu      sync.Mutex
	numbers map[string]int64 // of the book, by project
	begun   bool             // the snapshot was sent
	ended   bool
}

// nameReaders are the sessions that tell their nodes the names of each project.
type nameReaders struct {
	mu  sync.Mutex
	all map[string]map[*Session]bool
}

func (r *nameReaders) add(project string, s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]map[*Session]bool{}
	}
	if r.all[project] == nil {
		r.all[project] = map[*Session]bool{}
	}
	r.all[project][s] = true
}

func (r *nameReaders) remove(project string, s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.all[project], s); len(r.all[project]) == 0 {
		delete(r.all, project)
	}
}

// of returns the sessions that tell the names of any of some projects.
func (r *nameReaders) of(projects map[string]bool) map[*Session]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[*Session]bool{}
	for id := range projects {
		maps.Copy(found, r.all[id])
	}
	return found
}

// routeNames tells sessions that names have changed which they tell their nodes.
func (f *Fleet) routeNames(changes []store.Change) {
	if f.Names == nil {
		return
	}
	projects := map[string]bool{}
	for _, id := range f.Names.Apply(changes) {
		projects[id] = true
	}
	for i := range changes { // a project that joins a network can be asked for by the others there
		if spec, ok := changes[i].Record.Spec.(*mariposa.NetworkSpec); ok {
			for _, id := range spec.Projects() {
				projects[id] = true
			}
		}
	}
	if len(projects) == 0 {
		return
	}
	for s := range f.nameReaders.of(projects) {
		s.inbox.Put(message{names: true})
	}
}

// updateNames tells the node about names if they may have changed, or if its instances have.
func (s *Session) updateNames(names bool, instances []store.Change) {
	if names || len(instances) > 0 {
		s.sendNames()
	}
}

// sendNames tells the node what has changed in the names that it may know.
func (s *Session) sendNames() {
	if s.f.Names == nil || !s.hello.Names {
		return
	}
	want := s.namedProjects()
	t := &s.names
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	if t.numbers == nil {
		t.numbers = map[string]int64{}
	}
	var projects []wire.ProjectNames
	var gone []string
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if _, known := t.numbers[id]; !known {
			s.f.Names.Hold(id)
			s.f.nameReaders.add(id, s)
			t.numbers[id] = 0
		}
		n, next, changed := s.f.Names.Since(id, t.numbers[id])
		t.numbers[id] = next
		switch {
		case !changed:
		case n.IsEmpty():
			gone = append(gone, id)
		default:
			projects = append(projects, n)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.numbers)) {
		if !want[id] {
			s.forgetNames(id)
			gone = append(gone, id)
		}
	}
	frames := wire.PackNames(projects)
	if len(frames) == 0 && (!t.begun || len(gone) > 0) {
		frames = []*wire.Names{{}}
	}
	for n, frame := range frames {
		if n == 0 {
			frame.Domain, frame.Gone = s.f.Names.Zone.Domain(), gone
		}
		frame.Snapshot, frame.Last = !t.begun, !t.begun && n == len(frames)-1
	}
	t.begun = true
	for _, frame := range frames {
		s.send(wire.Frame{Names: frame})
	}
}

// namedProjects returns the projects whose names instances on the node may ask for.
func (s *Session) namedProjects() map[string]bool {
	own := map[string]bool{}
	for _, r := range s.f.Picture.InstancesOn(s.node) {
		if spec := r.Spec(); spec.Goal != mariposa.GoalGone && spec.Project != "" {
			own[spec.Project] = true
		}
	}
	all := maps.Clone(own)
	for id := range own {
		for _, n := range s.f.Picture.NetworksOf(id) {
			for _, other := range n.Spec().Projects() {
				all[other] = true
			}
		}
	}
	return all
}

// forgetNames stops telling the names of a project. The caller holds the lock of the names.
func (s *Session) forgetNames(project string) {
	delete(s.names.numbers, project)
	s.f.nameReaders.remove(project, s)
	s.f.Names.Release(project)
}

// endNames releases all names when the session ends.
func (s *Session) endNames() {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	s.names.ended = true
	for id := range s.names.numbers {
		s.forgetNames(id)
	}
}

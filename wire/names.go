package wire

// Names sends the node what its DNS server answers: the names of the projects that instances on
// the node may ask for. The frames of a snapshot name all of these projects; the last frame sets
// Last, and projects that were not named are forgotten. Later frames have changes only.
type Names struct {
	Snapshot bool           `json:"snapshot,omitempty"`
	Last     bool           `json:"last,omitempty"`
	Domain   string         `json:"domain,omitempty"` // that all names are under
	Projects []ProjectNames `json:"projects,omitempty"`
	Gone     []string       `json:"gone,omitempty"` // projects that no instance on the node may ask for any more
}

// ProjectNames are the names of a project, or those that have changed.
type ProjectNames struct {
	ID string `json:"id"`
	// Header is about the project itself; nil: it has not changed.
	Header *ProjectHeader `json:"header,omitempty"`
	// Full: the instances are all that it has. Otherwise they are added to those that are known.
	Full      bool            `json:"full,omitempty"`
	Instances []NamedInstance `json:"instances,omitempty"`
	Gone      []string        `json:"gone,omitempty"` // ids of instances that names no longer lead to
}

// IsEmpty reports whether nothing is said about the project: it is gone.
func (n *ProjectNames) IsEmpty() bool {
	return n.Header == nil && !n.Full && len(n.Instances) == 0 && len(n.Gone) == 0
}

// ProjectHeader is what names of a project consist of.
type ProjectHeader struct {
	Name         string   `json:"name"`
	Organization string   `json:"organization"`
	Services     []string `json:"services,omitempty"` // all of them, sorted
	// Networks are the networks that its manifest declares: their names, by id. Projects that have
	// one in common may ask for each other's names.
	Networks map[string]string `json:"networks,omitempty"`
}

// NamedInstance is an instance that names lead to: it runs, and is healthy if it has checks.
type NamedInstance struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Service string `json:"service,omitempty"` // empty: it is unmanaged
	Slot    int    `json:"slot,omitempty"`
	Node    string `json:"node"`
	DC      string `json:"dc,omitempty"` // of its node
	// Addresses are as its driver reports them: with each of its ports, or without if it has none.
	Addresses []string `json:"addresses"`
	// Networks are its addresses in the networks that its manifest declares, by their name.
	Networks map[string]string `json:"networks,omitempty"`
	// Host is the address of its node, and Published are the ports at which it is reached there;
	// empty if it is not.
	Host      string `json:"host,omitempty"`
	Published []int  `json:"published,omitempty"`
	// Away: its node cannot be reached. Names resolve to it only if they resolve to nothing else.
	Away bool `json:"away,omitempty"`
}

// namesBytes is the size at which a frame of names is full.
const namesBytes = 256 << 10

// Weight is about how many bytes an instance takes in a frame.
func (i *NamedInstance) Weight() int {
	n := 160 + len(i.ID) + len(i.Name) + len(i.Service) + len(i.Node) + len(i.DC) + len(i.Host) + 8*len(i.Published)
	for _, a := range i.Addresses {
		n += len(a) + 3
	}
	for name, a := range i.Networks {
		n += len(name) + len(a) + 6
	}
	return n
}

// PackNames packs names into frames. A project that does not fit into one continues in the next.
func PackNames(projects []ProjectNames) []*Names {
	var all []*Names
	frame, bytes, count := (*Names)(nil), 0, 0
	next := func() {
		frame, bytes, count = &Names{}, 0, 0
		all = append(all, frame)
	}
	for _, p := range projects {
		if frame == nil || bytes >= namesBytes || count >= Batch {
			next()
		}
		part := ProjectNames{ID: p.ID, Header: p.Header, Full: p.Full}
		if p.Header != nil {
			for _, s := range p.Header.Services {
				bytes += len(s) + 3
			}
		}
		add := func() { frame.Projects = append(frame.Projects, part) }
		for _, i := range p.Instances {
			if bytes >= namesBytes || count >= Batch {
				add()
				next()
				part = ProjectNames{ID: p.ID}
			}
			part.Instances = append(part.Instances, i)
			bytes += i.Weight()
			count++
		}
		for _, id := range p.Gone {
			if bytes >= namesBytes || count >= 4*Batch {
				add()
				next()
				part = ProjectNames{ID: p.ID}
			}
			part.Gone = append(part.Gone, id)
			bytes += len(id) + 3
			count++
		}
		add()
		bytes += 200
		count++
	}
	return all
}

package picture

import (
	"iter"
	"maps"
	"slices"
	"sync"

	"mariposa"
	"mariposa/store"
)

// tables contains the objects of the picture by kind.
type tables struct {
	Nodes       Table[mariposa.NodeSpec, mariposa.NodeStatus]
	Users       Table[mariposa.UserSpec, mariposa.UserStatus]
	Orgs        Table[mariposa.OrganizationSpec, mariposa.OrganizationStatus]
	Settings    Table[mariposa.SettingsSpec, mariposa.SettingsStatus]
	Packages    Table[mariposa.PackageSpec, mariposa.PackageStatus]
	Projects    Table[mariposa.ProjectSpec, mariposa.ProjectStatus]
	Services    Table[mariposa.ServiceSpec, mariposa.ServiceStatus]
	Tasks       Table[mariposa.TaskSpec, mariposa.TaskStatus]
	Volumes     Table[mariposa.VolumeSpec, mariposa.VolumeStatus]
	Networks    Table[mariposa.NetworkSpec, mariposa.NetworkStatus]
	Attachments Table[mariposa.AttachmentSpec, mariposa.AttachmentStatus]
	Instances   Table[mariposa.InstanceSpec, mariposa.InstanceStatus]
	Names       Table[mariposa.NameSpec, mariposa.NameStatus]
	Tokens      Table[mariposa.TokenSpec, mariposa.TokenStatus]
}

func (t *tables) open(p *Picture) {
	t.Nodes.open(p, mariposa.KindNode)
	t.Users.open(p, mariposa.KindUser)
	t.Orgs.open(p, mariposa.KindOrg)
	t.Settings.open(p, mariposa.KindSettings)
	t.Packages.open(p, mariposa.KindPackage)
	t.Projects.open(p, mariposa.KindProject)
	t.Services.open(p, mariposa.KindService)
	t.Tasks.open(p, mariposa.KindTask)
	t.Volumes.open(p, mariposa.KindVolume)
	t.Networks.open(p, mariposa.KindNetwork)
	t.Attachments.open(p, mariposa.KindAttachment)
	t.Instances.open(p, mariposa.KindInstance)
	t.Names.open(p, mariposa.KindName)
	t.Tokens.open(p, mariposa.KindToken)
}

// Table contains the objects of one kind.
type Table[S, T any] struct {
	mu  *sync.RWMutex // the picture's mutex
	all map[string]*store.Record
}

func (t *Table[S, T]) open(p *Picture, kind mariposa.Kind) { t.mu, t.all = &p.mu, p.records[kind] }

// Get returns an object, or nil if it does not exist.
func (t *Table[S, T]) Get(id string) *store.Of[S, T] {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.at(id)
}

// All returns all objects, sorted by id.
func (t *Table[S, T]) All() []*store.Of[S, T] {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pick(maps.Keys(t.all))
}

// Each calls visit for all objects, in no particular order, until it returns false. It
// neither sorts nor allocates, for callers that look at many objects and keep few. It
// holds the picture's lock, so visit must be fast and must not call back into the
// picture.
func (t *Table[S, T]) Each(visit func(*store.Of[S, T]) bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, r := range t.all {
		if !visit((*store.Of[S, T])(r)) {
			return
		}
	}
}

// Len returns the number of objects.
func (t *Table[S, T]) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.all)
}

// at is Get for callers that hold the lock.
func (t *Table[S, T]) at(id string) *store.Of[S, T] { return (*store.Of[S, T])(t.all[id]) }

// of returns the objects of an owner in an index, sorted by id.
func (t *Table[S, T]) of(x index, owner string) []*store.Of[S, T] {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pick(maps.Keys(x[owner]))
}

// pick returns the objects with these ids, sorted by id.
func (t *Table[S, T]) pick(ids iter.Seq[string]) []*store.Of[S, T] {
	out := make([]*store.Of[S, T], 0, 16)
	for id := range ids {
		out = append(out, t.at(id))
	}
	slices.SortFunc(out, func(a, b *store.Of[S, T]) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out
}

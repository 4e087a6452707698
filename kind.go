package mariposa

// Kind names a kind of object in the store.
type Kind string

const (
	KindProject    Kind = "project"
	KindService    Kind = "service" // of a project, as long as it is wanted or has instances left
	KindVersion    Kind = "version"
	KindInstance   Kind = "instance"
	KindVolume     Kind = "volume"
	KindNetwork    Kind = "network"
	KindAttachment Kind = "attachment" // a network on one node
	KindNode       Kind = "node"
	KindTask       Kind = "task"
	KindName       Kind = "name" // the owner of a name, so that names stay unique
	KindToken      Kind = "token"
	KindUser       Kind = "user"
	KindOrg        Kind = "organization"
	KindPackage    Kind = "package"
	KindKey        Kind = "key"      // seals secrets
	KindMetadata   Kind = "metadata" // one generation of a project's values
	KindPart       Kind = "part"     // a piece of values that generations share
	KindSettings   Kind = "settings" // of the installation
	KindAnswer     Kind = "answer"   // the response to a change that may be retried
)

// kinds describes every kind, in the order in which a reader should load them.
var kinds = []struct {
	kind     Kind
	onDemand bool
	indexed  bool // by project, in the stores
	spec     func() any
	status   func() any
	unlogged bool
}{
	{KindNode, false, false, empty[NodeSpec], empty[NodeStatus], false},
	{KindUser, false, false, empty[UserSpec], empty[UserStatus], false},
	{KindOrg, false, false, empty[OrganizationSpec], empty[OrganizationStatus], false},
	{KindSettings, false, false, empty[SettingsSpec], empty[SettingsStatus], false},
	{KindPackage, false, false, empty[PackageSpec], empty[PackageStatus], false},
	{KindKey, false, false, empty[KeySpec], empty[KeyStatus], false},
	{KindProject, false, false, empty[ProjectSpec], empty[ProjectStatus], false},
	{KindService, false, false, empty[ServiceSpec], empty[ServiceStatus], false},
	{KindVersion, true, true, empty[VersionSpec], empty[VersionStatus], false},
	{KindMetadata, true, true, empty[MetadataSpec], empty[MetadataStatus], true},
	{KindPart, true, true, empty[PartSpec], empty[PartStatus], true},
	{KindTask, false, true, empty[TaskSpec], empty[TaskStatus], false},
	{KindVolume, false, false, empty[VolumeSpec], empty[VolumeStatus], false},
	{KindNetwork, false, false, empty[NetworkSpec], empty[NetworkStatus], false},
	{KindAttachment, false, false, empty[AttachmentSpec], empty[AttachmentStatus], false},
	{KindInstance, false, false, empty[InstanceSpec], empty[InstanceStatus], false},
	{KindName, false, false, empty[NameSpec], empty[NameStatus], false},
	{KindToken, false, false, empty[TokenSpec], empty[TokenStatus], false},
	{KindAnswer, true, true, empty[AnswerSpec], empty[AnswerStatus], false},
}

func empty[T any]() any { return new(T) }

// Kinds lists every kind, in the order in which a reader should load them.
var Kinds = func() []Kind {
	all := make([]Kind, len(kinds))
	for i, k := range kinds {
		all[i] = k.kind
	}
	return all
}()

// byKind maps a kind to its row in kinds.
var byKind = func() map[Kind]int {
	all := make(map[Kind]int, len(kinds))
	for i, k := range kinds {
		all[k.kind] = i
	}
	return all
}()

// LoadedOnDemand reports whether objects of a kind are read one by one when needed and
// left out of snapshots, because there may be many large ones.
func (k Kind) LoadedOnDemand() bool {
	i, known := byKind[k]
	return known && kinds[i].onDemand
}

// IndexedByProject reports whether stores index a kind by project. The index itself is
// in their migrations.
func (k Kind) IndexedByProject() bool {
	i, known := byKind[k]
	return known && kinds[i].indexed
}

// Unlogged reports whether the feed records only that objects of a kind changed, without
// their content: nothing follows them, and the feed would contain a second copy of large
// data.
func (k Kind) Unlogged() bool {
	i, known := byKind[k]
	return known && kinds[i].unlogged
}

// NewSpec returns an empty Spec of a kind, to decode into; nil for an unknown kind.
func NewSpec(k Kind) any {
	if i, known := byKind[k]; known {
		return kinds[i].spec()
	}
	return nil
}

// NewStatus returns an empty Status of a kind, to decode into; nil for an unknown kind.
func NewStatus(k Kind) any {
	if i, known := byKind[k]; known {
		return kinds[i].status()
	}
	return nil
}

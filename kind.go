package mariposa

// Kind names a kind of object in the store.
type Kind string

const (
	KindProject    Kind = "project"
	KindVersion    Kind = "version"
	KindInstance   Kind = "instance"
	KindVolume     Kind = "volume"
	KindNetwork    Kind = "network"
	KindAttachment Kind = "attachment" // a network's part on a node
	KindNode       Kind = "node"
	KindTask       Kind = "task"
	KindName       Kind = "name" // who has a name, so that no two get the same
	KindToken      Kind = "token"
	KindUser       Kind = "user"
	KindOrg        Kind = "organization"
	KindPackage    Kind = "package"
	KindKey        Kind = "key"      // seals secrets
	KindMetadata   Kind = "metadata" // one generation of a project's values
	KindAnswer     Kind = "answer"   // to a change that may be asked for again
)

// Kinds lists every kind, in the order in which a reader should load them.
var Kinds = []Kind{
	KindNode, KindUser, KindOrg, KindPackage, KindKey, KindProject, KindVersion, KindMetadata, KindTask, KindVolume, KindNetwork, KindAttachment, KindInstance, KindName, KindToken, KindAnswer,
}

// Shelved reports whether objects of a kind are read one by one by who needs
// them, and left out of snapshots: there may be many, and large ones.
func (k Kind) Shelved() bool { return k == KindVersion || k == KindMetadata || k == KindAnswer }

// NewSpec makes an empty Spec of a kind, to decode into; nil for an unknown kind.
func NewSpec(k Kind) any {
	switch k {
	case KindProject:
		return new(ProjectSpec)
	case KindVersion:
		return new(VersionSpec)
	case KindInstance:
		return new(InstanceSpec)
	case KindVolume:
		return new(VolumeSpec)
	case KindNetwork:
		return new(NetworkSpec)
	case KindAttachment:
		return new(AttachmentSpec)
	case KindNode:
		return new(NodeSpec)
	case KindTask:
		return new(TaskSpec)
	case KindName:
		return new(NameSpec)
	case KindToken:
		return new(TokenSpec)
	case KindUser:
		return new(UserSpec)
	case KindOrg:
		return new(OrganizationSpec)
	case KindPackage:
		return new(PackageSpec)
	case KindKey:
		return new(KeySpec)
	case KindMetadata:
		return new(MetadataSpec)
	case KindAnswer:
		return new(AnswerSpec)
	}
	return nil
}

// NewStatus makes an empty Status of a kind, to decode into; nil for an unknown kind.
func NewStatus(k Kind) any {
	switch k {
	case KindProject:
		return new(ProjectStatus)
	case KindVersion:
		return new(VersionStatus)
	case KindInstance:
		return new(InstanceStatus)
	case KindVolume:
		return new(VolumeStatus)
	case KindNetwork:
		return new(NetworkStatus)
	case KindAttachment:
		return new(AttachmentStatus)
	case KindNode:
		return new(NodeStatus)
	case KindTask:
		return new(TaskStatus)
	case KindName:
		return new(NameStatus)
	case KindToken:
		return new(TokenStatus)
	case KindUser:
		return new(UserStatus)
	case KindOrg:
		return new(OrganizationStatus)
	case KindPackage:
		return new(PackageStatus)
	case KindKey:
		return new(KeyStatus)
	case KindMetadata:
		return new(MetadataStatus)
	case KindAnswer:
		return new(AnswerStatus)
	}
	return nil
}

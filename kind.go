package mariposa

// Kind names a kind of object in the store.
type Kind string

const (
	KindProject  Kind = "project"
	KindVersion  Kind = "version"
	KindInstance Kind = "instance"
	KindNode     Kind = "node"
	KindTask     Kind = "task"
	KindName     Kind = "name" // who has a name, so that no two projects get the same
	KindToken    Kind = "token"
)

// Kinds lists every kind, in the order in which a reader should load them.
var Kinds = []Kind{KindNode, KindProject, KindVersion, KindTask, KindInstance, KindName, KindToken}

// NewSpec makes an empty Spec of a kind, to decode into; nil for an unknown kind.
func NewSpec(k Kind) any {
	switch k {
	case KindProject:
		return new(ProjectSpec)
	case KindVersion:
		return new(VersionSpec)
	case KindInstance:
		return new(InstanceSpec)
	case KindNode:
		return new(NodeSpec)
	case KindTask:
		return new(TaskSpec)
	case KindName:
		return new(NameSpec)
	case KindToken:
		return new(TokenSpec)
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
	case KindNode:
		return new(NodeStatus)
	case KindTask:
		return new(TaskStatus)
	case KindName:
		return new(NameStatus)
	case KindToken:
		return new(TokenStatus)
	}
	return nil
}

package mariposa

// Event describes a change of an object to users. It is published in the feed together
// with the object.
type Event struct {
	Kind     string  `json:"kind"` // such as instance.running or task.completed
	Project  string  `json:"project,omitempty"`
	Service  string  `json:"service_name,omitempty"`
	Instance string  `json:"instance,omitempty"`
	Node     string  `json:"node,omitempty"`
	Task     string  `json:"task,omitempty"`
	Actor    string  `json:"actor,omitempty"`
	Reason   *Reason `json:"reason,omitempty"`
}

// OwnEvent returns an event for something that Mariposa does to a project on its own.
func OwnEvent(kind, project string, why *Reason) Event {
	return Event{Kind: kind, Project: project, Actor: "mariposa", Reason: why}
}

// Event returns an event about an instance.
func (s *InstanceSpec) Event(kind, id, actor string, why *Reason) Event {
	return Event{Kind: kind, Project: s.Project, Service: s.ServiceName, Instance: id, Node: s.Node, Task: s.Task, Actor: actor, Reason: why}
}

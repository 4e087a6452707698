package mariposa

// Event says in a person's words what a change of an object means. It travels
// in the feed beside the object.
type Event struct {
	Kind     string  `json:"kind"` // like instance.running, task.completed
	Project  string  `json:"project,omitempty"`
	Service  string  `json:"service_name,omitempty"`
	Instance string  `json:"instance,omitempty"`
	Node     string  `json:"node,omitempty"`
	Task     string  `json:"task,omitempty"`
	Actor    string  `json:"actor,omitempty"`
	Reason   *Reason `json:"reason,omitempty"`
}

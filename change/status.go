package change

import (
	"mariposa"
	"mariposa/store"
)

// statusOf is a record's project status; nil before the first plan.
func statusOf(r *store.Record) *mariposa.ProjectStatus {
	if r == nil {
		return nil
	}
	st, _ := r.Status.(*mariposa.ProjectStatus)
	return st
}

func instanceStatus(r *store.Record) *mariposa.InstanceStatus {
	st, _ := r.Status.(*mariposa.InstanceStatus)
	return st
}

func nodeStatus(r *store.Record) *mariposa.NodeStatus {
	st, _ := r.Status.(*mariposa.NodeStatus)
	return st
}

func taskStatus(r *store.Record) *mariposa.TaskStatus {
	st, _ := r.Status.(*mariposa.TaskStatus)
	return st
}

// reachable reports whether what is known of a node's instances is news.
func (c *Changer) reachable(node string) bool {
	r := c.Picture.Get(mariposa.KindNode, node)
	return r != nil && nodeStatus(r) != nil && nodeStatus(r).State != mariposa.NodeUnknown
}

func (c *Changer) nodeName(id string) string {
	if r := c.Picture.Get(mariposa.KindNode, id); r != nil {
		return r.Spec.(*mariposa.NodeSpec).Name
	}
	return ""
}

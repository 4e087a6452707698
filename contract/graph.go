package contract

import "mariposa"

// Graph is a project as a graph: its resources with their status, and their
// dependencies.
type Graph struct {
	Revision    int64               `json:"revision"`
	Project     string              `json:"project"`
	ProjectName string              `json:"project_name"`
	Version     string              `json:"version" doc:"the version in force"`
	Status      mariposa.Status     `json:"status"`
	Reason      string              `json:"reason"`
	ReasonCode  mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	Nodes       []GraphNode         `json:"nodes" doc:"sorted by layer, kind and name"`
	Edges       []GraphEdge         `json:"edges"`
}

// GraphNode is one resource.
type GraphNode struct {
	ID         string              `json:"id,omitempty"`
	Kind       string              `json:"kind" enum:"service,network,volume,load_balancer"`
	Name       string              `json:"name"`
	Layer      int                 `json:"layer" doc:"1 for resources without dependencies; otherwise higher than the layers of all dependencies"`
	Status     mariposa.Status     `json:"status"`
	Reason     string              `json:"reason"`
	ReasonCode mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	Goal       int                 `json:"goal" doc:"the desired number; for a service, its scale"`
	Running    int                 `json:"running"`
	Leftover   bool                `json:"leftover,omitempty" doc:"no longer in the manifest, but not removed yet"`
}

// GraphEdge is the dependency of one resource on another.
type GraphEdge struct {
	From     string `json:"from" doc:"name of the resource that depends on the other"`
	FromKind string `json:"from_kind"`
	To       string `json:"to"`
	ToKind   string `json:"to_kind"`
	Why      string `json:"why" enum:"depends_on,reference,network,volume,load_balancer"`
}

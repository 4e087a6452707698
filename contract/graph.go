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
	ReasonCode  mariposa.ReasonCode `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
	Nodes       []GraphNode         `json:"nodes" doc:"by layer, kind and name"`
	Edges       []GraphEdge         `json:"edges"`
}

// GraphNode is one resource.
type GraphNode struct {
	ID         string              `json:"id,omitempty"`
	Kind       string              `json:"kind" enum:"service,network,volume,load_balancer"`
	Name       string              `json:"name"`
	Layer      int                 `json:"layer" doc:"1 for what needs nothing; what needs something is above all that it needs"`
	Status     mariposa.Status     `json:"status"`
	Reason     string              `json:"reason"`
	ReasonCode mariposa.ReasonCode `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
	Goal       int                 `json:"goal" doc:"how many there should be: of a service its scale"`
	Running    int                 `json:"running"`
	Leftover   bool                `json:"leftover,omitempty" doc:"no longer in the manifest, and not gone yet"`
}

// GraphEdge says that one resource depends on another.
type GraphEdge struct {
	From     string `json:"from" doc:"the name of what needs the other"`
	FromKind string `json:"from_kind"`
	To       string `json:"to"`
	ToKind   string `json:"to_kind"`
	Why      string `json:"why" enum:"depends_on,reference,network,volume,load_balancer"`
}

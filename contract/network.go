package contract

import (
	"time"

	"mariposa"
)

// Network connects instances of one project, or of several projects of one organization.
type Network struct {
	ID               string              `json:"id"`
	Name             string              `json:"name" doc:"name in the manifest"`
	Shared           bool                `json:"shared"`
	Organization     string              `json:"organization"`
	OrganizationName string              `json:"organization_name"`
	Project          string              `json:"project" doc:"the project that owns the network; empty for a shared network"`
	ProjectName      string              `json:"project_name"`
	Projects         []NetworkProject    `json:"projects" doc:"projects that use the network and that the caller can see"`
	Nodes            []NetworkNode       `json:"nodes" doc:"state on each node where instances use the network, or used it before"`
	Instances        int                 `json:"instances" doc:"number of connected instances"`
	Created          time.Time           `json:"created"`
	Reason           string              `json:"reason"`
	ReasonCode       mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
}

// NetworkProject is a project that uses a network.
type NetworkProject struct {
	Project     string `json:"project"`
	ProjectName string `json:"project_name"`
	Instances   int    `json:"instances"`
}

// NetworkNode is a network's part on one node.
type NetworkNode struct {
	Node        string               `json:"node"`
	NodeName    string               `json:"node_name"`
	ComputeType mariposa.ComputeType `json:"compute_type"`
	State       string               `json:"state" enum:"pending,made,deleting,unknown" doc:"unknown: its node is unknown"`
	Path        string               `json:"path" doc:"path on the node, if there is one"`
	Reason      string               `json:"reason"`
	ReasonCode  mariposa.ReasonCode  `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
}

// PastNetwork is a network in an event. It has no counts, which are only known for the
// current state.
type PastNetwork struct {
	Network
	Instances *int              `json:"instances,omitempty"`
	Projects  *[]NetworkProject `json:"projects,omitempty"`
}

// Networks is a page of networks.
type Networks struct {
	Networks []Network `json:"networks"`
	Marker   string    `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last page"`
}

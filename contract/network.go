package contract

import (
	"time"

	"mariposa"
)

// Network connects instances of one project, or of several projects of one
// organization.
type Network struct {
	ID               string              `json:"id"`
	Name             string              `json:"name" doc:"as in the manifest"`
	Shared           bool                `json:"shared"`
	Organization     string              `json:"organization"`
	OrganizationName string              `json:"organization_name"`
	Project          string              `json:"project" doc:"whose it is; empty: it is shared"`
	ProjectName      string              `json:"project_name"`
	Projects         []NetworkProject    `json:"projects" doc:"that use it, as far as the caller may see them"`
	Nodes            []NetworkNode       `json:"nodes" doc:"its part on each node where an instance uses it, or did"`
	Instances        int                 `json:"instances" doc:"how many are on it"`
	Created          time.Time           `json:"created"`
	Reason           string              `json:"reason"`
	ReasonCode       mariposa.ReasonCode `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
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
	State       string               `json:"state" enum:"pending,made,deleting,unknown" doc:"unknown: the node cannot be reached"`
	Path        string               `json:"path" doc:"where the node has it, if it has a place"`
	Reason      string               `json:"reason"`
	ReasonCode  mariposa.ReasonCode  `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
}

// PastNetwork is a network in an event, without what is counted when it is read.
type PastNetwork struct {
	Network
	Instances *int              `json:"instances,omitempty"`
	Projects  *[]NetworkProject `json:"projects,omitempty"`
}

// Networks is a page of networks.
type Networks struct {
	Networks []Network `json:"networks"`
	Marker   string    `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last"`
}

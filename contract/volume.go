package contract

import (
	"time"

	"mariposa"
)

// Volume is the storage of one slot of a service, on one node.
type Volume struct {
	ID               string               `json:"id"`
	Name             string               `json:"name" doc:"as in the manifest"`
	Organization     string               `json:"organization"`
	OrganizationName string               `json:"organization_name"`
	Project          string               `json:"project" doc:"empty once its project is gone: the organization has the volume then"`
	ProjectName      string               `json:"project_name" doc:"of a project that is gone, what it was called"`
	Service          string               `json:"service"`
	ServiceName      string               `json:"service_name"`
	Slot             string               `json:"slot" doc:"like web.1"`
	ComputeType      mariposa.ComputeType `json:"compute_type"`
	Node             string               `json:"node"`
	NodeName         string               `json:"node_name"`
	Size             int64                `json:"size" doc:"in bytes; 0: no limit"`
	State            string               `json:"state" enum:"pending,made,deleting,unknown" doc:"unknown: its node cannot be reached"`
	Goal             mariposa.Goal        `json:"goal" enum:"kept,gone"`
	Path             string               `json:"path" doc:"where its node has it, if it has a place"`
	Instance         string               `json:"instance" doc:"who uses it; empty: nobody"`
	InstanceName     string               `json:"instance_name"`
	Created          time.Time            `json:"created"`
	Reason           string               `json:"reason"`
	ReasonCode       mariposa.ReasonCode  `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
}

// Volumes is a page of volumes.
type Volumes struct {
	Volumes []Volume `json:"volumes"`
	Marker  string   `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last"`
}

package contract

import (
	"time"

	"mariposa"
)

// Volume is the storage of one slot of a service, on one node, or of all instances of a project
// that share it.
type Volume struct {
	ID               string               `json:"id"`
	Name             string               `json:"name" doc:"name in the manifest"`
	Organization     string               `json:"organization"`
	OrganizationName string               `json:"organization_name"`
	Project          string               `json:"project" doc:"empty after the project was deleted: the volume then belongs to the organization"`
	ProjectName      string               `json:"project_name" doc:"kept after the project was deleted"`
	Service          string               `json:"service"`
	ServiceName      string               `json:"service_name"`
	Slot             string               `json:"slot" doc:"such as web.1; empty if the volume is shared"`
	Shared           bool                 `json:"shared" doc:"all instances of the project that name it use this one"`
	ComputeType      mariposa.ComputeType `json:"compute_type"`
	Node             string               `json:"node"`
	NodeName         string               `json:"node_name"`
	Size             int64                `json:"size" doc:"in bytes; 0: no limit"`
	State            string               `json:"state" enum:"pending,made,deleting,unknown" doc:"unknown: its node is unknown"`
	Goal             mariposa.Goal        `json:"goal" enum:"kept,gone"`
	Path             string               `json:"path" doc:"path on the node, if there is one"`
	Instance         string               `json:"instance" doc:"the instance that uses the volume; empty if unused"`
	InstanceName     string               `json:"instance_name"`
	Created          time.Time            `json:"created"`
	Reason           string               `json:"reason"`
	ReasonCode       mariposa.ReasonCode  `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
}

// VolumeAttachment says where to attach a volume of a deleted project.
type VolumeAttachment struct {
	Project string `json:"project" maxLength:"255" doc:"id or name of the project, in the organization of the volume"`
	Name    string `json:"name,omitempty" maxLength:"63" doc:"name of the volume in the manifest of the project. Default: its former name"`
	Service string `json:"service,omitempty" maxLength:"63" doc:"name of the service. Default: the name of its former service"`
	Slot    int    `json:"slot,omitempty" minimum:"1" maximum:"1000000" doc:"number of the slot. Default: its former slot"`
}

// Volumes is a page of volumes.
type Volumes struct {
	Volumes []Volume `json:"volumes"`
	Marker  string   `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last page"`
}

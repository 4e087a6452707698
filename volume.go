package mariposa

import (
	"fmt"
	"strings"
	"time"
)

// VolumeSpec is the desired state of a volume: storage for one slot of a service, on one
// node, or for all instances of a project that share it. It outlives these instances. The project's planner creates it with the
// first instance that needs it, and updates it with each new instance. Users delete it
// with a tombstone. A volume never changes its node.
type VolumeSpec struct {
	Name        string `json:"name"`              // as in the manifest
	Project     string `json:"project,omitempty"` // empty: the project is deleted, and the organization owns the volume
	Service     string `json:"service"`           // empty if it is shared
	ServiceName string `json:"service_name"`
	Slot        int    `json:"slot"`
	Shared      bool   `json:"shared,omitempty"` // all instances of the project that name it use this one
	// Set once the project is deleted: the owner of the volume, and the name of the
	// project.
	Organization string      `json:"organization,omitempty"`
	ProjectName  string      `json:"project_name,omitempty"`
	Compute      ComputeType `json:"compute_type"` // whose driver keeps it
	Node         string      `json:"node"`
	Size         int64       `json:"size,omitempty"` // bytes; 0: no limit
	Goal         Goal        `json:"goal"`           // kept or gone
	// Attaching: a person gave the volume of a deleted project to this one, whose planner has
	// not seen it yet. If the slot has got another volume meanwhile, the planner gives it back.
	Attaching bool      `json:"attaching,omitempty"`
	Instance  string    `json:"instance"` // the newest instance that was created with it
	Task      string    `json:"task,omitempty"`
	Reason    *Reason   `json:"reason,omitempty"`
	Created   time.Time `json:"created"`
}

// Owner returns what the volume belongs to, such as db.1, or shared.
func (v *VolumeSpec) Owner() string {
	if v.Shared {
		return "shared"
	}
	return fmt.Sprintf("%s.%d", v.ServiceName, v.Slot)
}

// Title returns the name of the volume for people.
func (v *VolumeSpec) Title() string {
	if v.Shared {
		return "shared volume " + v.Name
	}
	return "volume " + v.Name + " of " + v.Owner()
}

// SameSlot reports whether two volumes of a project have the same slot and name.
func (v *VolumeSpec) SameSlot(o *VolumeSpec) bool {
	return v.Shared == o.Shared && v.Service == o.Service && v.Slot == o.Slot && v.Name == o.Name
}

// VolumeStatus is what the node last reported of a volume. The node's session
// writes it; once the volume is gone, there is no record to write to.
type VolumeStatus struct {
	State  ResourceState `json:"state"`
	Since  time.Time     `json:"since"`
	Path   string        `json:"path,omitempty"` // on the node, if it has one
	Reason string        `json:"reason,omitempty"`
}

// ResourceState is the state of a resource on a node that instances use and
// that outlives them.
type ResourceState string

const (
	ResourcePending ResourceState = "pending" // not created yet
	ResourceMade    ResourceState = "made"
	ResourceGone    ResourceState = "gone"
)

// Mount is a volume as an instance sees it.
type Mount struct {
	Volume   string `json:"volume"` // its id
	Name     string `json:"name"`
	Path     string `json:"path"` // inside the instance
	ReadOnly bool   `json:"read_only,omitempty"`
}

// ParseMount reads a mount as manifests write it, like data:/var/lib/data:ro. The
// volume's id is not known there.
func ParseMount(text string) Mount {
	name, rest, _ := strings.Cut(text, ":")
	path, how, _ := strings.Cut(rest, ":")
	return Mount{Name: name, Path: path, ReadOnly: how == "ro"}
}

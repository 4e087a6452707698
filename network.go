package mariposa

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// NetworkSpec is a network on which instances reach each other: those of one project, or
// those of several projects of one organization that share it. A project's planner
// creates it with the first instance that uses it and releases it with the last, so it
// has no goal of its own.
type NetworkSpec struct {
	Name         string    `json:"name"`                   // as in the manifest
	Project      string    `json:"project,omitempty"`      // its owner; empty: it is shared
	Organization string    `json:"organization,omitempty"` // of a shared one: its owner
	Users        []string  `json:"users,omitempty"`        // of a shared one: the projects that use it, sorted
	Nodes        int       `json:"nodes"`                  // how often it was attached to a node; it grows so that concurrent planners conflict
	Created      time.Time `json:"created"`
	Reason       *Reason   `json:"reason,omitempty"`
}

// NetworkStatus is empty: the attachments of a network have the status.
type NetworkStatus struct{}

// Projects lists the projects that use a network.
func (s *NetworkSpec) Projects() []string {
	if s.Project != "" {
		return []string{s.Project}
	}
	return s.Users
}

// With returns the network with a project as a user; Without returns it without.
func (s *NetworkSpec) With(project string) *NetworkSpec {
	next := *s
	if at, found := slices.BinarySearch(s.Users, project); !found && s.Project == "" {
		next.Users = slices.Insert(slices.Clone(s.Users), at, project)
	}
	return &next
}

func (s *NetworkSpec) Without(project string) *NetworkSpec {
	next := *s
	next.Users = slices.DeleteFunc(slices.Clone(s.Users), func(id string) bool { return id == project })
	return &next
}

// NetworkID returns the id of the network with a name in a project, or in an
// organization if it is shared. The id is derived, so concurrent creators create the
// same one.
func NetworkID(owner, name string) string {
	return uuid.NewSHA1(uuid.Nil, []byte("network "+owner+" "+name)).String()
}

// AttachmentSpec is a network on one node. It is created before the first instance that
// uses it there, and stays until the network is removed: then its goal is gone, and the
// node removes it once nothing uses it.
type AttachmentSpec struct {
	Network      string      `json:"network"`
	Name         string      `json:"name"`                   // of the network
	Project      string      `json:"project,omitempty"`      // as in the network
	Organization string      `json:"organization,omitempty"` //
	Compute      ComputeType `json:"compute_type"`           // whose driver keeps it
	Node         string      `json:"node"`
	Goal         Goal        `json:"goal"`     // kept or gone
	Instance     string      `json:"instance"` // the newest instance that was created with it
	Created      time.Time   `json:"created"`
	Reason       *Reason     `json:"reason,omitempty"`
}

// WithTombstone returns the attachment with a tombstone.
func (s *AttachmentSpec) WithTombstone(why *Reason) *AttachmentSpec {
	next := *s
	next.Goal, next.Reason = GoalGone, why
	return &next
}

// AttachmentStatus is what the node last reported of it, as for a volume.
type AttachmentStatus = VolumeStatus

// AttachmentID returns the id of a network on a node.
func AttachmentID(network, node string, compute ComputeType) string {
	return uuid.NewSHA1(uuid.Nil, []byte("attachment "+network+" "+node+" "+string(compute))).String()
}

// Join is a network as an instance sees it.
type Join struct {
	Network    string `json:"network"`    // its id
	Attachment string `json:"attachment"` // the id of its attachment on the instance's node
	Name       string `json:"name"`
}

// NetworkDetail is the name of the detail of an instance that has its address in a network, by the
// id of the attachment.
func NetworkDetail(attachment string) string { return "network_" + attachment }

package contract

import "mariposa"

// Snapshots is a list of an instance's snapshots, the oldest first.
type Snapshots struct {
	Snapshots []mariposa.Snapshot `json:"snapshots" nullable:"false"`
}

// NewSnapshot is a request to save the state of an instance.
type NewSnapshot struct {
	Name string `json:"name,omitempty" maxLength:"63" doc:"name of the snapshot. Default: the time"`
}

// SnapshotChanged is the answer to a change of a snapshot.
type SnapshotChanged struct {
	Instance     string                 `json:"instance" doc:"id of the instance"`
	InstanceName string                 `json:"instance_name"`
	Name         string                 `json:"name" doc:"name of the snapshot"`
	State        mariposa.SnapshotState `json:"state" enum:"ready,creating,restoring,deleting,deleted" doc:"creating, restoring and deleting mean that the change takes longer than a request: it continues"`
}

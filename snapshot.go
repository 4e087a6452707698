package mariposa

import "time"

// Snapshot is a saved state of an instance.
type Snapshot struct {
	Name    string        `json:"name"`
	Created time.Time     `json:"created,omitzero"` // missing while it is being created
	Memory  int64         `json:"memory" doc:"bytes of the instance's memory in the snapshot; 0 if the instance was not running"`
	State   SnapshotState `json:"state" enum:"ready,creating,restoring,deleting,failed"`
	Reason  string        `json:"reason,omitempty" doc:"why the last request failed"`
}

// SnapshotState is what happens to a snapshot.
type SnapshotState string

// The states of a snapshot.
const (
	SnapshotReady     SnapshotState = "ready"
	SnapshotCreating  SnapshotState = "creating"
	SnapshotRestoring SnapshotState = "restoring" // the instance is being restored from it
	SnapshotDeleting  SnapshotState = "deleting"
	SnapshotFailed    SnapshotState = "failed" // the last request about it failed
)

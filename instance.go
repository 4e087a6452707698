package mariposa

import "time"

// InstanceSpec is what the planner wants of an instance. An instance never
// changes its node.
type InstanceSpec struct {
	Name        string      `json:"name"`
	Slot        int         `json:"slot"` // web.3 is slot 3 of web; instances come and go in it
	Project     string      `json:"project"`
	Service     string      `json:"service"`
	ServiceName string      `json:"service_name"`
	Number      int         `json:"number"`         // the version of the manifest it is made from
	Digest      string      `json:"digest"`         // of the definition it is made from
	Live        string      `json:"live,omitempty"` // of the fields changed in place
	Compute     ComputeType `json:"compute_type"`
	Node        string      `json:"node"`
	Goal        Goal        `json:"goal"`
	Generation  int64       `json:"generation"` // grows with every change the node must act on
	Task        string      `json:"task,omitempty"`
	Reason      *Reason     `json:"reason,omitempty"` // why it was made, or why it goes
	Created     time.Time   `json:"created"`
	Managed     bool        `json:"managed"`
	Kept        bool        `json:"kept,omitempty"` // it has ended and is kept for people to look at; it takes nothing of its node any more
	Orphaned    bool        `json:"debt,omitempty"` // its project is gone; the node's session settles it
	Memory      int64       `json:"memory,omitempty"`
	MilliCPU    int64       `json:"milli_cpu,omitempty"`
	Ports       []int       `json:"ports,omitempty"`    // fixed ports it takes on its node
	Mounts      []Mount     `json:"mounts,omitempty"`   // the volumes it uses
	Networks    []Join      `json:"networks,omitempty"` // the networks it uses
	// Definition is what an unmanaged instance is made from: the keys of a service,
	// as in a manifest.
	Definition []byte `json:"definition,omitempty"`
	// Bindings are what its references to other services resolved to when it was
	// made, Bound a digest of those that went into it.
	Bindings *Bindings `json:"bindings,omitempty"`
	Bound    string    `json:"bound,omitempty"`

	Author         string `json:"author,omitempty"`  // of an unmanaged one
	ManualRestarts int    `json:"bounces,omitempty"` // how often a person had it restarted in place
	Forced         bool   `json:"forced,omitempty"`  // it has no more time to stop: a person said so
}

// Resources is what an instance takes of its node's capacity.
func (s *InstanceSpec) Resources() Resources {
	if s.Kept {
		return Resources{}
	}
	return Resources{Instances: 1, MilliCPU: s.MilliCPU, Memory: s.Memory}
}

// InstanceStatus is what the node last said of an instance. The node's session
// writes it.
type InstanceStatus struct {
	State          State             `json:"state"`
	Since          time.Time         `json:"since"` // since when it is in this state, by the store's side of the wire
	Health         Health            `json:"health,omitempty"`
	Generation     int64             `json:"generation"` // the newest generation the node has made true
	PhysicalID     string            `json:"physical_id,omitempty"`
	Addresses      []string          `json:"addresses,omitempty"`
	Started        time.Time         `json:"started,omitzero"`
	Finished       time.Time         `json:"finished,omitzero"`
	ExitCode       *int              `json:"exit_code,omitempty"`
	Restarts       int               `json:"restarts,omitempty"`
	ManualRestarts int               `json:"bounces,omitempty"` // how many of the restarts that people asked for the node has made
	Reason         string            `json:"reason,omitempty"`
	Details        map[string]string `json:"details,omitempty"`
}

// Usage is what an instance takes from its node. A figure that is nil is unknown.
type Usage struct {
	At          time.Time `json:"at,omitzero" doc:"when it was measured; absent: it could not be"`
	CPU         *float64  `json:"cpu,omitempty" doc:"seconds that it has computed since it started"`
	Memory      *int64    `json:"memory,omitempty" doc:"bytes now"`
	NetworkIn   *int64    `json:"network_in,omitempty" doc:"bytes since it started"`
	NetworkOut  *int64    `json:"network_out,omitempty" doc:"bytes since it started"`
	DiskRead    *int64    `json:"disk_read,omitempty" doc:"bytes since it started"`
	DiskWritten *int64    `json:"disk_written,omitempty" doc:"bytes since it started"`
}

// Goal is what an instance should be.
type Goal string

const (
	GoalRunning Goal = "running"
	GoalHalted  Goal = "stopped"
	GoalGone    Goal = "gone"
	GoalKept    Goal = "kept" // of what outlives instances: it is to be there
)

// State is what an instance is.
type State string

const (
	StatePending      State = "pending"
	StateProvisioning State = "provisioning"
	StateRunning      State = "running"
	StateDraining     State = "draining"
	StateStopping     State = "stopping"
	StateStopped      State = "stopped"
	StateFailed       State = "failed"
	StateUnknown      State = "unknown"
	StateDestroyed    State = "destroyed"
)

// Health is what checks say of a running instance.
type Health string

const (
	HealthUnknown   Health = "unknown"
	HealthStarting  Health = "starting"
	HealthHealthy   Health = "healthy"
	HealthUnhealthy Health = "unhealthy"
)

// StateOf is the state of an instance as far as its node has told: one that was
// assigned but never reported is provisioning, one without a node pending.
func StateOf(spec *InstanceSpec, status *InstanceStatus) State {
	switch {
	case status != nil && status.State != "":
		return status.State
	case spec.Node == "":
		return StatePending
	}
	return StateProvisioning
}

// nextStates lists the moves an instance's state may make as its node reports
// it. Unknown is not among them: it is a view of the node, never written. A node
// that was out of reach reports where an instance has got to, not the way: so
// what was stopping may be running again by then.
var nextStates = map[State][]State{
	StatePending:      {StateProvisioning, StateDestroyed},
	StateProvisioning: {StateRunning, StateFailed, StateStopping, StateStopped, StateDestroyed},
	StateRunning:      {StateProvisioning, StateDraining, StateStopping, StateStopped, StateFailed, StateDestroyed},
	StateDraining:     {StateProvisioning, StateRunning, StateStopping, StateStopped, StateFailed, StateDestroyed},
	StateStopping:     {StateProvisioning, StateRunning, StateStopped, StateFailed, StateDestroyed},
	StateStopped:      {StateProvisioning, StateRunning, StateStopping, StateFailed, StateDestroyed},
	StateFailed:       {StateProvisioning, StateRunning, StateStopping, StateStopped, StateDestroyed},
	StateDestroyed:    {},
}

// CanFollow reports whether an instance may go from one state to another.
// Staying is always allowed; nothing follows destroyed.
func CanFollow(from, to State) bool {
	if from == to {
		return true
	}
	for _, s := range nextStates[from] {
		if s == to {
			return true
		}
	}
	return false
}

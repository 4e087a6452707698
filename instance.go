package mariposa

import "time"

// InstanceSpec is the desired state of an instance, written by the planner. An
// instance never changes its node.
type InstanceSpec struct {
	Name        string      `json:"name"`
	Slot        int         `json:"slot"` // web.3 is slot 3 of web; instances come and go in it
	Project     string      `json:"project"`
	Service     string      `json:"service"`
	ServiceName string      `json:"service_name"`
	Number      int         `json:"number"`         // the version of the manifest it is created from
	Digest      string      `json:"digest"`         // of the definition it is created from
	Live        string      `json:"live,omitempty"` // of the fields changed in place
	Compute     ComputeType `json:"compute_type"`
	Node        string      `json:"node"`
	Goal        Goal        `json:"goal"`
	Generation  int64       `json:"generation"` // grows with every change the node must act on
	Task        string      `json:"task,omitempty"`
	Reason      *Reason     `json:"reason,omitempty"` // why it was created, or why it is removed
	Created     time.Time   `json:"created"`
	Managed     bool        `json:"managed"`
	Kept        bool        `json:"kept,omitempty"` // it has ended and is kept for inspection; it no longer uses its node's resources
	Orphaned    bool        `json:"debt,omitempty"` // its project is deleted; the node's session removes it
	Memory      int64       `json:"memory,omitempty"`
	MilliCPU    int64       `json:"milli_cpu,omitempty"`
	Ports       []int       `json:"ports,omitempty"`    // fixed ports that it uses on its node
	Mounts      []Mount     `json:"mounts,omitempty"`   // the volumes it uses
	Networks    []Join      `json:"networks,omitempty"` // the networks it uses
	// Definition is what an unmanaged instance is created from: the keys of a service,
	// as in a manifest.
	Definition []byte `json:"definition,omitempty"`
	// Adopts is the id of the foreign container that an unmanaged instance is; empty if its
	// node creates it.
	Adopts string `json:"adopts,omitempty"`
	// Bindings are what its references to other services resolved to when it was
	// created. Bound is a digest of those that went into it.
	Bindings *Bindings `json:"bindings,omitempty"`
	Bound    string    `json:"bound,omitempty"`

	Author         string `json:"author,omitempty"`  // of an unmanaged instance
	ManualRestarts int    `json:"bounces,omitempty"` // how often a user restarted it in place
	Forced         bool   `json:"forced,omitempty"`  // a user killed it: it gets no more time to stop
}

// Resources returns what an instance uses of its node's capacity.
func (s *InstanceSpec) Resources() Resources {
	if s.Kept {
		return Resources{}
	}
	return Resources{Instances: 1, MilliCPU: s.MilliCPU, Memory: s.Memory}
}

// Origin returns what the node of an instance keeps about it.
func (s *InstanceSpec) Origin() *Provenance {
	return &Provenance{
		Project: s.Project, Service: s.Service, ServiceName: s.ServiceName, Slot: s.Slot, Number: s.Number, Digest: s.Digest, Live: s.Live,
		Created: s.Created, Mounts: s.Mounts, Networks: s.Networks, Bindings: s.Bindings, Bound: s.Bound,
	}
}

// InstanceStatus is what the node last reported of an instance. The node's
// session writes it.
type InstanceStatus struct {
	State          State             `json:"state"`
	Since          time.Time         `json:"since"` // when it entered this state or health, by the server's clock
	Health         Health            `json:"health,omitempty"`
	Served         bool              `json:"served,omitempty"`        // its checks have passed since it was started
	Checks         []CheckStatus     `json:"checks,omitempty"`        // in the order of the definition in force
	ChecksDigest   string            `json:"checks_digest,omitempty"` // of the service's checks that these results are about
	Generation     int64             `json:"generation"`              // the newest generation that the node has applied
	PhysicalID     string            `json:"physical_id,omitempty"`
	Addresses      []string          `json:"addresses,omitempty"`
	Started        time.Time         `json:"started,omitzero"`
	Finished       time.Time         `json:"finished,omitzero"`
	ExitCode       *int              `json:"exit_code,omitempty"`
	Restarts       int               `json:"restarts,omitempty"`
	ManualRestarts int               `json:"bounces,omitempty"` // how many of the requested restarts the node has done
	Reason         string            `json:"reason,omitempty"`
	Details        map[string]string `json:"details,omitempty"`
	Members        []MemberStatus    `json:"members,omitempty"` // of a balancer, without counters
}

// Usage is what an instance uses of its node. A nil value is unknown.
type Usage struct {
	At          time.Time `json:"at,omitzero" doc:"when it was measured; absent if it could not be measured"`
	CPU         *float64  `json:"cpu,omitempty" doc:"seconds of CPU time since it started"`
	Memory      *int64    `json:"memory,omitempty" doc:"bytes in use"`
	NetworkIn   *int64    `json:"network_in,omitempty" doc:"bytes since it started"`
	NetworkOut  *int64    `json:"network_out,omitempty" doc:"bytes since it started"`
	DiskRead    *int64    `json:"disk_read,omitempty" doc:"bytes since it started"`
	DiskWritten *int64    `json:"disk_written,omitempty" doc:"bytes since it started"`
	Log         *int64    `json:"log,omitempty" doc:"bytes of its log on the node"`
	// Balancer are the counters of a load balancer; nil: it is none.
	Balancer *BalancerUsage `json:"balancer,omitempty" doc:"of a load balancer: its members with their counters"`
}

// Goal is the desired state of an instance.
type Goal string

const (
	GoalRunning Goal = "running"
	GoalHalted  Goal = "stopped"
	GoalGone    Goal = "gone"
	GoalKept    Goal = "kept" // of objects that outlive instances: it should exist
)

// State is the actual state of an instance.
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

// Health is the result of the checks of a running instance.
type Health string

const (
	HealthUnknown   Health = "unknown"
	HealthStarting  Health = "starting"
	HealthHealthy   Health = "healthy"
	HealthUnhealthy Health = "unhealthy"
)

// CheckStatus is the result of one check of an instance. It is reported when the health
// changes, not after every check.
type CheckStatus struct {
	Name   string    `json:"name"` // as HealthCheck.Name
	Health Health    `json:"health"`
	Passed bool      `json:"passed,omitempty"` // it has passed since the instance was started, or before it was restarted because of its health
	Reason string    `json:"reason,omitempty"` // why it does not pass
	Since  time.Time `json:"since,omitzero"`   // when its health changed
}

// StateOf returns the state of an instance as last reported by its node: one
// that was assigned but never reported is provisioning, one without a node is
// pending.
func StateOf(spec *InstanceSpec, status *InstanceStatus) State {
	switch {
	case status != nil && status.State != "":
		return status.State
	case spec.Node == "":
		return StatePending
	}
	return StateProvisioning
}

// nextStates lists the transitions that a node may report for an instance. Unknown is
// not among them: it describes the node and is never written. A node that was
// unreachable reports the current state, not how it was reached: a stopping instance may
// be running again by then.
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

// CanFollow reports whether an instance may go from one state to another. It may always
// stay in its state; destroyed is final.
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

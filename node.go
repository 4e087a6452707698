package mariposa

import "time"

// NodeSpec is what operators said of a node, and the key it proved itself with.
type NodeSpec struct {
	Name    string            `json:"name"`
	Rack    string            `json:"rack,omitempty"`
	DC      string            `json:"dc,omitempty"`
	Traits  map[string]string `json:"traits,omitempty"`
	KeyHash string            `json:"key_hash,omitempty"` // SHA-256 of the secret its agent keeps
	Dummy   bool              `json:"dummy,omitempty"`
	Drained bool              `json:"drained,omitempty"`
	Lost    bool              `json:"lost,omitempty"`  // a dummy node told to play dead
	Purge   []string          `json:"purge,omitempty"` // quarantined instances that a person said may go
	Created time.Time         `json:"created"`
}

// NodeStatus is what is known of a node. The holder of its session writes it.
type NodeStatus struct {
	State    NodeState     `json:"state"`
	Since    time.Time     `json:"since"`
	Heard    time.Time     `json:"heard,omitzero"` // of an unknown node: when it was last heard of
	Epoch    int64         `json:"epoch"`          // of its session
	Replica  string        `json:"replica,omitempty"`
	Capacity Resources     `json:"capacity"`
	Drivers  []ComputeType `json:"drivers,omitempty"`
	// Capabilities are what each driver declares of its kind.
	Capabilities map[ComputeType]Capabilities `json:"capabilities,omitempty"`
	Quarantined  []Quarantined                `json:"quarantined,omitempty"`
	Reason       *Reason                      `json:"reason,omitempty"`
}

// Capabilities are what a driver declares its kind of compute to be able to do.
type Capabilities struct {
	Logs     bool `json:"logs,omitempty"`     // what instances write can be read
	Exec     bool `json:"exec,omitempty"`     // commands can be run inside
	Mdata    bool `json:"mdata,omitempty"`    // instances can read values that change while they run
	Ports    bool `json:"ports,omitempty"`    // instances can be reached by their ports
	Volumes  bool `json:"volumes,omitempty"`  // and have volumes
	Networks bool `json:"networks,omitempty"` // and networks
	Images   bool `json:"images,omitempty"`   // instances are made from images
	Crash    bool `json:"crash,omitempty"`    // instances can be made to fail, for tests and demonstrations
	Survives bool `json:"survives,omitempty"` // instances run on while the agent is away
	// Updates are the fields of a workload that Update can change, by their names
	// in a manifest.
	Updates []string `json:"updates,omitempty"`
	// Unbounded: operations cost the node nothing, so any number may run at once.
	Unbounded bool `json:"unbounded,omitempty"`
}

// Quarantined is an instance found on a node that this store does not know. It
// is left running until a person purges it.
type Quarantined struct {
	ID         string      `json:"id"`
	Name       string      `json:"name,omitempty"`
	Project    string      `json:"project_name,omitempty"`
	Compute    ComputeType `json:"compute_type"`
	PhysicalID string      `json:"physical_id,omitempty"`
	State      State       `json:"state"`
	Reason     string      `json:"reason"`
}

// NodeState is what a node is, as far as can be known from here.
type NodeState string

const (
	NodeRunning   NodeState = "running"
	NodeUnknown   NodeState = "unknown"
	NodeRebooting NodeState = "rebooting"
	NodeDrained   NodeState = "drained"
)

// Resources is an amount of what instances take from a node. In a capacity, a
// zero means no limit.
type Resources struct {
	Instances int   `json:"instances"`
	MilliCPU  int64 `json:"milli_cpu"`
	Memory    int64 `json:"memory"`
}

// Plus adds two amounts.
func (r Resources) Plus(o Resources) Resources {
	return Resources{r.Instances + o.Instances, r.MilliCPU + o.MilliCPU, r.Memory + o.Memory}
}

// Minus takes an amount away.
func (r Resources) Minus(o Resources) Resources {
	return Resources{r.Instances - o.Instances, r.MilliCPU - o.MilliCPU, r.Memory - o.Memory}
}

// Within reports whether an amount fits a capacity in which zero means no limit.
func (r Resources) Within(limit Resources) bool {
	return (limit.Instances == 0 || r.Instances <= limit.Instances) &&
		(limit.MilliCPU == 0 || r.MilliCPU <= limit.MilliCPU) &&
		(limit.Memory == 0 || r.Memory <= limit.Memory)
}

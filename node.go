package mariposa

import (
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"time"

	"github.com/google/uuid"
)

// NodeSpec is what operators set for a node, and the key that it authenticates
// with.
type NodeSpec struct {
	Name    string            `json:"name"`
	Rack    string            `json:"rack,omitempty"`
	DC      string            `json:"dc,omitempty"`
	Traits  map[string]string `json:"traits,omitempty"`
	KeyHash string            `json:"key_hash,omitempty"` // SHA-256 of the secret its agent keeps
	Dummy   bool              `json:"dummy,omitempty"`
	Drained bool              `json:"drained,omitempty"`
	// Approval says what is missing before the node can join; empty: nothing.
	Approval NodeApproval `json:"approval,omitempty"`
	// JoinedWith is the id of the token that let it join.
	JoinedWith string    `json:"joined_with,omitempty"`
	Lost       bool      `json:"lost,omitempty"`  // a dummy node that simulates a failure
	Purge      []string  `json:"purge,omitempty"` // quarantined instances that a user asked to remove
	Created    time.Time `json:"created"`
}

// NodeStatus is what is known of a node. The holder of its session writes it.
type NodeStatus struct {
	State    NodeState     `json:"state"`
	Since    time.Time     `json:"since"`
	LastSeen time.Time     `json:"heard,omitzero"` // when an unknown node was last seen
	Epoch    int64         `json:"epoch"`          // of its session
	Replica  string        `json:"replica,omitempty"`
	Address  string        `json:"address,omitempty"` // where its agent connected from
	Capacity Resources     `json:"capacity"`
	Drivers  []ComputeType `json:"drivers,omitempty"`
	// Capabilities are what each driver declares for its compute type.
	Capabilities map[ComputeType]Capabilities `json:"capabilities,omitempty"`
	// Offers are what the node reports about compute types that depend on the machine.
	Offers      map[ComputeType]Offer `json:"offers,omitempty"`
	Quarantined []Quarantined         `json:"quarantined,omitempty"`
	Reason      *Reason               `json:"reason,omitempty"`
}

// Offer is what a node reports about a compute type.
type Offer struct {
	// Unavailable says why the node starts no instances of the type, as the rest of a
	// sentence; empty if it can.
	Unavailable string            `json:"unavailable,omitempty" doc:"why the node cannot start instances of this type; empty if it can"`
	Details     map[string]string `json:"details,omitempty" doc:"how instances of this type run on the node: how they are isolated, and which protections are missing"`
}

// Capabilities are what a driver declares that its compute type can do.
type Capabilities struct {
	Logs     bool `json:"logs,omitempty"`     // the output of instances can be read
	Exec     bool `json:"exec,omitempty"`     // commands can be run inside
	Mdata    bool `json:"mdata,omitempty"`    // instances can read values that change while they run
	Ports    bool `json:"ports,omitempty"`    // instances can be reached by their ports
	Volumes  bool `json:"volumes,omitempty"`  // instances can have volumes
	Networks bool `json:"networks,omitempty"` // instances can join networks
	Images   bool `json:"images,omitempty"`   // instances are created from images
	Crash    bool `json:"crash,omitempty"`    // instances can be made to fail, for tests and demonstrations
	Survives bool `json:"survives,omitempty"` // instances keep running while the agent is down
	// Updates are the fields of a workload that Update can change, by their
	// names in a manifest.
	Updates []string `json:"updates,omitempty"`
	// Unbounded: operations cost the node nothing, so any number may run at once.
	Unbounded bool `json:"unbounded,omitempty"`
}

// Quarantined is an instance found on a node that this store does not know. It is left
// running until a user purges it.
type Quarantined struct {
	ID         string      `json:"id"`
	Name       string      `json:"name,omitempty"`
	Project    string      `json:"project_name,omitempty"`
	Compute    ComputeType `json:"compute_type"`
	PhysicalID string      `json:"physical_id,omitempty"`
	State      State       `json:"state"`
	Reason     string      `json:"reason"`
}

// NodeState is the state of a node, as far as the server knows.
type NodeState string

const (
	NodeRunning   NodeState = "running"
	NodeUnknown   NodeState = "unknown"
	NodeRebooting NodeState = "rebooting"
	NodeDrained   NodeState = "drained"
	NodePending   NodeState = "pending"  // waits for approval
	NodeRejected  NodeState = "rejected" // approval was refused
)

// NodeApproval is the decision about a node that needs approval.
type NodeApproval string

const (
	ApprovalPending  NodeApproval = "pending"
	ApprovalRejected NodeApproval = "rejected"
)

// HashKey returns what is stored of a node's secret key. Keys are long and random, so a
// plain hash cannot be reversed by guessing.
func HashKey(key string) string { return HashToken(key) }

// Fingerprint returns the hash of a node's key in the form that people compare: the
// agent prints the same when it starts. It is empty for an invalid hash.
func Fingerprint(keyHash string) string {
	sum, err := hex.DecodeString(keyHash)
	if err != nil || len(sum) == 0 {
		return ""
	}
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum)
}

// nodeName is a host name: labels of letters, digits and dashes with dots between.
var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// CheckNodeName returns an error if a name is not valid for a node. A name that looks
// like an id could be mistaken for another node.
func CheckNodeName(name string) error {
	if len(name) > 253 || !nodeName.MatchString(name) {
		return Errorf(InvalidArgument, "invalid node name %q: use a host name of at most 253 characters, with labels of lower-case letters, digits and hyphens separated by dots", shortText(name))
	}
	if uuid.Validate(name) == nil {
		return Errorf(InvalidArgument, "invalid node name %q: it looks like an id", name)
	}
	return nil
}

func shortText(text string) string {
	if len(text) > 64 {
		return text[:64] + "…"
	}
	return text
}

// Resources is an amount of what instances use of a node. In a capacity, zero
// means no limit.
type Resources struct {
	Instances int   `json:"instances"`
	MilliCPU  int64 `json:"milli_cpu"`
	Memory    int64 `json:"memory"`
}

// Plus adds two amounts.
func (r Resources) Plus(o Resources) Resources {
	return Resources{r.Instances + o.Instances, r.MilliCPU + o.MilliCPU, r.Memory + o.Memory}
}

// Minus subtracts an amount.
func (r Resources) Minus(o Resources) Resources {
	return Resources{r.Instances - o.Instances, r.MilliCPU - o.MilliCPU, r.Memory - o.Memory}
}

// Within reports whether an amount fits a capacity in which zero means no limit.
func (r Resources) Within(limit Resources) bool {
	return (limit.Instances == 0 || r.Instances <= limit.Instances) &&
		(limit.MilliCPU == 0 || r.MilliCPU <= limit.MilliCPU) &&
		(limit.Memory == 0 || r.Memory <= limit.Memory)
}

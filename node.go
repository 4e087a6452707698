package mariposa

import (
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
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
	// NextKeyHash is that of a new key which its agent has stored. Both keys are valid until
	// the node has opened a session with the new one.
	NextKeyHash string `json:"next_key_hash,omitempty"`
	// RetiredKeys are the hashes of keys that were replaced, at most MaxRetiredKeys, the
	// newest last. An agent with one of them has an old copy of the node's directory.
	RetiredKeys []string `json:"retired_keys,omitempty"`
	// RotateKey is when a new key was asked for that the node does not have yet; zero: not
	// asked for.
	RotateKey time.Time `json:"rotate_key,omitzero"`
	Dummy     bool      `json:"dummy,omitempty"`
	// Drained: it takes no new instances, because a drain began. What happened to those
	// that it had is in Drain.
	Drained bool   `json:"drained,omitempty"`
	Drain   *Drain `json:"drain,omitempty"`
	// Reserved names who reserved the node: it takes no new instances, and keeps those it
	// has. Empty: nobody.
	Reserved string `json:"reserved,omitempty"`
	// RescheduleNow is when a user asked to replace the instances on the node without
	// further waiting. It counts only for a loss of the node before that time.
	RescheduleNow time.Time `json:"reschedule_now,omitzero"`
	// Approval says what is missing before the node can join; empty: nothing.
	Approval NodeApproval `json:"approval,omitempty"`
	// Tokenless: it came without a join token, so it has no right to anything, not even to
	// its name, until an operator accepts it.
	Tokenless bool `json:"tokenless,omitempty"`
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
	LastSeen time.Time     `json:"heard,omitzero"` // when an unknown node, or one that waits without a join token, was last seen
	Epoch    int64         `json:"epoch"`          // of its session
	Replica  string        `json:"replica,omitempty"`
	Address  string        `json:"address,omitempty"` // where its agent connected from
	Home     string        `json:"home,omitempty"`    // identifies the place of its data directory; empty if unknown
	Capacity Resources     `json:"capacity"`
	Drivers  []ComputeType `json:"drivers,omitempty"`
	// Capabilities are what each driver declares for its compute type.
	Capabilities map[ComputeType]Capabilities `json:"capabilities,omitempty"`
	// Offers are what the node reports about compute types that depend on the machine.
	Offers map[ComputeType]Offer `json:"offers,omitempty"`
	// Quarantined are some of its quarantined instances, and QuarantinedTotal is how many
	// there are if that is not all. The node's session knows the others.
	Quarantined      []Quarantined `json:"quarantined,omitempty"`
	QuarantinedTotal int           `json:"quarantined_total,omitempty"`
	// Machine is what its agent reported about the machine; nil: nothing.
	Machine *Machine `json:"machine,omitempty"`
	Reason  *Reason  `json:"reason,omitempty"`
	// Losses are the times at which the node became unknown, of the last hour and at most
	// MaxLosses, the newest last.
	Losses []time.Time `json:"losses,omitempty"`
	// Copy is when an agent with a copy of the node's data directory was last refused; nil: not
	// within CopyLifetime.
	Copy *RefusedCopy `json:"copy,omitempty"`
}

// RefusedCopy says that an agent came with a copy of the data directory of a node that runs.
type RefusedCopy struct {
	At   time.Time `json:"at" doc:"when it was refused; at most one refusal a minute is noted"`
	From string    `json:"from" doc:"address that it connected from"`
}

// CopyLifetime is how long a node shows that a copy was refused.
const CopyLifetime = 24 * time.Hour

// CountQuarantined returns how many instances of the node are in quarantine.
func (s *NodeStatus) CountQuarantined() int { return max(len(s.Quarantined), s.QuarantinedTotal) }

// Drain is the removal of all instances from a node.
type Drain struct {
	State    DrainState `json:"state"`
	Task     string     `json:"task,omitempty"`
	By       string     `json:"by,omitempty"` // who asked for it
	Since    time.Time  `json:"since"`
	Deadline time.Time  `json:"deadline,omitzero"` // when the drain stops if it is not complete; zero: never
	Total    int        `json:"total,omitempty"`   // instances on the node when it began
	Reason   *Reason    `json:"reason,omitempty"`  // why it stopped
}

// DrainState is the state of a drain.
type DrainState string

const (
	DrainActive  DrainState = "draining" // instances are moved to other nodes
	DrainDone    DrainState = "drained"  // no instance is left
	DrainStopped DrainState = "stopped"  // it ended early: what is left stays
)

// MovesInstances reports whether instances on the node are moved to other nodes. After a
// drain too: an instance may have been created there while the drain began.
func (d *Drain) MovesInstances() bool { return d != nil && d.State != DrainStopped }

// IsIncomplete reports whether instances may be left: the drain is in progress, or it stopped
// early.
func (d *Drain) IsIncomplete() bool { return d != nil && d.State != DrainDone }

// TakesInstances reports whether operators let a node have new instances.
func (s *NodeSpec) TakesInstances() bool { return !s.Drained && s.Reserved == "" && s.Approval == "" }

// OwnsName reports whether no other node can take its name.
func (s *NodeSpec) OwnsName() bool {
	return s.Approval == "" || s.Approval == ApprovalPending && !s.Tokenless
}

// MaxRetiredKeys bounds how many replaced keys of a node are recognized.
const MaxRetiredKeys = 8

// HasKey reports whether a key, given as its hash, is valid for the node: its key, or the
// one that replaces it.
func (s *NodeSpec) HasKey(hash string) bool {
	return sameHash(s.KeyHash, hash) || sameHash(s.NextKeyHash, hash)
}

// HasRetiredKey reports whether a key, given as its hash, was replaced by another one.
func (s *NodeSpec) HasRetiredKey(hash string) bool {
	return slices.ContainsFunc(s.RetiredKeys, func(old string) bool { return sameHash(old, hash) })
}

// AdoptKey makes the new key the only one.
func (s *NodeSpec) AdoptKey() {
	retired := append(slices.Clone(s.RetiredKeys), s.KeyHash)
	s.RetiredKeys = retired[max(0, len(retired)-MaxRetiredKeys):]
	s.KeyHash, s.NextKeyHash, s.RotateKey = s.NextKeyHash, "", time.Time{}
}

// RetiredKeyMessage is for an agent with a key that was replaced.
const RetiredKeyMessage = "the key of this node was replaced (mariposa node rotate-key), and this agent has an old one: its data directory is an old copy. " +
	"Use the current directory of the node; if that is lost, remove the node (mariposa node rm) and start the agent with a join token"

func sameHash(a, b string) bool {
	return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// SkipsWaiting reports whether a user asked to replace the instances on the node at once,
// after it was lost.
func (s *NodeSpec) SkipsWaiting(st *NodeStatus) bool {
	return !s.RescheduleNow.IsZero() && st != nil && st.State == NodeUnknown && !s.RescheduleNow.Before(st.Since)
}

const (
	MaxLosses     = 10
	lossesForget  = time.Hour
	stableLosses  = 2                // so many losses within an hour are no sign of instability
	firstUnstable = 2 * time.Minute  // after one more; twice as long after each further one
	maxUnstable   = 30 * time.Minute // at most
)

// AddLoss returns the losses of a node with one more.
func AddLoss(losses []time.Time, at time.Time) []time.Time {
	var out []time.Time
	for _, l := range losses {
		if at.Sub(l) < lossesForget {
			out = append(out, l)
		}
	}
	if out = append(out, at); len(out) > MaxLosses {
		out = out[len(out)-MaxLosses:]
	}
	return out
}

// UnstableUntil returns until when a node that was lost several times within an hour is
// avoided; zero: it is not. The time counts from its return: what it was away for does
// not show that it is stable.
func (s *NodeStatus) UnstableUntil() time.Time {
	n := s.RecentLosses() - stableLosses
	if n <= 0 {
		return time.Time{}
	}
	return s.stableSince().Add(min(maxUnstable, firstUnstable<<min(n-1, 8)))
}

// ShunnedUntil returns until when an unstable node gets no replacements of lost instances,
// even if no other node fits; zero: it may get them. That is not for long: if this node is
// the only one that is left, instances must not wait half an hour for a better one.
func (s *NodeStatus) ShunnedUntil() time.Time {
	if s.UnstableUntil().IsZero() {
		return time.Time{}
	}
	return s.stableSince().Add(firstUnstable)
}

// RecentLosses returns how often the node was lost within an hour before it returned, or
// before it was lost for the last time.
func (s *NodeStatus) RecentLosses() (n int) {
	for _, l := range s.Losses {
		if s.stableSince().Sub(l) < lossesForget {
			n++
		}
	}
	return n
}

// stableSince returns when the node was last lost or returned.
func (s *NodeStatus) stableSince() time.Time {
	if n := len(s.Losses); n > 0 && s.Losses[n-1].After(s.Since) {
		return s.Losses[n-1]
	}
	return s.Since
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
	Console  bool `json:"console,omitempty"`  // instances have a console
	// Snapshots: the state of instances can be saved and restored.
	Snapshots bool `json:"snapshots,omitempty"`
	Survives  bool `json:"survives,omitempty"` // instances keep running while the agent is down
	// Updates are the fields of a workload that Update can change, by their
	// names in a manifest.
	Updates []string `json:"updates,omitempty"`
	// Unbounded: operations cost the node nothing, so any number may run at once.
	Unbounded bool `json:"unbounded,omitempty"`
}

// Quarantined is an instance found on a node that this store does not know. It is left
// running until a user purges or adopts it.
type Quarantined struct {
	ID         string      `json:"id"`
	Name       string      `json:"name,omitempty"`
	Project    string      `json:"project_name,omitempty"`
	Compute    ComputeType `json:"compute_type"`
	PhysicalID string      `json:"physical_id,omitempty"`
	State      State       `json:"state"`
	Reason     string      `json:"reason"`
	Since      time.Time   `json:"since,omitzero" doc:"when it was quarantined"`
	Origin     *Provenance `json:"origin,omitempty" doc:"which slot it came from; absent if its node does not know that"`
}

// Provenance is where an instance came from: enough of its spec to take it back into its
// slot. Its node keeps it with the instance.
type Provenance struct {
	Project     string    `json:"project" doc:"id of its project"`
	Service     string    `json:"service,omitempty" doc:"id of its service; absent if it belongs to none"`
	ServiceName string    `json:"service_name,omitempty"`
	Slot        int       `json:"slot"`
	Number      int       `json:"number" doc:"number of the version that it was created from"`
	Digest      string    `json:"digest,omitempty" doc:"of its definition"`
	Live        string    `json:"live,omitempty" doc:"of the fields of its definition that are changed in place"`
	Created     time.Time `json:"created,omitzero"`
	Mounts      []Mount   `json:"mounts,omitempty"`
	Networks    []Join    `json:"networks,omitempty"`
	Bindings    *Bindings `json:"bindings,omitempty"`
	Bound       string    `json:"bound,omitempty"`
	// Proof is the signature of the server that assigned the instance to its node. Without it,
	// no server believes the node. It is not shown.
	Proof string `json:"proof,omitempty" hidden:"true"`
}

// SignedParts returns what Proof signs: all of the provenance, the instance that it belongs
// to, and the node that the instance was assigned to.
func (p Provenance) SignedParts(cluster, node, instance, name string) []string {
	p.Proof, p.Created = "", p.Created.UTC() // the location of a time is not kept everywhere
	b, _ := json.Marshal(p)                  // never fails
	return []string{cluster, node, instance, name, string(b)}
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

// IsAway reports whether a node is not in contact: it is unknown, or it has announced a
// reboot.
func (s NodeState) IsAway() bool { return s == NodeUnknown || s == NodeRebooting }

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

// Package wire is the protocol between agents and the control plane over one persistent
// connection. Frames are numbered in each direction: a receiver closes the connection if
// a number is missing and ignores one it has seen, so lost and duplicate frames do no
// harm. Heartbeats have no number: they overtake everything else. Streams (logs, commands
// in instances) share the connection. The package owns the messages and their limits, not
// how they are handled.
package wire

import (
	"encoding/json"
	"time"

	"mariposa"
)

// Protocol is the version both sides must speak.
//
//	1 (2026-11): hello, welcome, assign, report, beat, bye, ask, data
//	2 (2026-11): mdata; assignments with files, the goal stopped, and manual restarts; frames up to 32 MiB
//	3 (2026-11): exec; data with stderr, exit codes, credit for input and the kind of an error
//	4 (2026-11): resources (volumes) and their states in reports; assignments with mounts
//	5 (2026-11): networks as resources; assignments with networks
//	6 (2026-11): assignments with a stop timeout
//	7 (2026-11): hello with the capabilities of each driver; asks for the usage of an instance
//	8 (2026-11): logs, commands and usage go over streams; crash instead of ask, exec and data
//	9 (2026-11): assignments say whether the instance is frozen
//	10 (2026-11): logs since a time and with timestamps; workloads with a mark for the port and a working directory
//	11 (2026-11): heartbeats without a number, with the last frame sent; large frames in pieces, inventories in several frames; keys are rotated; bye says that the node waits for approval or was removed
//	12 (2026-11): assignments with the restart policy in force
//	13 (2026-11): reports with compute types that a node has begun or ceased to offer; workloads with a user and name servers
//	14 (2026-11): assignments of adopted containers; streams that list foreign containers
//	15 (2026-11): assignments with health checks; the health of instances and the results of their checks in reports
//	16 (2026-11): names, and hello with whether the node wants them; the members of load balancers; assignments that wait until their connections have ended
const Protocol = 16

// NodeHeader is the request header with which an agent proves which node it is: ID:KEY. A
// node that has joined before needs no join token. A node whose key was rotated sends it
// twice, with its key and the one before.
const NodeHeader = "Mariposa-Node"

// MaxFrame is the largest frame in bytes: the values of one instance fit, even several
// of a megabyte each.
const MaxFrame = 32 << 20

// MaxHello is the largest frame that a server takes from an agent without a session. A hello
// has no instances; with the facts of a large machine it takes a few KiB.
const MaxHello = 128 << 10

// Batch is the largest number of instances, or of resources, in one frame.
const Batch = 500

// Frame is one message. Exactly one of the pointers is set.
type Frame struct {
	Seq       int64      `json:"seq"`
	Hello     *Hello     `json:"hello,omitempty"`
	Welcome   *Welcome   `json:"welcome,omitempty"`
	Assign    *Assign    `json:"assign,omitempty"`
	Mdata     *Mdata     `json:"mdata,omitempty"`
	Provide   *Provide   `json:"provide,omitempty"`
	Report    *Report    `json:"report,omitempty"`
	Heartbeat *Heartbeat `json:"beat,omitempty"`
	Bye       *Bye       `json:"bye,omitempty"`
	Crash     *Crash     `json:"crash,omitempty"`
	Rotate    *Rotate    `json:"rotate,omitempty"`
	Names     *Names     `json:"names,omitempty"`
	Balance   *Balance   `json:"balance,omitempty"`

	size int
}

// Size returns how many bytes the frame had when it was received; zero if it was not.
func (f *Frame) Size() int { return f.size }

// Hello opens a session: the agent identifies its node.
type Hello struct {
	Protocol int    `json:"protocol"`
	Release  string `json:"release,omitempty"` // of the agent, for messages to people
	Node     string `json:"node"`
	Key      string `json:"key"` // the node's own secret; the first hello fixes it
	// FormerKey is the key before Key; empty if there is none. It is still valid if the
	// store does not know Key yet, or does not know it any more after a restore.
	FormerKey string                 `json:"former_key,omitempty"`
	Name      string                 `json:"name"`
	Rack      string                 `json:"rack,omitempty"`
	DC        string                 `json:"dc,omitempty"`
	Traits    map[string]string      `json:"traits,omitempty"`
	Dummy     bool                   `json:"dummy,omitempty"`
	Capacity  mariposa.Resources     `json:"capacity"`
	Drivers   []mariposa.ComputeType `json:"drivers"`
	// Capabilities are those that each driver declares.
	Capabilities map[mariposa.ComputeType]mariposa.Capabilities `json:"capabilities,omitempty"`
	// Offers are what drivers report about the machine. Compute types that are
	// unavailable here are not in Drivers.
	Offers map[mariposa.ComputeType]mariposa.Offer `json:"offers,omitempty"`
	// Home identifies the place of the node's data directory: a machine and a path. A copy
	// of the directory has another one. Empty: unknown.
	Home string `json:"home,omitempty"`
	// Seen is the newest state of the store that the node knows of. A store with an older
	// state has gone back.
	Seen *Seen `json:"seen,omitempty"`
	// Acks says that the agent acknowledges streams if it is asked to. Agents of earlier
	// releases do not.
	Acks bool `json:"acks,omitempty"`
	// Machine are the facts of the machine; nil: none, as for a dummy node.
	Machine *mariposa.Machine `json:"machine,omitempty"`
	// Names says that the node has a DNS server, and wants the names that it answers.
	Names bool `json:"names,omitempty"`
}

// Seen is a state of the store.
type Seen struct {
	Incarnation string   `json:"incarnation"`
	Revision    int64    `json:"revision"`
	Past        []string `json:"past,omitempty"` // incarnations before this one; a store that has one of them has gone back
	// Proof is the signature of the server that told the node this state. Without it, no
	// server believes the node.
	Proof string `json:"proof,omitempty"`
}

// Welcome answers a hello. A snapshot of assignments follows it.
type Welcome struct {
	Epoch             int64         `json:"epoch"`
	Cluster           string        `json:"cluster"`
	Incarnation       string        `json:"incarnation"`
	Revision          int64         `json:"revision"`
	HeartbeatInterval time.Duration `json:"beat"`              // how often the agent sends a heartbeat
	Servers           []string      `json:"servers,omitempty"` // as in Heartbeat
	KeyHash           string        `json:"key_hash"`          // of the key that admitted the node
	Past              []string      `json:"past,omitempty"`    // for Seen, as the next
	Proof             string        `json:"proof,omitempty"`
}

// Assign sends the node the goals of its instances. The frames of a snapshot name every
// instance that this store knows on the node; the last frame sets Last.
type Assign struct {
	Snapshot  bool                          `json:"snapshot,omitempty"`
	Last      bool                          `json:"last,omitempty"`
	Workloads map[string]*mariposa.Workload `json:"workloads,omitempty"`
	Logins    map[string]*mariposa.Login    `json:"logins,omitempty"` // to registries of images
	Checks    map[string]*Checks            `json:"checks,omitempty"`
	Items     []Assignment                  `json:"items,omitempty"`
	Revision  int64                         `json:"revision,omitempty"` // of the store
	Proof     string                        `json:"proof,omitempty"`    // of that revision, for Seen
}

// Assignment is the goal of one instance. The goal gone for an instance that was never
// assigned to the node is a tombstone: the instance with that id is removed.
type Assignment struct {
	ID             string                   `json:"id"`
	Name           string                   `json:"name,omitempty"`
	Project        string                   `json:"project,omitempty"`
	Service        string                   `json:"service,omitempty"`
	Generation     int64                    `json:"generation"`
	Goal           mariposa.Goal            `json:"goal"`
	ManualRestarts int                      `json:"bounces,omitempty"`  // manual restarts requested so far; it restarts in place until its status has as many
	Workload       string                   `json:"workload,omitempty"` // key into Workloads of the same frame
	Login          string                   `json:"login,omitempty"`    // key into Logins of the same frame
	Checks         string                   `json:"checks,omitempty"`   // key into Checks of the same frame; empty: it has none
	Status         *mariposa.InstanceStatus `json:"status,omitempty"`   // in snapshots: its last known status
	Mounts         []mariposa.Mount         `json:"mounts,omitempty"`   // volumes that must be there before it starts
	Networks       []mariposa.Join          `json:"networks,omitempty"` // networks that must be there before it starts
	// Origin is what the node keeps about it, so that it can be taken back into its slot by
	// a store that does not know it.
	Origin *mariposa.Provenance `json:"origin,omitempty"`
	// Adopts is the id of the foreign container that the instance is; empty if the node creates
	// the instance.
	Adopts string `json:"adopts,omitempty"`
	// Frozen: its service is frozen. If it ends, it is not restarted in place.
	Frozen bool `json:"frozen,omitempty"`
	// Restart is the restart policy in force; if nil, the workload's applies.
	Restart *mariposa.Restart `json:"restart,omitempty"`
	// StopTimeout is how long an instance whose goal is not running may take to stop;
	// negative means no limit. A shorter one also applies to a stop in progress. If nil,
	// the workload decides.
	StopTimeout *time.Duration `json:"within,omitempty"`
	// Drain is how long an instance that is to be stopped, or restarted because ManualRestarts
	// says so, keeps running at most, counted from when the node first receives it, so that its
	// connections can end. It is sent again without it once they have ended. Zero: it is stopped
	// at once.
	Drain time.Duration `json:"drain,omitempty"`
}

// Balance sends the node the members of one of its load balancers: all of them, and only the
// newest list counts.
type Balance struct {
	ID      string            `json:"id"` // of the balancer's instance
	Members []mariposa.Member `json:"members,omitempty"`
}

// Checks are the health checks in force of an instance.
type Checks struct {
	List  []mariposa.HealthCheck `json:"list"`
	Grace time.Duration          `json:"grace"` // how long it may take to pass for the first time
}

// Provide sends the node the goals of its resources, which instances use and which
// outlive them. They are sent before the assignments that need them. The frames of a
// snapshot name every resource that this store knows on the node; the last frame sets
// Last. Resources that are not named are left alone: only the goal gone removes one.
type Provide struct {
	Snapshot bool        `json:"snapshot,omitempty"`
	Last     bool        `json:"last,omitempty"`
	Items    []Provision `json:"items,omitempty"`
}

// Provision is the goal of one resource.
type Provision struct {
	Kind    mariposa.Kind        `json:"kind"`
	ID      string               `json:"id"`
	Name    string               `json:"name,omitempty"`
	Compute mariposa.ComputeType `json:"compute"` // whose driver has it
	Goal    mariposa.Goal        `json:"goal"`    // kept or gone
	Size    int64                `json:"size,omitempty"`
}

// Provided is the state of one resource.
type Provided struct {
	Kind   mariposa.Kind          `json:"kind"`
	ID     string                 `json:"id"`
	State  mariposa.ResourceState `json:"state"`
	Path   string                 `json:"path,omitempty"`
	Reason string                 `json:"reason,omitempty"`
}

// Mdata sends the node the values that instances can read while they run. Sent before
// the assignment of a new instance, they are there when it starts; sent later, they
// replace the instance's values. An instance that is not named keeps its values; one
// that is named without values loses them.
type Mdata struct {
	Items []MdataItem `json:"items,omitempty"`
}

// MdataItem is all values of one instance. Number grows with each change; the node
// ignores values with a smaller number than the last.
type MdataItem struct {
	ID     string              `json:"id"`
	Number int64               `json:"number"`
	Values []mariposa.Variable `json:"values,omitempty"`
}

// Report is the actual state of the node.
type Report struct {
	Items       []Status               `json:"items,omitempty"`
	Provided    []Provided             `json:"provided,omitempty"`
	Quarantined []mariposa.Quarantined `json:"quarantined,omitempty"` // a part of the inventory
	Inventory   bool                   `json:"inventory,omitempty"`   // Quarantined is the last part of it, perhaps empty
	Machine     *mariposa.Machine      `json:"machine,omitempty"`     // the facts of the machine have changed
	Abilities   *Abilities             `json:"abilities,omitempty"`   // what it can run has changed

	weight int // of the items, about
}

// Abilities are the compute types that a node can run, as in its hello.
type Abilities struct {
	Drivers []mariposa.ComputeType                  `json:"drivers,omitempty"`
	Offers  map[mariposa.ComputeType]mariposa.Offer `json:"offers,omitempty"`
}

// Status is the actual state of one instance.
type Status struct {
	ID     string                  `json:"id"`
	Status mariposa.InstanceStatus `json:"status"`
}

// Heartbeat means that its sender is alive. It is not numbered, because it overtakes the
// frames that wait to be written.
type Heartbeat struct {
	Sent     int64 `json:"sent"`               // the last frame that was written before it
	Revision int64 `json:"revision,omitempty"` // of the store; from the server
	// Proof is that of the revision, for Seen.
	Proof string `json:"proof,omitempty"`
	// Servers are the addresses of all servers that are alive, from the server, if they
	// have changed. The agent can connect to any of them.
	Servers []string `json:"servers,omitempty"`
}

// Bye ends a session with the reason.
type Bye struct {
	Reason string `json:"reason"`
	Final  bool   `json:"final,omitempty"` // reconnecting will not help
	// Reboot: the node's machine is shutting down. From an agent only.
	Reboot bool `json:"reboot,omitempty"`
	// Pending: the node waits until an operator accepts it. From a server only, as the next.
	Pending bool `json:"pending,omitempty"`
	// Removed: an operator removed the node. It does not come back by itself.
	Removed bool `json:"removed,omitempty"`
	// Copied: the node runs with another data directory. The agent gives up soon, so that
	// no copy waits until it can take the node over.
	Copied bool `json:"copied,omitempty"`
}

// Rotate replaces the key of the node. From the server it is empty, and asks for a new key.
// The agent stores one and responds with its hash. From then on the server admits the node
// with both keys, and ends the session. Once the node has opened a session with the new
// key, the former one is no longer valid.
type Rotate struct {
	KeyHash string `json:"key_hash,omitempty"`
}

// Crash makes an instance fail, or makes its health checks pass or fail, if its driver can do
// that.
type Crash struct {
	Instance string `json:"instance"`
	// Health is healthy or unhealthy, for the checks; empty: the instance fails.
	Health mariposa.Health `json:"health,omitempty"`
}

// Encode returns the bytes of a frame.
func Encode(f Frame) ([]byte, error) { return json.Marshal(f) }

// Decode reads a frame and checks that it carries exactly one message.
func Decode(b []byte) (Frame, error) {
	if len(b) > MaxFrame {
		return Frame{}, mariposa.Errorf(mariposa.TooLarge, "frame of %d bytes exceeds the limit of %d bytes", len(b), MaxFrame)
	}
	if err := checkContent(b); err != nil {
		return Frame{}, err
	}
	return decodeChecked(b)
}

// decodeChecked reads a frame whose size and content were checked.
func decodeChecked(b []byte) (f Frame, err error) {
	if err := json.Unmarshal(b, &f); err != nil {
		return f, mariposa.Errorf(mariposa.InvalidArgument, "invalid frame: %w", err)
	}
	if n := f.countMessages(); n != 1 {
		return f, mariposa.Errorf(mariposa.InvalidArgument, "invalid frame: it contains %d messages instead of one", n)
	}
	f.size = len(b)
	return f, nil
}

// countMessages counts the messages in a frame.
func (f *Frame) countMessages() (n int) {
	for _, set := range []bool{
		f.Hello != nil, f.Welcome != nil, f.Assign != nil, f.Mdata != nil, f.Provide != nil, f.Report != nil,
		f.Heartbeat != nil, f.Bye != nil, f.Crash != nil, f.Rotate != nil, f.Names != nil, f.Balance != nil,
	} {
		if set {
			n++
		}
	}
	return n
}

// FrameOrder checks the numbers of received frames.
type FrameOrder struct{ seen int64 }

// Accept reports whether a frame is the next one. A duplicate must be ignored; a gap is
// an error, and the session must end.
func (o *FrameOrder) Accept(seq int64) (bool, error) {
	switch {
	case seq <= o.seen:
		return false, nil
	case seq > o.seen+1:
		return false, mariposa.Errorf(mariposa.InvalidArgument, "frame %d arrived after frame %d: a frame was lost", seq, o.seen)
	}
	o.seen = seq
	return true, nil
}

// Check returns an error if a frame that was sent before a heartbeat has not arrived.
func (o *FrameOrder) Check(b *Heartbeat) error {
	if b.Sent > o.seen {
		return mariposa.Errorf(mariposa.InvalidArgument, "frame %d was sent, but only %d arrived: a frame was lost", b.Sent, o.seen)
	}
	return nil
}

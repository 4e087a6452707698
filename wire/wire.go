// Package wire is what agents and the control plane say to each other over one
// persistent connection. Frames are numbered per direction: who misses a number
// hangs up, who sees one twice ignores it, so that lost and doubled messages do
// no harm. Streams (logs, commands inside instances) run beside them over the same
// connection. The package owns the shapes and their bounds, not what is done about
// them.
package wire

import (
	"encoding/json"
	"time"

	"mariposa"
)

// Protocol is the version both sides must speak.
//
//	1 (2026-11): hello, welcome, assign, report, beat, bye, ask, data
//	2 (2026-11): mdata; assignments with files, the goal stopped, and bounces; frames up to 32 MiB
//	3 (2026-11): exec; data with stderr, exit codes, credit for input and the kind of an error
//	4 (2026-11): resources (volumes) and their states in reports; assignments with mounts
//	5 (2026-11): networks as resources; assignments with networks
//	6 (2026-11): assignments with the time that a stop may take
//	7 (2026-11): hello with what each driver can do; asks for what an instance takes
//	8 (2026-11): logs, commands and what instances take go over streams; crash instead of ask, exec and data
const Protocol = 8

// MaxFrame bounds a frame in bytes: room for the values of one instance, of which
// each may have a megabyte.
const MaxFrame = 32 << 20

// Batch is how many instances, or resources, go into one frame at most.
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
}

// Hello opens a session: the agent says which node it is.
type Hello struct {
	Protocol int                    `json:"protocol"`
	Node     string                 `json:"node"`
	Key      string                 `json:"key"` // the node's own secret; the first hello fixes it
	Name     string                 `json:"name"`
	Rack     string                 `json:"rack,omitempty"`
	DC       string                 `json:"dc,omitempty"`
	Traits   map[string]string      `json:"traits,omitempty"`
	Dummy    bool                   `json:"dummy,omitempty"`
	Capacity mariposa.Resources     `json:"capacity"`
	Drivers  []mariposa.ComputeType `json:"drivers"`
	// Capabilities are what each driver declares of its kind.
	Capabilities map[mariposa.ComputeType]mariposa.Capabilities `json:"capabilities,omitempty"`
}

// Welcome answers a hello. A snapshot of assignments follows it.
type Welcome struct {
	Epoch             int64         `json:"epoch"`
	Cluster           string        `json:"cluster"`
	Incarnation       string        `json:"incarnation"`
	HeartbeatInterval time.Duration `json:"beat"` // how often to be heard of
}

// Assign tells the node what to make true. The frames of a snapshot name every
// instance that this store knows on the node; the last one says so.
type Assign struct {
	Snapshot  bool                          `json:"snapshot,omitempty"`
	Last      bool                          `json:"last,omitempty"`
	Workloads map[string]*mariposa.Workload `json:"workloads,omitempty"`
	Items     []Assignment                  `json:"items,omitempty"`
}

// Assignment is the goal of one instance. Goal gone for an instance that the
// node never heard of is a tombstone: what carries that id goes.
type Assignment struct {
	ID             string                   `json:"id"`
	Name           string                   `json:"name,omitempty"`
	Project        string                   `json:"project,omitempty"`
	Service        string                   `json:"service,omitempty"`
	Generation     int64                    `json:"generation"`
	Goal           mariposa.Goal            `json:"goal"`
	ManualRestarts int                      `json:"bounces,omitempty"`  // restarted in place until its status says as many
	Workload       string                   `json:"workload,omitempty"` // key into Workloads of the same frame
	Status         *mariposa.InstanceStatus `json:"status,omitempty"`   // in snapshots: what is known of it
	Mounts         []mariposa.Mount         `json:"mounts,omitempty"`   // volumes that must be there before it starts
	Networks       []mariposa.Join          `json:"networks,omitempty"` // networks likewise
	// StopTimeout is how long one that is not to run may take to stop; negative: for ever.
	// Less than before takes effect on a stop under way. Nil: as its workload says.
	StopTimeout *time.Duration `json:"within,omitempty"`
}

// Provide tells the node which resources it is to have: what instances use and what
// outlives them. They are sent before the assignments that need them. The frames of
// a snapshot name everything that this store knows on the node; the last one says
// so. What is not named is left alone: only the goal gone takes a resource away.
type Provide struct {
	Snapshot bool        `json:"snapshot,omitempty"`
	Last     bool        `json:"last,omitempty"`
	Items    []Provision `json:"items,omitempty"`
}

// Provision is one resource of a node.
type Provision struct {
	Kind    mariposa.Kind        `json:"kind"`
	ID      string               `json:"id"`
	Name    string               `json:"name,omitempty"`
	Compute mariposa.ComputeType `json:"compute"` // whose driver has it
	Goal    mariposa.Goal        `json:"goal"`    // kept or gone
	Size    int64                `json:"size,omitempty"`
}

// Provided is what is so of one resource.
type Provided struct {
	Kind   mariposa.Kind          `json:"kind"`
	ID     string                 `json:"id"`
	State  mariposa.ResourceState `json:"state"`
	Path   string                 `json:"path,omitempty"`
	Reason string                 `json:"reason,omitempty"`
}

// Mdata tells the node the values that instances can read while they run. Sent
// before the assignment of a new instance, they are there when it starts; sent
// later, they replace what it has. An instance that is not named keeps its
// values: one that is to have none any more is named without any.
type Mdata struct {
	Items []MdataItem `json:"items,omitempty"`
}

// MdataItem is every value of one instance. Number grows with each change; a
// smaller one than the node has seen is old news.
type MdataItem struct {
	ID     string              `json:"id"`
	Number int64               `json:"number"`
	Values []mariposa.Variable `json:"values,omitempty"`
}

// Report tells what is so on the node.
type Report struct {
	Items       []Status               `json:"items,omitempty"`
	Provided    []Provided             `json:"provided,omitempty"`
	Quarantined []mariposa.Quarantined `json:"quarantined,omitempty"`
	Inventory   bool                   `json:"inventory,omitempty"` // Quarantined is the whole truth
}

// Status is what is so of one instance.
type Status struct {
	ID     string                  `json:"id"`
	Status mariposa.InstanceStatus `json:"status"`
}

// Heartbeat says that its sender is there, and which frame it saw last.
type Heartbeat struct {
	Seen int64 `json:"seen"`
}

// Bye ends a session with the reason.
type Bye struct {
	Reason string `json:"reason"`
	Final  bool   `json:"final,omitempty"` // coming again will not help
}

// Crash has an instance of a kind that can do so fail.
type Crash struct {
	Instance string `json:"instance"`
}

// Encode makes the bytes of a frame.
func Encode(f Frame) ([]byte, error) { return json.Marshal(f) }

// Decode reads a frame and checks that it says exactly one thing.
func Decode(b []byte) (Frame, error) {
	var f Frame
	if len(b) > MaxFrame {
		return f, mariposa.Errorf(mariposa.TooLarge, "a frame of %d bytes is larger than %d", len(b), MaxFrame)
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return f, mariposa.Errorf(mariposa.InvalidArgument, "a frame is not readable: %w", err)
	}
	if n := f.countMessages(); n != 1 {
		return f, mariposa.Errorf(mariposa.InvalidArgument, "a frame says %d things instead of one", n)
	}
	return f, nil
}

// countMessages counts what a frame says.
func (f *Frame) countMessages() (n int) {
	for _, set := range []bool{
		f.Hello != nil, f.Welcome != nil, f.Assign != nil, f.Mdata != nil, f.Provide != nil, f.Report != nil,
		f.Heartbeat != nil, f.Bye != nil, f.Crash != nil,
	} {
		if set {
			n++
		}
	}
	return n
}

// FrameOrder checks the numbers of frames that arrive from the other side.
type FrameOrder struct{ seen int64 }

// Accept reports whether a frame is the next one. One seen before is to be
// ignored; a gap is an error, and the session must end.
func (o *FrameOrder) Accept(seq int64) (bool, error) {
	switch {
	case seq <= o.seen:
		return false, nil
	case seq > o.seen+1:
		return false, mariposa.Errorf(mariposa.InvalidArgument, "frame %d came after %d: something was lost on the way", seq, o.seen)
	}
	o.seen = seq
	return true, nil
}

// Seen is the number of the newest frame accepted.
func (o *FrameOrder) Seen() int64 { return o.seen }

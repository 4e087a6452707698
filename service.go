package mariposa

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Service is the checked definition of one service in one version of a
// manifest. It is shared and never changed after the manifest room made it.
type Service struct {
	Name         string
	Type         string // continuous | scheduled | event
	Compute      ComputeType
	Image        string
	Scale        *int // nil: leave as it is, 1 for a new service
	Package      string
	Memory       int64 // bytes; 0: no limit
	MilliCPU     int64 // thousandths of a core; 0: no limit
	Command      []string
	Entrypoint   []string
	Environment  []Variable
	Mdata        []Variable
	Files        []Variable
	Tags         []Variable
	Affinity     []string
	Ports        []Port
	DNS          []string
	DNSSearch    []string
	Volumes      []string
	Sizes        map[string]int64 // of the volumes that have one, by name; nothing is made anew for them
	Networks     []string
	Shared       []string // of the networks, those that other projects of the organization may use too; sorted
	DependsOn    []string // sorted
	HealthChecks []HealthCheck
	Pilot        *int // containerpilot's port; nil: none
	Grace        time.Duration
	Restart      Restart
	Reschedule   Reschedule
	Stop         Stop
	Update       Update
	Schedule     string
	Dummy        *Dummy // compute type dummy only

	// Digest covers the fields whose change needs a new incarnation, Live those
	// that the driver changes in place. Where values of metadata go into the
	// former, a keyed digest of them follows after a dot: Form is what stands
	// before it.
	Digest string
	Live   string

	// Refs are what its instances are made with of other services, LiveRefs what
	// only its mdata holds of them; both sorted.
	Refs     []Ref
	LiveRefs []Ref

	// Needs are the metadata keys without which nothing of it can be made; Secrets
	// are those among them that are secret.
	Needs   []string
	Secrets []string
}

// FixedPorts are the ports of its node that an instance takes.
func (s *Service) FixedPorts() []int {
	var all []int
	for _, p := range s.Ports {
		if p.Host != 0 {
			all = append(all, p.Host)
		}
	}
	return all
}

// FormOf is the part of a digest that the manifest alone decides.
func FormOf(digest string) string {
	form, _, _ := strings.Cut(digest, ".")
	return form
}

// ComputeType says what kind of compute an instance is, by its canonical name.
type ComputeType string

const (
	ComputeDocker         ComputeType = "docker"
	ComputeInfrastructure ComputeType = "infrastructure"
	ComputeKVM            ComputeType = "kvm"
	ComputeProcess        ComputeType = "process"
	ComputeDummy          ComputeType = "dummy"
)

// Variable is a name with a value that may hold interpolations. Lists of them
// keep the order of the manifest.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Port is a port an instance listens on. Host is the fixed port on the node, 0
// when any free one will do.
type Port struct {
	Host   int `json:"host,omitempty"`
	Target int `json:"target"`
}

// HealthCheck is one check of an instance's health.
type HealthCheck struct {
	Type          string // http | tcp
	Port          int
	Path          string
	Poll          time.Duration
	UnhealthyPoll time.Duration
	Timeout       time.Duration
	Retries       int
	ExpectStatus  int
	ExpectHeaders []Variable
	ExpectBody    string
}

// Restart says what the node does when an instance ends by itself.
type Restart struct {
	Policy RestartPolicy `json:"policy"`
	Max    int           `json:"max,omitempty"` // on-failure:n; 0: no limit of its own
}

// RestartPolicy names a restart behaviour.
type RestartPolicy string

const (
	RestartNo            RestartPolicy = "no"
	RestartOnFailure     RestartPolicy = "on-failure"
	RestartAlways        RestartPolicy = "always"
	RestartUnlessStopped RestartPolicy = "unless-stopped"
)

// Reschedule says how long an unreachable node is waited for.
type Reschedule struct {
	After time.Duration
	Never bool
}

// Stop says how an instance is stopped. A negative timeout waits for ever.
type Stop struct {
	Timeout         time.Duration
	PreserveStopped string
}

// Update says how a new definition is rolled out.
type Update struct {
	Rolling    Amount
	Canary     Amount
	StopFirst  bool
	MinHealthy time.Duration
	Deadline   time.Duration
	OnFailure  OnFailure
	OnMetadata string
}

// What PreserveStopped may say: whose remains are kept for a while.
const (
	PreserveNo        = "no"
	PreserveOnFailure = "on-failure" // of those that ended by themselves
	PreserveAlways    = "always"     // also of those that were told to stop
)

// OnFailure says what a rollout does that does not get on.
type OnFailure string

const (
	OnFailurePause    OnFailure = "pause"
	OnFailureRollback OnFailure = "rollback"
	OnFailureContinue OnFailure = "continue"
)

// OnMetadataReprovision is the OnMetadata by which other values of metadata
// make new instances; otherwise they are left alone.
const OnMetadataReprovision = "reprovision"

// Dummy holds the knobs of a dummy instance.
type Dummy struct {
	NameLen           int           `json:"name_len"`
	UpdateInPlaceProp string        `json:"update_in_place_prop,omitempty"`
	Fail              bool          `json:"fail,omitempty"`
	MaxWait           time.Duration `json:"max_wait,omitempty"`
	Wait              time.Duration `json:"wait,omitempty"`
}

// Amount is a number or a percentage of something.
type Amount struct {
	N       int  `json:"n"`
	Percent bool `json:"percent,omitempty"`
}

// Of says how many of total an amount is: at least one unless the amount is zero.
func (a Amount) Of(total int) int {
	if !a.Percent || a.N == 0 {
		return a.N
	}
	return max(1, int(math.Ceil(float64(a.N)*float64(total)/100)))
}

func (a Amount) String() string {
	if a.Percent {
		return strconv.Itoa(a.N) + "%"
	}
	return strconv.Itoa(a.N)
}

// ParseAmount reads "3" or "25%".
func ParseAmount(s string) (Amount, bool) {
	digits, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || (percent && n > 100) {
		return Amount{}, false
	}
	return Amount{N: n, Percent: percent}, true
}

// Workload is what a driver runs: a service's definition with every
// interpolation resolved.
type Workload struct {
	Compute     ComputeType   `json:"compute"`
	Image       string        `json:"image,omitempty"`
	Command     []string      `json:"command,omitempty"`
	Entrypoint  []string      `json:"entrypoint,omitempty"`
	Environment []Variable    `json:"environment,omitempty"`
	Memory      int64         `json:"memory,omitempty"`
	MilliCPU    int64         `json:"milli_cpu,omitempty"`
	Ports       []Port        `json:"ports,omitempty"`
	Tags        []Variable    `json:"tags,omitempty"`
	Files       []Variable    `json:"files,omitempty"`        // path -> content, readable by the instance alone
	StopTimeout time.Duration `json:"stop_timeout,omitempty"` // negative: wait for ever
	Restart     Restart       `json:"restart,omitzero"`
	Dummy       *Dummy        `json:"dummy,omitempty"`
}

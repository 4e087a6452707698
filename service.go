package mariposa

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Service is the validated definition of one service in one version of a manifest. It is
// shared and immutable.
type Service struct {
	Name         string
	Type         string // continuous | scheduled | event
	Compute      ComputeType
	Image        string
	ImageDigest  string // what the image means in this version; empty if that is not known
	ImageLabels  ImageLabels
	Scale        *int // nil: leave as it is; 1 for a new service
	Package      string
	Memory       int64 // bytes; 0: no limit
	MilliCPU     int64 // thousandths of a core; 0: no limit
	Command      []string
	Entrypoint   []string
	WorkingDir   string // empty: the instance's own directory
	User         string // empty: that of the image
	Environment  []Variable
	Mdata        []Variable
	Files        []Variable
	Tags         []Variable
	Affinity     []string
	Ports        []Port
	DNS          []string
	DNSSearch    []string
	Volumes      []string
	Sizes        map[string]int64 // of the volumes that have one, by name; a change replaces no instance
	Networks     []string
	Shared       []string // the networks that other projects of the organization may use too; sorted
	DependsOn    []string // sorted
	HealthChecks []HealthCheck
	Pilot        *Pilot        // nil: it does not run ContainerPilot
	Grace        time.Duration // how long a new instance may take to pass its checks
	Restart      Restart
	Reschedule   Reschedule
	Stop         Stop
	Update       Update
	Schedule     string
	Dummy        *Dummy    // compute type dummy only
	Balancer     *Balancer // compute type balancer only

	// SharedVolumes are the volumes that all instances of the project share, sorted.
	SharedVolumes []string

	// Digest covers the fields whose change needs a new instance, Live those that the
	// driver changes in place. If metadata values go into Digest, a keyed digest of them
	// follows after a dot; FormOf returns the part before it.
	Digest string
	Live   string
	// ChecksDigest covers the health checks and their grace; empty: it has none.
	ChecksDigest string

	// Refs are the references to other services that its instances are created with;
	// LiveRefs are those used only in mdata. Both are sorted.
	Refs     []Ref
	LiveRefs []Ref

	// Needs are the metadata keys without which no instance can be created; Secrets are
	// the secret ones among them.
	Needs   []string
	Secrets []string
}

// FixedPorts returns the ports of its node that an instance uses.
func (s *Service) FixedPorts() []int {
	var all []int
	for _, p := range s.Ports {
		if p.Host != 0 {
			all = append(all, p.Host)
		}
	}
	return all
}

// Checks returns all checks of the service's instances, with that of ContainerPilot.
func (s *Service) Checks() []HealthCheck {
	if s.Pilot == nil {
		return s.HealthChecks
	}
	return append(slices.Clone(s.HealthChecks), HealthCheck{
		Type: CheckPilot, Port: s.Pilot.Port, Network: s.Pilot.Network,
		Poll: 5 * time.Second, UnhealthyPoll: time.Second, Timeout: 2 * time.Second, Retries: 2,
	})
}

// FormOf returns the part of a digest that depends on the manifest alone.
func FormOf(digest string) string {
	form, _, _ := strings.Cut(digest, ".")
	return form
}

// ComputeType is the kind of compute of an instance, by its canonical name.
type ComputeType string

const (
	ComputeDocker         ComputeType = "docker"
	ComputeInfrastructure ComputeType = "infrastructure"
	ComputeKVM            ComputeType = "kvm"
	ComputeProcess        ComputeType = "process"
	ComputeDummy          ComputeType = "dummy"
)

// Variable is a name with a value that may contain interpolations. Lists of them keep
// the order of the manifest.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Port is a port an instance listens on. Host is the fixed port on the node; 0 means any
// free port.
type Port struct {
	Host   int `json:"host,omitempty"`
	Target int `json:"target"`
}

// HealthCheck is one check of an instance's health.
type HealthCheck struct {
	Type          string        `json:"type"` // one of the Check constants
	Port          int           `json:"port,omitempty"`
	Network       string        `json:"network,omitempty"` // whose address is checked; empty: the instance's first address
	Path          string        `json:"path,omitempty"`
	Command       []string      `json:"command,omitempty"`
	User          string        `json:"user,omitempty"`     // runs the command; empty: the instance's own
	Insecure      bool          `json:"insecure,omitempty"` // https: any certificate will do
	Poll          time.Duration `json:"poll"`
	UnhealthyPoll time.Duration `json:"unhealthy_poll"`
	Timeout       time.Duration `json:"timeout"`
	Retries       int           `json:"retries,omitempty"`
	ExpectStatus  []StatusRange `json:"expect_status,omitempty"`
	ExpectHeaders []Variable    `json:"expect_headers,omitempty"`
	ExpectBody    string        `json:"expect_body,omitempty"` // text that the body contains, or a regular expression between slashes
}

// MostPause returns the longest pause between two attempts of a check that fails. It is not longer
// than poll, because an instance that recovers must be seen to do so before it is replaced.
func (c *HealthCheck) MostPause() time.Duration {
	return max(c.UnhealthyPoll, min(c.Poll, time.Minute))
}

// The types of health checks.
const (
	CheckHTTP    = "http"
	CheckHTTPS   = "https"
	CheckTCP     = "tcp"
	CheckCommand = "command"
	CheckPilot   = "containerpilot" // the status page of ContainerPilot
)

// StatusRange is a range of HTTP status codes, both ends included.
type StatusRange struct {
	From int `json:"from"`
	To   int `json:"to"`
}

func (r StatusRange) String() string {
	if r.From == r.To {
		return strconv.Itoa(r.From)
	}
	return strconv.Itoa(r.From) + "-" + strconv.Itoa(r.To)
}

// ParseStatusRange parses a status code such as 200, or a range such as 200-299.
func ParseStatusRange(text string) (StatusRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	from, err := strconv.Atoi(strings.TrimSpace(first))
	to := from
	if isRange && err == nil {
		to, err = strconv.Atoi(strings.TrimSpace(last))
	}
	if err != nil || from < 100 || from > to || to > 599 {
		return StatusRange{}, fmt.Errorf("%q is neither a status code such as 200 nor a range such as 200-299", text)
	}
	return StatusRange{From: from, To: to}, nil
}

// IsHTTP reports whether a check makes HTTP requests that the manifest describes.
func (c *HealthCheck) IsHTTP() bool { return c.Type == CheckHTTP || c.Type == CheckHTTPS }

// Name returns the short name of a check for people, such as "http :8080/health".
func (c *HealthCheck) Name() string {
	switch c.Type {
	case CheckCommand:
		return "command " + oneLine(strings.Join(c.Command, " "))
	case CheckHTTP, CheckHTTPS:
		return c.Type + " :" + strconv.Itoa(c.Port) + c.Path
	}
	return c.Type + " :" + strconv.Itoa(c.Port)
}

// oneLine makes a command, which may be a script, fit for a sentence.
func oneLine(text string) string {
	const most = 100 // characters
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || !unicode.IsPrint(r) }), " ")
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// BodyPattern returns the regular expression in an expected body: what is between slashes.
func BodyPattern(body string) (expr string, is bool) {
	if len(body) < 3 || body[0] != '/' || body[len(body)-1] != '/' {
		return "", false
	}
	return body[1 : len(body)-1], true
}

// Pilot is where ContainerPilot's status page is.
type Pilot struct {
	Port    int
	Network string // empty: at the instance's first address
}

// Restart says what the node does when an instance exits.
type Restart struct {
	Policy RestartPolicy `json:"policy"`
	Max    int           `json:"max,omitempty"` // on-failure:n; 0: no limit of its own
}

// Allows reports whether the policy restarts an instance that ended with an exit
// code; nil: it is not known.
func (r Restart) Allows(exitCode *int) bool {
	switch r.Policy {
	case RestartNo, "":
		return false
	case RestartOnFailure:
		return exitCode == nil || *exitCode != 0
	}
	return true
}

// RestartPolicy names a restart behaviour.
type RestartPolicy string

const (
	RestartNo            RestartPolicy = "no"
	RestartOnFailure     RestartPolicy = "on-failure"
	RestartAlways        RestartPolicy = "always"
	RestartUnlessStopped RestartPolicy = "unless-stopped"
)

// Reschedule says how long to wait for an unreachable node.
type Reschedule struct {
	After time.Duration
	Never bool
}

// Stop says how an instance is stopped. A negative timeout waits forever.
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

// ProofTime is how long an instance must be up to prove itself: in a rollout for
// MinHealthy, in the start of a service for a second at most, so that starts stay quick.
func (u *Update) ProofTime(isStart bool) time.Duration {
	if isStart {
		return min(u.MinHealthy, time.Second)
	}
	return u.MinHealthy
}

// The values of PreserveStopped: which ended instances are kept for a while.
const (
	PreserveNo        = "no"
	PreserveOnFailure = "on-failure" // those that ended by themselves
	PreserveAlways    = "always"     // also those that were stopped
)

// OnFailure says what a rollout does if it makes no progress.
type OnFailure string

const (
	OnFailurePause    OnFailure = "pause"
	OnFailureRollback OnFailure = "rollback"
	OnFailureContinue OnFailure = "continue"
)

// OnMetadataReprovision is the OnMetadata value with which a change of metadata
// values replaces instances; otherwise they are left alone.
const OnMetadataReprovision = "reprovision"

// Dummy contains the settings of a dummy instance.
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

// Of returns how many of total an amount is: at least one unless the amount is
// zero.
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
	WorkingDir  string        `json:"working_dir,omitempty"`
	User        string        `json:"user,omitempty"`
	DNS         []string      `json:"dns,omitempty"`
	DNSSearch   []string      `json:"dns_search,omitempty"`
	Environment []Variable    `json:"environment,omitempty"`
	Memory      int64         `json:"memory,omitempty"`
	MilliCPU    int64         `json:"milli_cpu,omitempty"`
	Ports       []Port        `json:"ports,omitempty"`
	Tags        []Variable    `json:"tags,omitempty"`
	Files       []Variable    `json:"files,omitempty"`        // path -> content, readable by the instance alone
	StopTimeout time.Duration `json:"stop_timeout,omitempty"` // negative: wait forever
	Restart     Restart       `json:"restart,omitzero"`
	Dummy       *Dummy        `json:"dummy,omitempty"`
	// PortMark is the placeholder of the instance's first port in the command, the
	// environment and the files, and occurs nowhere else in them: only the node knows
	// the port.
	PortMark string `json:"port_mark,omitempty"`
}

// WithPort returns the workload with its port in place of the mark.
func (w *Workload) WithPort(port int) *Workload {
	if w == nil || w.PortMark == "" {
		return w
	}
	out, number := *w, strconv.Itoa(port)
	out.PortMark = ""
	words := func(list []string) []string {
		list = slices.Clone(list)
		for i, word := range list {
			list[i] = strings.ReplaceAll(word, w.PortMark, number)
		}
		return list
	}
	variables := func(list []Variable) []Variable {
		list = slices.Clone(list)
		for i, v := range list {
			list[i].Value = strings.ReplaceAll(v.Value, w.PortMark, number)
		}
		return list
	}
	out.Command, out.Entrypoint = words(w.Command), words(w.Entrypoint)
	out.Environment, out.Files = variables(w.Environment), variables(w.Files)
	return &out
}

// Package contract defines the documents of the HTTP API. They are a public contract:
// fields may be added, but never renamed or removed. The API fills them and the client
// reads them. The package owns only their structure.
package contract

import (
	"encoding/json"
	"time"

	"mariposa"
)

// Project is one project.
type Project struct {
	ID               string               `json:"id"`
	Name             string               `json:"name"`
	Organization     string               `json:"organization"`
	OrganizationName string               `json:"organization_name"`
	Role             mariposa.Role        `json:"role,omitempty" doc:"the caller's role in the project"`
	Version          string               `json:"version" doc:"the newest submitted version"`
	Number           int                  `json:"number"`
	Goal             mariposa.ProjectGoal `json:"goal"`
	Status           mariposa.Status      `json:"status"`
	Reason           string               `json:"reason,omitempty"`
	ReasonCode       mariposa.ReasonCode  `json:"reason_code,omitempty" doc:"stable code of the reason; empty if there is no reason"`
	Created          time.Time            `json:"created"`
	Author           string               `json:"author,omitempty"`
	Services         []string             `json:"services"`
	Stored           *Stored              `json:"stored,omitempty" doc:"storage used by the project; only when a single project is requested"`
}

// Projects is a list of projects.
type Projects struct {
	Projects []Project `json:"projects"`
}

// Changed is the response to a change; only the fields that apply are set.
type Changed struct {
	ID      string   `json:"id,omitempty" doc:"id of the created object"`
	Name    string   `json:"name,omitempty"`
	Version string   `json:"version,omitempty"`
	Number  int      `json:"number,omitempty"`
	Task    *string  `json:"task" doc:"the task that carries out the change; null if there is nothing to do"`
	Joined  bool     `json:"joined,omitempty" doc:"the newest version has the same manifest already, and this open task was to bring it into force"`
	Reason  string   `json:"reason,omitempty" doc:"additional information about the effect of the change"`
	Missing []string `json:"missing,omitempty" doc:"required metadata keys without a value; services that need them wait"`

	NeedsApproval []string `json:"needs_approval,omitempty" doc:"protected secrets that the version uses; it comes into force after an operator approves it"`

	Ended  []EndedTask `json:"ended,omitempty" doc:"tasks that this change terminated early"`
	Thawed []string    `json:"thawed,omitempty" doc:"services whose freeze this change ends, if others stay frozen"`

	Images []Image `json:"images,omitempty" doc:"the images that were looked up for this change, and what they mean"`

	Adoptions []Adoption     `json:"adoptions,omitempty" doc:"for each quarantined instance, whether it was adopted; of those that were not, at most 500"`
	Remaining int            `json:"remaining,omitempty" doc:"quarantined instances that were not looked at, because one request adopts at most 500: send it again"`
	Drain     *DrainForecast `json:"drain,omitempty" doc:"for the dry run of a drain: what it would do"`

	// For a change of one metadata key.
	Key   string `json:"key,omitempty"`
	Value string `json:"value,omitempty"`
	CAS   string `json:"cas,omitempty"`
}

// Adoption is what became of a quarantined instance that was to be adopted.
type Adoption struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Adopted bool   `json:"adopted"`
	Reason  string `json:"reason,omitempty" doc:"why it was not adopted"`
}

// EndedTask is a task that a change ended early.
type EndedTask struct {
	ID           string             `json:"id"`
	Task         mariposa.TaskKind  `json:"task"`
	Services     []string           `json:"services" doc:"empty: the whole project"`
	State        mariposa.TaskState `json:"state" doc:"its state before it was terminated; a queued task had changed nothing yet and is dropped"`
	Reason       string             `json:"reason,omitempty" doc:"why the task was created"`
	ContinueWith string             `json:"continue_with,omitempty" doc:"the command that repeats the dropped change"`
}

// NewProject requests a project, as JSON.
type NewProject struct {
	Name         string          `json:"name"`
	Organization string          `json:"organization,omitempty"`
	Manifest     json.RawMessage `json:"manifest" doc:"the manifest as an object, or as YAML in a string"`
	Metadata     json.RawMessage `json:"metadata,omitempty" doc:"values by key as an object, or as YAML in a string"`
	Message      string          `json:"message,omitempty"`
}

// ProjectChange requests a change of a project; omitted fields remain unchanged.
type ProjectChange struct {
	Name     string          `json:"name,omitempty"`
	Manifest json.RawMessage `json:"manifest,omitempty" doc:"the manifest as an object, or as YAML in a string"`
	Metadata json.RawMessage `json:"metadata,omitempty" doc:"all values by key as an object, or as YAML in a string"`
	Message  string          `json:"message,omitempty"`
}

// Version is one submitted version of a manifest.
type Version struct {
	Version         string         `json:"version"`
	Number          int            `json:"number"`
	Created         time.Time      `json:"created"`
	Author          string         `json:"author"`
	Message         string         `json:"message"`
	Tags            []string       `json:"tags"`
	ServicesChanged []string       `json:"services_changed"`
	Completed       bool           `json:"completed" doc:"the version was fully rolled out at least once; metadata values that services do not apply automatically (on_metadata) do not count"`
	Outdated        int            `json:"outdated,omitempty" doc:"for the version in force: the number of instances that still run an earlier configuration"`
	Cause           mariposa.Cause `json:"cause" doc:"manifest, metadata, revert or refresh"`
	MetadataChanged []string       `json:"metadata_changed" doc:"metadata keys that differ from the previous version"`
	NeedsApproval   []string       `json:"needs_approval,omitempty" doc:"protected secrets that the version uses without an approval; it comes into force after an operator approves it"`
	Approval        *Approval      `json:"approval,omitempty" doc:"the approval to use protected secrets, if any"`
	Images          []Image        `json:"images" doc:"what the images of its containers mean, whatever their tags mean now"`
	Manifest        string         `json:"manifest,omitempty" doc:"the YAML as submitted, or generated if it was submitted as JSON; only when a single version is requested"`
}

// Approval is the approval of a version that uses protected secrets.
type Approval struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Number int       `json:"number" doc:"number of the approved version: this one, or one with the same manifest and values"`
}

// Versions is a page of versions, newest first.
type Versions struct {
	Versions []Version `json:"versions"`
	Marker   string    `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last page"`
}

// State is the desired and actual state of all requested projects, at one revision.
type State struct {
	Revision int64          `json:"revision"`
	Projects []ProjectState `json:"projects"`
}

// ProjectState is the desired and actual state of one project.
type ProjectState struct {
	ID               string               `json:"id"`
	Name             string               `json:"name"`
	Organization     string               `json:"organization"`
	OrganizationName string               `json:"organization_name"`
	Version          string               `json:"version" doc:"the version in force"`
	Goal             mariposa.ProjectGoal `json:"goal"`
	Status           mariposa.Status      `json:"status"`
	Frozen           bool                 `json:"frozen"`
	Paused           bool                 `json:"paused"`
	Reason           string               `json:"reason"`
	ReasonCode       mariposa.ReasonCode  `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	Services         []ServiceState       `json:"services"`
}

// ServiceState is the desired and actual state of one service.
type ServiceState struct {
	ID         string              `json:"id"`
	Name       string              `json:"name"`
	Version    string              `json:"version"`
	Number     int                 `json:"number" doc:"number of the version"`
	Goal       int                 `json:"goal" doc:"the desired number of instances"`
	Running    int                 `json:"running"`
	Healthy    int                 `json:"healthy"`
	Starting   int                 `json:"starting"`
	Stopping   int                 `json:"stopping"`
	Failed     int                 `json:"failed"`
	Unknown    int                 `json:"unknown"`
	Outdated   int                 `json:"outdated"`
	Frozen     bool                `json:"frozen"`
	Paused     bool                `json:"paused"`
	Status     mariposa.Status     `json:"status"`
	Reason     string              `json:"reason"`
	ReasonCode mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	Backoff    *Backoff            `json:"backoff"`
}

// Service is one service with its details.
type Service struct {
	Project     string `json:"project"`
	ProjectName string `json:"project_name"`
	ServiceState
	ComputeType mariposa.ComputeType `json:"compute_type"`
	Image       string               `json:"image"`
	DependsOn   []string             `json:"depends_on"`
	References  []Reference          `json:"references" doc:"references to other services and their resolved values"`
}

// Reference is a binding of a service to an instance of another one.
type Reference struct {
	Service      string            `json:"service_name"`
	Instance     string            `json:"instance"`
	InstanceName string            `json:"instance_name"`
	Values       map[string]string `json:"values" doc:"resolved values by field; environment variables of the other service are not included"`
}

// Services is a list of services.
type Services struct {
	Services []Service `json:"services"`
}

// Backoff is the number of failures of a service and the time of the next attempt.
type Backoff struct {
	Failures int       `json:"failures"`
	Until    time.Time `json:"until"`
}

// Action requests a change of state.
type Action struct {
	Action   string          `json:"action" enum:"start,stop,freeze,thaw,reprovision,revert,pause,resume,converge,accept,scale"`
	Version  string          `json:"version,omitempty" minLength:"1" doc:"a hash, number or tag of a version; omit it for any version"`
	Rolling  json.RawMessage `json:"rolling,omitempty" doc:"how many instances to replace at a time: a number, or a percentage such as \"25%\""`
	Canary   json.RawMessage `json:"canary,omitempty" doc:"hold the rollout after this many instances: a number or a percentage"`
	Count    json.RawMessage `json:"count,omitempty" doc:"for reprovision: same as canary; if the rollout is held, how many more instances to replace"`
	Filters  *Filters        `json:"filters,omitempty" doc:"for reprovision: only instances that match all filters"`
	Services []string        `json:"services,omitempty" doc:"ids or names of services, at least one; omit it for the whole project"`
	Scale    json.RawMessage `json:"scale,omitempty" doc:"5, \"+1\" or \"-2\"; for a project, an object of these by service. For revert: scales to set at the same time"`

	All       bool   `json:"all,omitempty" doc:"for reprovision: replace all instances. Without all, services or filters, only held rollouts continue"`
	WithScale bool   `json:"with_scale,omitempty" doc:"for revert: also restore the scales of the version"`
	Message   string `json:"message,omitempty" maxLength:"1000" doc:"for revert: a message for the version history"`

	RescheduleNow bool `json:"reschedule_now,omitempty" doc:"for converge: also replace the instances on lost nodes now, without waiting for reschedule.after or for the end of a loss of many nodes. Requires an operator"`
}

// Filters select the instances that match all given filters.
type Filters struct {
	Service  json.RawMessage `json:"service,omitempty" doc:"id or name of a service, or a list of them"`
	Version  string          `json:"version,omitempty" minLength:"1" doc:"the version that the instances were created from"`
	Image    string          `json:"image,omitempty" minLength:"1"`
	Instance json.RawMessage `json:"instance,omitempty" doc:"id or name of an instance, or a list of them"`
	Node     json.RawMessage `json:"node,omitempty" doc:"id or name of a node, or a list of them"`
}

// Task is one task of the queue.
type Task struct {
	ID          string              `json:"id"`
	Project     string              `json:"project"`
	ProjectName string              `json:"project_name"`
	Services    []string            `json:"services"`
	Component   string              `json:"component"`
	Task        mariposa.TaskKind   `json:"task"`
	State       mariposa.TaskState  `json:"state"`
	Origin      mariposa.Origin     `json:"origin"`
	Author      string              `json:"author"`
	Reason      string              `json:"reason"`
	ReasonCode  mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	EndedBy     string              `json:"ended_by"`
	WaitsFor    []string            `json:"waits_for,omitempty" doc:"for a queued task: the tasks that run first"`
	Waits       string              `json:"waits,omitempty" doc:"what an open task is waiting for, as a sentence; absent while it makes progress"`
	WaitsUntil  *time.Time          `json:"waits_until,omitempty" doc:"when an active task no longer waits for that; absent if there is no such time"`
	Created     time.Time           `json:"created"`
	Started     *time.Time          `json:"started"`
	Finished    *time.Time          `json:"finished"`
	Progress    mariposa.Progress   `json:"progress"`
	ETA         *time.Time          `json:"eta" doc:"estimated time of completion; null while the task waits and until it has completed a few steps"`
	Version     string              `json:"version"`
	Number      int                 `json:"number,omitempty" doc:"number of the version, if known"`
	Node        string              `json:"node,omitempty" doc:"for a drain: the node"`
	NodeName    string              `json:"node_name,omitempty"`
	Parent      string              `json:"parent,omitempty" doc:"the task that this one is part of: the drain of a node"`
	Steps       []TaskStep          `json:"steps,omitzero" doc:"newest first; only when a single task is requested"`
	Marker      string              `json:"marker,omitempty" doc:"for a single task: pass it to get older steps; absent if there are none"`
}

// Tasks is a page of tasks, newest first.
type Tasks struct {
	Tasks  []Task `json:"tasks"`
	Marker string `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last page"`
}

// TaskStep is one change that a task made or caused.
type TaskStep struct {
	Revision     int64               `json:"revision"`
	At           time.Time           `json:"at"`
	Instance     string              `json:"instance"`
	InstanceName string              `json:"instance_name"`
	Node         string              `json:"node"`
	NodeName     string              `json:"node_name"`
	Step         string              `json:"step" doc:"create, update, remove, keep (preserve an ended instance for inspection) or collect"`
	Result       string              `json:"result" doc:"asked, done, or the state that the node reports. Once the task has ended, every step is done, not done, running, stopped, failed or destroyed"`
	Reason       string              `json:"reason"`
	ReasonCode   mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
}

// Instance is one instance.
type Instance struct {
	ID          string               `json:"id"`
	Name        string               `json:"name"`
	Slot        string               `json:"slot"`
	Project     string               `json:"project"`
	ProjectName string               `json:"project_name"`
	Service     string               `json:"service"`
	ServiceName string               `json:"service_name"`
	Version     string               `json:"version"`
	Number      int                  `json:"number,omitempty" doc:"number of the version; absent for unmanaged instances"`
	ComputeType mariposa.ComputeType `json:"compute_type"`
	Node        string               `json:"node"`
	NodeName    string               `json:"node_name"`
	State       mariposa.State       `json:"state"`
	Health      mariposa.Health      `json:"health"`
	Goal        mariposa.Goal        `json:"goal"`
	PhysicalID  string               `json:"physical_id"`
	Addresses   []string             `json:"addresses"`
	// AddressesCount is set in events, which have a few of many addresses.
	AddressesCount int                 `json:"addresses_count,omitempty" doc:"in events: number of its addresses, if not all of them are here"`
	Created        time.Time           `json:"created"`
	Started        *time.Time          `json:"started"`
	Finished       *time.Time          `json:"finished"`
	ExitCode       *int                `json:"exit_code"`
	Restarts       int                 `json:"restarts"`
	Reason         string              `json:"reason"`
	ReasonCode     mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	Managed        bool                `json:"managed"`
	Usage          mariposa.Usage      `json:"usage" doc:"current usage of a running instance, as measured by its node; in a list only with usage=true; values that cannot be measured are absent"`
	Environment    []string            `json:"environment,omitempty" doc:"resolved environment; only when a single instance is requested"`
	Command        []string            `json:"command,omitempty"`
	Details        map[string]string   `json:"details,omitempty"`
	Volumes        []mariposa.Mount    `json:"volumes,omitempty" doc:"volumes that the instance uses; only when a single instance is requested"`
	Networks       []mariposa.Join     `json:"networks,omitempty" doc:"networks that the instance is connected to; only when a single instance is requested"`
	Checks         []CheckResult       `json:"checks,omitempty" doc:"results of its health checks; only when a single instance is requested"`
}

// ChangedInstances is the event instances of a stream of events.
type ChangedInstances struct {
	Project   string            `json:"project"`
	Instances []ChangedInstance `json:"instances"`
}

// ChangedInstance is an instance that has changed. The fields from Name on are set if the instance
// is new, or if its definition has changed. The others are always up to date: if one is absent, it
// is empty.
type ChangedInstance struct {
	Revision   int64               `json:"revision" doc:"of its last change"`
	ID         string              `json:"id"`
	State      mariposa.State      `json:"state" doc:"destroyed: the instance is deleted"`
	Health     mariposa.Health     `json:"health"`
	Started    *time.Time          `json:"started,omitempty"`
	Finished   *time.Time          `json:"finished,omitempty"`
	ExitCode   *int                `json:"exit_code,omitempty"`
	Restarts   int                 `json:"restarts,omitempty"`
	Reason     string              `json:"reason,omitempty"`
	ReasonCode mariposa.ReasonCode `json:"reason_code,omitempty"`

	Name        string               `json:"name,omitempty"`
	Slot        string               `json:"slot,omitempty"`
	ServiceName string               `json:"service_name,omitempty"`
	Number      int                  `json:"number,omitempty"`
	ComputeType mariposa.ComputeType `json:"compute_type,omitempty"`
	Node        string               `json:"node,omitempty"`
	NodeName    string               `json:"node_name,omitempty"`
	Goal        mariposa.Goal        `json:"goal,omitempty"`
	Created     *time.Time           `json:"created,omitempty"`
	Managed     bool                 `json:"managed,omitempty"`
}

// Instances is a page of instances.
type Instances struct {
	Instances []Instance `json:"instances"`
	Marker    string     `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last page"`
}

// InstanceAction requests an action on an instance.
type InstanceAction struct {
	Action string `json:"action" enum:"start,stop,restart,replace,crash,sicken,heal"`
}

// Node is one node.
type Node struct {
	ID               string                                  `json:"id"`
	Name             string                                  `json:"name"`
	Rack             string                                  `json:"rack"`
	DC               string                                  `json:"dc"`
	Traits           map[string]string                       `json:"traits"`
	Status           mariposa.NodeState                      `json:"status"`
	Reason           string                                  `json:"reason"`
	ReasonCode       mariposa.ReasonCode                     `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	Instances        int                                     `json:"instances"`
	Capacity         mariposa.Resources                      `json:"capacity"`
	Reserved         mariposa.Resources                      `json:"reserved"`
	Replica          string                                  `json:"replica"`
	LastHeartbeat    *time.Time                              `json:"last_heartbeat" doc:"when the node was last heard from; null: the replica that it is connected to does not answer this one, or it has not connected since all replicas were restarted"`
	Drivers          []mariposa.ComputeType                  `json:"drivers"`
	Offers           map[mariposa.ComputeType]mariposa.Offer `json:"offers" doc:"details that the node reports about compute types whose support depends on the machine"`
	Dummy            bool                                    `json:"dummy"`
	Quarantined      []mariposa.Quarantined                  `json:"quarantined" doc:"instances in quarantine; of many, only some: at most 100 of one node, and 20 of each in lists and events"`
	QuarantinedCount int                                     `json:"quarantined_count" doc:"number of instances in quarantine"`
	Address          string                                  `json:"address" doc:"address that the agent connected from; empty if not known yet"`
	Fingerprint      string                                  `json:"fingerprint" doc:"fingerprint of the agent's key, as printed by the agent"`
	Tokenless        bool                                    `json:"tokenless" doc:"whether the node came without a join token and is not accepted; what it reports about itself is not confirmed"`
	KeyRotation      *time.Time                              `json:"key_rotation" doc:"when a new key was asked for that the node does not use yet; null: it has the newest"`
	Machine          *mariposa.Machine                       `json:"machine,omitempty" doc:"facts of the machine, as reported by its agent; absent in lists and events, and for dummy nodes"`
	Eligible         bool                                    `json:"eligible" doc:"whether operators let the node take new instances: it is approved, and neither drained nor reserved"`
	Drain            *NodeDrain                              `json:"drain" doc:"the drain of the node; null if there is none"`
	CopyRefused      *mariposa.RefusedCopy                   `json:"copy_refused,omitempty" doc:"when an agent with a copy of the node's data directory was last refused; absent if that was not within a day"`
}

// Replica is one replica of the server.
type Replica struct {
	Name     string     `json:"name"`
	URL      string     `json:"url" doc:"address that it publishes for the other replicas and for agents; empty if it publishes none"`
	Version  string     `json:"version" doc:"release that it runs; empty if it does not say"`
	Since    *time.Time `json:"since" doc:"when it started"`
	Sessions int        `json:"sessions" doc:"number of nodes that are connected to it"`
	Shards   int        `json:"shards" doc:"number of shards of the projects that it plans"`
	Self     bool       `json:"self" doc:"true for the replica that answered this request"`
}

// Replicas is a list of replicas.
type Replicas struct {
	Replicas []Replica `json:"replicas"`
}

// PastNode is a node in an event. It has no counts, which are only known for the
// current state.
type PastNode struct {
	Node
	Instances *int                `json:"instances,omitempty"`
	Reserved  *mariposa.Resources `json:"reserved,omitempty"`
}

// Nodes is a list of nodes.
type Nodes struct {
	Nodes []Node `json:"nodes"`
	Storm *Storm `json:"storm" doc:"many nodes were lost at once, so that their instances are not replaced for now; null: they are"`
}

// NodeAction requests an action on a node.
type NodeAction struct {
	Action    string   `json:"action" enum:"drain,undrain,reserve,unreserve,reschedule-now,purge,adopt,lose,restore,accept,approve,reject,rotate-key" doc:"accept and approve are the same"`
	Instances []string `json:"instances,omitempty" doc:"for purge and adopt: the quarantined instances to remove or to adopt, at least one; omit it for all of them"`
	Replace   bool     `json:"replace,omitempty" doc:"for adopt: remove the instances that have taken their slots since"`
	// Unverified trusts the node instead of a signature.
	Unverified bool `json:"unverified,omitempty" doc:"for adopt, with instances: also adopt those whose origin no server of this installation has signed. Use it only if you trust the node"`
	// Fingerprint protects an approval against a changed key.
	Fingerprint string `json:"fingerprint,omitempty" doc:"for accept: the expected fingerprint of the node's key"`
	// Of a drain.
	Deadline *float64 `json:"deadline,omitempty" minimum:"0" maximum:"31536000" doc:"for drain: seconds after which the drain stops if instances are left; 0: never. Default: one hour"`
	Force    bool     `json:"force,omitempty" doc:"for drain: also remove instances that belong to no service"`
	DryRun   bool     `json:"dry_run,omitempty" doc:"for drain: only say what would be done"`
}

// NodeDrain is the drain of a node.
type NodeDrain struct {
	State    mariposa.DrainState `json:"state" enum:"draining,drained,stopped" doc:"draining: instances are moved to other nodes; drained: no instance is left; stopped: it ended early, and what is left stays"`
	Task     string              `json:"task"`
	By       string              `json:"by" doc:"who asked for it"`
	Since    time.Time           `json:"since"`
	Deadline *time.Time          `json:"deadline" doc:"when the drain stops if instances are left; null: never"`
	Left     int                 `json:"left" doc:"number of instances that have to leave the node"`
	Stays    []DrainMove         `json:"stays" doc:"instances that are still there, and why; at most 20"`
}

// DrainForecast is what a drain would do.
type DrainForecast struct {
	Moves    []DrainMove `json:"moves" doc:"instances that would be moved, and where the placer would put their successors now, one project after the other; other changes meanwhile can alter that; at most 1000"`
	Stays    []DrainMove `json:"stays" doc:"instances that cannot be moved now, and why; at most 1000"`
	Total    int         `json:"total" doc:"number of instances on the node"`
	Complete bool        `json:"complete" doc:"whether no instance would stay"`
}

// DrainMove is an instance on a node that is drained.
type DrainMove struct {
	Instance    string              `json:"instance"`
	Name        string              `json:"name"`
	Project     string              `json:"project"`
	ProjectName string              `json:"project_name"`
	ServiceName string              `json:"service_name"`
	To          string              `json:"to,omitempty" doc:"the node it would be moved to"`
	ToName      string              `json:"to_name,omitempty"`
	Removed     bool                `json:"removed,omitempty" doc:"it belongs to no service and would be removed"`
	Reason      string              `json:"reason,omitempty" doc:"why it cannot be moved now"`
	ReasonCode  mariposa.ReasonCode `json:"reason_code,omitempty"`
}

// Storm is a loss of many nodes at once.
type Storm struct {
	Since time.Time `json:"since" doc:"when the first of the nodes was lost"`
	Began time.Time `json:"began" doc:"when so many were lost that rescheduling stopped"`
	Count int       `json:"count" doc:"number of the nodes with instances that were lost at once and are lost now"`
	Of    int       `json:"of" doc:"number of nodes with instances, without those that were lost before"`
	// Waiting counts instances: projects and nodes for which an operator did not want to
	// wait have none.
	Waiting int    `json:"waiting" doc:"number of instances on the lost nodes that are not replaced until the nodes return"`
	Text    string `json:"reason"`
}

// Health is the response of the health endpoints.
type Health struct {
	Status  string `json:"status"`
	Version string `json:"version"`
	// Installation is the same at all replicas of an installation, and at no other server.
	Installation string `json:"installation,omitempty" doc:"id of the installation: the same at all of its replicas"`
}

// RevisionHeader is the header of a response with the newest revision that the server
// shows. A client that continues at another replica sends it back there, and sees at
// least as much.
const RevisionHeader = "Mariposa-Revision"

// TimeHeader is the response header with the time of the server's clock, in RFC 3339 format.
// Clients compute ages with it, because their own clocks may be wrong.
const TimeHeader = "Mariposa-Time"

// IncarnationHeader is the header of a response with the id of the incarnation of the
// store: another one after a backup was restored. Revisions of one incarnation mean
// nothing in another.
const IncarnationHeader = "Mariposa-Incarnation"

// LogLine is an event of a log: a line, or a part of one.
type LogLine struct {
	Time *time.Time `json:"time,omitempty" doc:"when the line began; absent if that was not recorded"`
	Text string     `json:"text" doc:"without the line feed"`
	// Bytes replace Text if it is not valid UTF-8.
	Bytes   []byte `json:"bytes,omitempty" doc:"the text as base64, if it is not valid UTF-8"`
	Partial bool   `json:"partial,omitempty" doc:"the next event continues this line"`
}

// LogGap is the event of a log that cannot be continued without a gap.
type LogGap struct {
	Message string `json:"message"`
}

// Event is one change in the feed. Object is what changed, as the API shows it.
type Event struct {
	Revision     int64               `json:"revision"`
	Time         time.Time           `json:"time"`
	Kind         string              `json:"kind"`
	Project      string              `json:"project"`
	ProjectName  string              `json:"project_name"`
	ServiceName  string              `json:"service_name"`
	Instance     string              `json:"instance"`
	InstanceName string              `json:"instance_name"`
	Node         string              `json:"node"`
	NodeName     string              `json:"node_name"`
	Task         string              `json:"task"`
	Actor        string              `json:"actor"`
	Reason       string              `json:"reason"`
	ReasonCode   mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	Object       any                 `json:"object"`
}

// Named is an object in an event that is shown by its name only: an organization, a user,
// a token or a package.
type Named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Events is a section of the feed.
type Events struct {
	Events   []Event `json:"events"`
	Revision int64   `json:"revision" doc:"pass it as since to continue"`
	More     bool    `json:"more,omitempty" doc:"for a list with since: there may be more events after this revision, even if the list is empty"`
	Before   int64   `json:"before,omitempty" doc:"for a list with before: there may be older events, even if the list is empty; pass it as before to continue"`
}

// Terminated is the response to the termination of a task: the state of its scope and
// how to continue.
type Terminated struct {
	Task         string         `json:"task"`
	Freeze       *string        `json:"freeze" doc:"the freeze task that was created; null if nothing was frozen"`
	Goal         map[string]int `json:"goal" doc:"by service: the scale that is still desired"`
	Actual       map[string]int `json:"actual" doc:"by service: the number of running instances"`
	ContinueWith string         `json:"continue_with" doc:"a command that continues the task"`
	UndoWith     *string        `json:"undo_with" doc:"shell commands that restore the previous state; null if nothing can be undone"`
}

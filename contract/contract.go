// Package contract holds the documents that cross the HTTP API, as the contract
// with the outside fixes them: names are never changed or dropped, fields may be
// added. The API fills them, the client reads them. It owns their shape only.
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
	Role             mariposa.Role        `json:"role,omitempty" doc:"what the caller is in it"`
	Version          string               `json:"version" doc:"the newest submitted version"`
	Number           int                  `json:"number"`
	Goal             mariposa.ProjectGoal `json:"goal"`
	Status           mariposa.Status      `json:"status"`
	Reason           string               `json:"reason,omitempty"`
	ReasonCode       mariposa.ReasonCode  `json:"reason_code,omitempty" doc:"the kind of reason, as a stable word; empty where there is none"`
	Created          time.Time            `json:"created"`
	Author           string               `json:"author,omitempty"`
	Services         []string             `json:"services"`
	Stored           *Stored              `json:"stored,omitempty" doc:"what the store keeps of it; of a single project only"`
}

// Projects is a list of projects.
type Projects struct {
	Projects []Project `json:"projects"`
}

// Changed answers a change; only the fields that apply are set.
type Changed struct {
	ID      string   `json:"id,omitempty" doc:"of what was created"`
	Name    string   `json:"name,omitempty"`
	Version string   `json:"version,omitempty"`
	Number  int      `json:"number,omitempty"`
	Task    *string  `json:"task" doc:"the task that carries the change out; null when there is nothing to do"`
	Reason  string   `json:"reason,omitempty" doc:"what follows from it, where the rest does not say"`
	Missing []string `json:"missing,omitempty" doc:"required metadata keys without a value: what needs them waits"`

	NeedsApproval []string `json:"needs_approval,omitempty" doc:"protected secrets that the version uses: it comes into force once an operator approves it"`

	Ended []EndedTask `json:"ended,omitempty" doc:"the tasks that this change ends before their time"`

	// For a change of one metadata key.
	Key   string `json:"key,omitempty"`
	Value string `json:"value,omitempty"`
	CAS   string `json:"cas,omitempty"`
}

// EndedTask is a task that a change ended early.
type EndedTask struct {
	ID           string             `json:"id"`
	Task         mariposa.TaskKind  `json:"task"`
	Services     []string           `json:"services" doc:"none: the whole project"`
	State        mariposa.TaskState `json:"state" doc:"what it was until then; what was queued had changed nothing yet, and is dropped"`
	Reason       string             `json:"reason,omitempty" doc:"why it was asked for"`
	ContinueWith string             `json:"continue_with,omitempty" doc:"the command that asks again for what is dropped"`
}

// NewProject requests a project, as JSON.
type NewProject struct {
	Name         string          `json:"name"`
	Organization string          `json:"organization,omitempty"`
	Manifest     json.RawMessage `json:"manifest" doc:"the manifest as an object, or as a string of YAML"`
	Metadata     json.RawMessage `json:"metadata,omitempty" doc:"values by key as an object, or as a string of YAML"`
	Message      string          `json:"message,omitempty"`
}

// ProjectChange requests a change of a project; fields that are left out stay as
// they are.
type ProjectChange struct {
	Name     string          `json:"name,omitempty"`
	Manifest json.RawMessage `json:"manifest,omitempty" doc:"the manifest as an object, or as a string of YAML"`
	Metadata json.RawMessage `json:"metadata,omitempty" doc:"all values by key as an object, or as a string of YAML"`
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
	Completed       bool           `json:"completed" doc:"all that it asks for was done once; values that services hold back (on_metadata) are not asked for"`
	Outdated        int            `json:"outdated,omitempty" doc:"of the version in force: instances that run with what was before it"`
	Cause           mariposa.Cause `json:"cause" doc:"manifest, metadata or revert"`
	MetadataChanged []string       `json:"metadata_changed" doc:"the keys that differ from the version before"`
	NeedsApproval   []string       `json:"needs_approval,omitempty" doc:"protected secrets that it uses without an approval: it does not come into force before an operator approves it"`
	Approval        *Approval      `json:"approval,omitempty" doc:"of one that uses protected secrets: who lets it"`
	Manifest        string         `json:"manifest,omitempty" doc:"of a single version: the YAML as it was submitted, or generated if it came as JSON"`
}

// Approval says who lets a version use protected secrets.
type Approval struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Number int       `json:"number" doc:"the version that was approved: this one, or one with the same manifest and values"`
}

// Versions is a page of versions, newest first.
type Versions struct {
	Versions []Version `json:"versions"`
	Marker   string    `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last"`
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
	ReasonCode       mariposa.ReasonCode  `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
	Services         []ServiceState       `json:"services"`
}

// ServiceState is the desired and actual state of one service.
type ServiceState struct {
	ID         string              `json:"id"`
	Name       string              `json:"name"`
	Version    string              `json:"version"`
	Number     int                 `json:"number" doc:"the number of that version"`
	Goal       int                 `json:"goal" doc:"its scale"`
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
	ReasonCode mariposa.ReasonCode `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
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
	References  []Reference          `json:"references" doc:"what it refers to of other services, and what that resolves to"`
}

// Reference is a binding of a service to an instance of another one.
type Reference struct {
	Service      string            `json:"service_name"`
	Instance     string            `json:"instance"`
	InstanceName string            `json:"instance_name"`
	Values       map[string]string `json:"values" doc:"by field; variables of the other's environment are told by instance alone"`
}

// Services is a list of services.
type Services struct {
	Services []Service `json:"services"`
}

// Backoff says how often a service has failed and when the next attempt is.
type Backoff struct {
	Failures int       `json:"failures"`
	Until    time.Time `json:"until"`
}

// Action requests a change of state.
type Action struct {
	Action   string          `json:"action" enum:"start,stop,freeze,thaw,reprovision,revert,pause,resume,converge,accept,scale"`
	Version  string          `json:"version,omitempty"`
	Rolling  json.RawMessage `json:"rolling,omitempty" doc:"a number, or a percentage like \"25%\""`
	Canary   json.RawMessage `json:"canary,omitempty" doc:"hold after so many: a number, or a percentage"`
	Count    json.RawMessage `json:"count,omitempty" doc:"of a reprovision, the same as canary: so many, or of one that is held so many further"`
	Filters  *Filters        `json:"filters,omitempty" doc:"of a reprovision: only what matches all of them"`
	Services []string        `json:"services,omitempty"`
	Scale    json.RawMessage `json:"scale,omitempty" doc:"5, \"+1\" or \"-2\"; for a project, an object of these by service. Of a revert: scales to set with it"`

	All       bool   `json:"all,omitempty" doc:"of a reprovision: replace all instances; without it, and without services or filters, only rollouts that are held go on"`
	WithScale bool   `json:"with_scale,omitempty" doc:"of a revert: bring its scales back too"`
	Message   string `json:"message,omitempty" maxLength:"1000" doc:"of a revert: for those who read the versions later"`
}

// Filters select the instances that match all given filters.
type Filters struct {
	Service  json.RawMessage `json:"service,omitempty" doc:"a service by id or name, or a list of them"`
	Version  string          `json:"version,omitempty" doc:"the version they were made from"`
	Image    string          `json:"image,omitempty"`
	Instance json.RawMessage `json:"instance,omitempty" doc:"an instance by id or name, or a list of them"`
	Node     json.RawMessage `json:"node,omitempty" doc:"a node by id or name, or a list of them"`
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
	ReasonCode  mariposa.ReasonCode `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
	EndedBy     string              `json:"ended_by"`
	WaitsFor    []string            `json:"waits_for,omitempty" doc:"of a queued task: the tasks that go first"`
	Waits       string              `json:"waits,omitempty" doc:"what an open task waits for, as a sentence; absent while it makes progress"`
	Created     time.Time           `json:"created"`
	Started     *time.Time          `json:"started"`
	Finished    *time.Time          `json:"finished"`
	Progress    mariposa.Progress   `json:"progress"`
	ETA         *time.Time          `json:"eta" doc:"when it will have ended if it goes on as it has; null while it waits, and before a few steps have shown a pace"`
	Version     string              `json:"version"`
	Number      int                 `json:"number,omitempty" doc:"the number of that version, where it is known"`
	Steps       []TaskStep          `json:"steps,omitempty" doc:"of a single task, newest first"`
	Marker      string              `json:"marker,omitempty" doc:"of a single task: pass it to get older steps; absent when there are none"`
}

// Tasks is a page of tasks, newest first.
type Tasks struct {
	Tasks  []Task `json:"tasks"`
	Marker string `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last"`
}

// TaskStep is one change that a task made or caused.
type TaskStep struct {
	Revision     int64               `json:"revision"`
	At           time.Time           `json:"at"`
	Instance     string              `json:"instance"`
	InstanceName string              `json:"instance_name"`
	Node         string              `json:"node"`
	NodeName     string              `json:"node_name"`
	Step         string              `json:"step" doc:"create, update, remove or collect"`
	Result       string              `json:"result" doc:"asked, done, or the state the node reports; not done if the task ended before that"`
	Reason       string              `json:"reason"`
	ReasonCode   mariposa.ReasonCode `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
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
	Number      int                  `json:"number,omitempty" doc:"the number of that version; an unmanaged instance has none"`
	ComputeType mariposa.ComputeType `json:"compute_type"`
	Node        string               `json:"node"`
	NodeName    string               `json:"node_name"`
	State       mariposa.State       `json:"state"`
	Health      mariposa.Health      `json:"health"`
	Goal        mariposa.Goal        `json:"goal"`
	PhysicalID  string               `json:"physical_id"`
	Addresses   []string             `json:"addresses"`
	Created     time.Time            `json:"created"`
	Started     *time.Time           `json:"started"`
	Finished    *time.Time           `json:"finished"`
	ExitCode    *int                 `json:"exit_code"`
	Restarts    int                  `json:"restarts"`
	Reason      string               `json:"reason"`
	ReasonCode  mariposa.ReasonCode  `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
	Managed     bool                 `json:"managed"`
	Usage       mariposa.Usage       `json:"usage" doc:"of a single running instance, as its node measures it now; what cannot be told is absent"`
	Environment []string             `json:"environment,omitempty" doc:"of a single instance, resolved"`
	Command     []string             `json:"command,omitempty"`
	Details     map[string]string    `json:"details,omitempty"`
	Volumes     []mariposa.Mount     `json:"volumes,omitempty" doc:"of a single instance: those it uses"`
	Networks    []mariposa.Join      `json:"networks,omitempty" doc:"of a single instance: those it is on"`
}

// Instances is a page of instances.
type Instances struct {
	Instances []Instance `json:"instances"`
	Marker    string     `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last"`
}

// InstanceAction requests an action on an instance.
type InstanceAction struct {
	Action string `json:"action" enum:"start,stop,restart,replace,crash"`
}

// Node is one node.
type Node struct {
	ID            string                                  `json:"id"`
	Name          string                                  `json:"name"`
	Rack          string                                  `json:"rack"`
	DC            string                                  `json:"dc"`
	Traits        map[string]string                       `json:"traits"`
	Status        mariposa.NodeState                      `json:"status"`
	Reason        string                                  `json:"reason"`
	ReasonCode    mariposa.ReasonCode                     `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
	Instances     int                                     `json:"instances"`
	Capacity      mariposa.Resources                      `json:"capacity"`
	Reserved      mariposa.Resources                      `json:"reserved"`
	Replica       string                                  `json:"replica"`
	LastHeartbeat time.Time                               `json:"last_heartbeat"`
	Drivers       []mariposa.ComputeType                  `json:"drivers"`
	Offers        map[mariposa.ComputeType]mariposa.Offer `json:"offers" doc:"what the node says of compute types that depend on how the machine is"`
	Dummy         bool                                    `json:"dummy"`
	Quarantined   []mariposa.Quarantined                  `json:"quarantined"`
	Address       string                                  `json:"address" doc:"where its agent connected from; empty while that is not known"`
	Fingerprint   string                                  `json:"fingerprint" doc:"of the key that its agent proves itself with, as the agent prints it"`
}

// PastNode is a node in an event, without what is counted when it is read.
type PastNode struct {
	Node
	Instances *int                `json:"instances,omitempty"`
	Reserved  *mariposa.Resources `json:"reserved,omitempty"`
}

// Nodes is a list of nodes.
type Nodes struct {
	Nodes []Node `json:"nodes"`
}

// NodeAction requests an action on a node.
type NodeAction struct {
	Action    string   `json:"action" enum:"drain,undrain,reserve,unreserve,purge,lose,restore,approve,reject"`
	Instances []string `json:"instances,omitempty" doc:"of a purge: these quarantined instances; none means all of them"`
	// Fingerprint guards an approval.
	Fingerprint string `json:"fingerprint,omitempty" doc:"of an approval: what the fingerprint of the node's key must be"`
}

// Health answers whether the server is up and able to work.
type Health struct {
	Status  string `json:"status"`
	Version string `json:"version"`
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
	ReasonCode   mariposa.ReasonCode `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
	Object       any                 `json:"object"`
}

// Events is a section of the feed.
type Events struct {
	Events   []Event `json:"events"`
	Revision int64   `json:"revision" doc:"ask again with since= this to go on"`
	More     bool    `json:"more,omitempty" doc:"of a list with since: there may be more after that revision, even if the list is empty"`
}

// Terminated answers the termination of a task: the state of its scope, and how to
// continue.
type Terminated struct {
	Task         string         `json:"task"`
	Freeze       *string        `json:"freeze" doc:"the task that keeps the scope as it is; null when nothing was frozen"`
	Goal         map[string]int `json:"goal" doc:"by service: the scale that is still wanted"`
	Actual       map[string]int `json:"actual" doc:"by service: how many run"`
	ContinueWith string         `json:"continue_with" doc:"a command to go on with"`
	UndoWith     *string        `json:"undo_with" doc:"commands for a shell that bring back what was there before; null when nothing can be undone"`
}

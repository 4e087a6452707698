package mariposa

import "time"

// Audit is one entry of the audit log: who did, or tried to do, what to which object,
// when and from where. It contains names and ids, never metadata values.
type Audit struct {
	ID   int64     `json:"id"`   // given by the store; grows in the order of commits
	Time time.Time `json:"time"` // given by the store

	Actor     string `json:"actor,omitempty"`      // a user's id; "mariposa" for what it does by itself
	ActorName string `json:"actor_name,omitempty"` // at that time
	For       string `json:"for,omitempty"`        // the user for whom the actor acted
	ForName   string `json:"for_name,omitempty"`
	From      string `json:"from,omitempty"`    // the address the request came from
	Request   string `json:"request,omitempty"` // its id
	Token     string `json:"token,omitempty"`   // the id of the token that was used

	Action  string       `json:"action"` // like project.update
	Outcome AuditOutcome `json:"outcome"`

	Kind         string `json:"kind,omitempty"` // of the object
	Object       string `json:"object,omitempty"`
	ObjectName   string `json:"object_name,omitempty"`
	Organization string `json:"organization,omitempty"` // to which the entry belongs
	Project      string `json:"project,omitempty"`
	ProjectName  string `json:"project_name,omitempty"`
	Version      string `json:"version,omitempty"` // the version of the project that this created, or made current
	Number       int    `json:"number,omitempty"`  // its number
	Task         string `json:"task,omitempty"`    // the task that this started
	Reason       string `json:"reason,omitempty"`
}

// AuditOutcome is the result of a request.
type AuditOutcome string

const (
	AuditDone   AuditOutcome = "done"
	AuditDenied AuditOutcome = "denied" // the actor lacks the permission
	AuditFailed AuditOutcome = "failed" // permitted, but it failed
)

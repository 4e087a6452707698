package contract

import "mariposa"

// Plan is what would be done if every step succeeded. Requesting it changes
// nothing.
type Plan struct {
	Version       string         `json:"version" doc:"the version that would be in force"`
	Resources     []PlanResource `json:"resources"`
	Steps         []PlanStep     `json:"steps" doc:"in order"`
	Waits         []string       `json:"waits" doc:"what would not be done now, and why"`
	Missing       []string       `json:"missing" doc:"required metadata keys without a value"`
	NeedsApproval []string       `json:"needs_approval,omitempty" doc:"protected secrets that the version would use: it would wait for an operator to approve it"`
	Complete      bool           `json:"complete" doc:"false: there are more steps than are shown, or some wait"`
}

// PlanResource is what happens to one resource.
type PlanResource struct {
	Kind    string      `json:"kind" doc:"service, network or volume"`
	Name    string      `json:"name"`
	Change  string      `json:"change" doc:"create, update, replace, scale, delete, keep (a volume that is no longer used) or unchanged"`
	Follows string      `json:"follows,omitempty" doc:"of one that is replaced: the service that it refers to and that has another instance then"`
	Retried bool        `json:"retried,omitempty" doc:"its rollout had stopped by itself and would be tried again"`
	Fields  []FieldDiff `json:"fields"`
	Before  int         `json:"before" doc:"of a service: its scale"`
	After   int         `json:"after"`
}

// PlanStep is one step on one instance.
type PlanStep struct {
	Step         string              `json:"step" doc:"create, update, remove, keep (ended, for people to look at) or collect"`
	Service      string              `json:"service_name"`
	Slot         string              `json:"slot"`
	Instance     string              `json:"instance,omitempty" doc:"of one that is there"`
	InstanceName string              `json:"instance_name,omitempty"`
	Version      string              `json:"version,omitempty" doc:"that it would be made from"`
	Number       int                 `json:"number,omitempty" doc:"the number of that version, where it is known"`
	Reason       string              `json:"reason"`
	ReasonCode   mariposa.ReasonCode `json:"reason_code" doc:"the kind of reason, as a stable word; empty where there is none"`
}

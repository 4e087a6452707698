package contract

import "mariposa"

// Plan is a preview of changes, assuming that every step succeeds.
type Plan struct {
	Version       string         `json:"version" doc:"the version that would be in force"`
	Resources     []PlanResource `json:"resources"`
	Steps         []PlanStep     `json:"steps" doc:"in the order of execution"`
	Waits         []string       `json:"waits" doc:"changes that would have to wait, and why"`
	Missing       []string       `json:"missing" doc:"required metadata keys without a value"`
	Declares      []MetadataRule `json:"declares,omitempty" doc:"the metadata keys that the submitted manifest declares"`
	NeedsApproval []string       `json:"needs_approval,omitempty" doc:"protected secrets that the version would use; it would wait for the approval of an operator"`
	Complete      bool           `json:"complete" doc:"false if some steps are not shown or would have to wait"`
}

// PlanResource is the change of one resource.
type PlanResource struct {
	Kind    string      `json:"kind" doc:"service, network or volume"`
	Name    string      `json:"name"`
	Change  string      `json:"change" doc:"create, update, replace, scale, delete, keep (an unused volume) or unchanged"`
	Follows string      `json:"follows,omitempty" doc:"if it is replaced because of a reference: the other service, whose instance is replaced"`
	Retried bool        `json:"retried,omitempty" doc:"its rollout had stopped after failures and would be retried"`
	Fields  []FieldDiff `json:"fields"`
	Before  int         `json:"before" doc:"for a service: its scale before the change"`
	After   int         `json:"after" doc:"for a service: its scale after the change"`
}

// PlanStep is one step on one instance.
type PlanStep struct {
	Step         string              `json:"step" doc:"create, update, remove, keep (stop it, but preserve it for inspection) or collect"`
	Service      string              `json:"service_name"`
	Slot         string              `json:"slot"`
	Instance     string              `json:"instance,omitempty" doc:"id of the existing instance"`
	InstanceName string              `json:"instance_name,omitempty"`
	Version      string              `json:"version,omitempty" doc:"version that the instance would be created from"`
	Number       int                 `json:"number,omitempty" doc:"number of the version, if known"`
	Reason       string              `json:"reason"`
	ReasonCode   mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
}

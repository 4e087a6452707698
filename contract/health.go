package contract

import "mariposa"

// HealthChecks are the checks of each service and their results.
type HealthChecks struct {
	Services []ServiceChecks `json:"services"`
}

// ServiceChecks are the checks of one service in its definition in force.
type ServiceChecks struct {
	Project      string           `json:"project"`
	ProjectName  string           `json:"project_name"`
	Service      string           `json:"service"`
	ServiceName  string           `json:"service_name"`
	Version      string           `json:"version"`
	HealthChecks []HealthCheck    `json:"healthchecks"`
	Instances    []InstanceHealth `json:"instances" doc:"empty if the service has no health checks"`
}

// HealthCheck is one check, in the terms of the manifest.
type HealthCheck struct {
	Type          string  `json:"type" doc:"http or tcp"`
	Port          int     `json:"port"`
	Path          string  `json:"path,omitempty" doc:"as written in the manifest, with interpolations unresolved"`
	Poll          float64 `json:"poll" doc:"seconds between checks"`
	UnhealthyPoll float64 `json:"unhealthy_poll" doc:"seconds between checks while the instance is not healthy"`
	Timeout       float64 `json:"timeout" doc:"seconds"`
	Retries       int     `json:"retries"`
	Expect        *Expect `json:"expect,omitempty" doc:"for http checks"`
}

// Expect is the answer that an HTTP check expects.
type Expect struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body,omitempty"`
}

// InstanceHealth is the result of the checks of one instance.
type InstanceHealth struct {
	Instance     string          `json:"instance"`
	InstanceName string          `json:"instance_name"`
	Slot         string          `json:"slot"`
	Node         string          `json:"node"`
	NodeName     string          `json:"node_name"`
	State        mariposa.State  `json:"state"`
	Health       mariposa.Health `json:"health"`
}

package contract

import (
	"time"

	"mariposa"
)

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
	Grace        float64          `json:"grace" doc:"seconds that a new instance has to pass its checks"`
	Ports        []int            `json:"ports" doc:"ports of the service, in the order of the addresses of its instances"`
	HealthChecks []HealthCheck    `json:"healthchecks"`
	Instances    []InstanceHealth `json:"instances" doc:"empty if the service has no health checks"`
}

// HealthCheck is one check, in the terms of the manifest.
type HealthCheck struct {
	Type          string   `json:"type" doc:"http, https, tcp, command or containerpilot"`
	Name          string   `json:"name" doc:"a short name, as in the results"`
	Port          int      `json:"port,omitempty"`
	Network       string   `json:"network,omitempty" doc:"the network whose address is checked"`
	Path          string   `json:"path,omitempty" doc:"as written in the manifest, with interpolations unresolved"`
	Command       []string `json:"command,omitempty" doc:"run inside the instance"`
	User          string   `json:"user,omitempty" doc:"runs the command"`
	Verify        *bool    `json:"verify,omitempty" doc:"https: whether the certificate is verified"`
	Poll          float64  `json:"poll" doc:"seconds between checks"`
	UnhealthyPoll float64  `json:"unhealthy_poll" doc:"seconds until a failed check is repeated; longer while the instance is unhealthy"`
	Timeout       float64  `json:"timeout" doc:"seconds"`
	Retries       int      `json:"retries" doc:"how often a failed check is repeated before the instance is unhealthy"`
	Expect        *Expect  `json:"expect,omitempty" doc:"for http and https checks"`
}

// Expect is the answer that an HTTP check expects.
type Expect struct {
	Status  []string          `json:"status" doc:"status codes and ranges, such as 200 and 200-299"`
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
	Reason       string          `json:"reason,omitempty" doc:"why it is unhealthy"`
	Addresses    []string        `json:"addresses"`
	Checks       []CheckResult   `json:"checks" doc:"in the order of healthchecks; empty until its node has reported"`
}

// CheckResult is the result of one check of an instance, as of its last change.
type CheckResult struct {
	Name   string          `json:"name"`
	Health mariposa.Health `json:"health"`
	Reason string          `json:"reason,omitempty" doc:"why it does not pass"`
	Since  time.Time       `json:"since" doc:"when its health changed"`
}

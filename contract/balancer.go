package contract

import "mariposa"

// Balancers are load balancers with their members.
type Balancers struct {
	Balancers []Balancer `json:"balancers"`
}

// Balancer is a load balancer of a project, by the definition in force.
type Balancer struct {
	ID           string              `json:"id" doc:"id of the service that runs it"`
	Name         string              `json:"name"`
	Project      string              `json:"project"`
	ProjectName  string              `json:"project_name"`
	Mode         string              `json:"mode" enum:"http,tcp"`
	Listen       []int               `json:"listen" doc:"ports of its nodes"`
	TLS          bool                `json:"tls"`
	Routes       []BalancerRoute     `json:"routes" doc:"the most specific first"`
	Drain        float64             `json:"drain" doc:"seconds that the connections of a leaving member have to end"`
	CanaryWeight int                 `json:"canary_weight" doc:"percentage of requests for the newest version while two run; 0: by number of instances"`
	Address      string              `json:"address" doc:"control socket of an external balancer; empty if it runs on a node"`
	Status       mariposa.Status     `json:"status"`
	Reason       string              `json:"reason"`
	ReasonCode   mariposa.ReasonCode `json:"reason_code" doc:"stable code of the reason; empty if there is no reason"`
	Instances    []BalancerInstance  `json:"instances"`
	Members      []BalancerMember    `json:"members" doc:"sorted by service and instance"`
}

// BalancerRoute says which requests go to which service.
type BalancerRoute struct {
	Host    string `json:"host" doc:"empty: any"`
	Path    string `json:"path" doc:"this path and everything below it; empty: any"`
	Service string `json:"service"`
	Port    int    `json:"port"`
}

// BalancerInstance is an instance of a load balancer.
type BalancerInstance struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	Node      string         `json:"node"`
	NodeName  string         `json:"node_name"`
	State     mariposa.State `json:"state"`
	Addresses []string       `json:"addresses"`
	Problem   string         `json:"problem,omitempty" doc:"why it does not use its newest settings, for example its certificate"`
}

// BalancerMember is an instance behind a load balancer.
type BalancerMember struct {
	Balancer     string               `json:"balancer" doc:"id of the balancer's instance that says so"`
	Instance     string               `json:"instance"`
	InstanceName string               `json:"instance_name"`
	Backend      string               `json:"backend" doc:"the group of servers in the balancer that it belongs to"`
	Address      string               `json:"address"`
	State        mariposa.MemberState `json:"state" enum:"up,drain,down"`
	Weight       int                  `json:"weight"`
	Connections  *int                 `json:"connections" doc:"open connections, in http mode requests in progress; null if the balancer does not say it now"`
	Responses    *mariposa.Responses  `json:"responses,omitempty" doc:"HTTP responses since the balancer started; absent in tcp mode"`
	Reason       string               `json:"reason" doc:"why it is down"`
}

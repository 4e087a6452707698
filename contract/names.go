package contract

// Names are the DNS names of a project's services, and what they resolve to now.
type Names struct {
	Domain string `json:"domain" doc:"what all names end in"`
	Names  []Name `json:"names" doc:"sorted by name"`
}

// Name is the DNS name of a service.
type Name struct {
	Name    string       `json:"name"`
	Service string       `json:"service" doc:"name of the service"`
	Targets []NameTarget `json:"targets" doc:"the instances that it resolves to"`
	Reason  string       `json:"reason" doc:"why it resolves to none; empty if it resolves to some"`
}

// NameTarget is an instance that a name resolves to.
type NameTarget struct {
	Name         string `json:"name" doc:"DNS name of the instance"`
	Instance     string `json:"instance" doc:"id of the instance"`
	InstanceName string `json:"instance_name"`
	Node         string `json:"node"`
	NodeName     string `json:"node_name"`
	Address      string `json:"address"`
	Ports        []int  `json:"ports"`
}

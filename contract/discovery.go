package contract

// DiscoveryTarget is an instance in the form of Prometheus' HTTP service discovery.
type DiscoveryTarget struct {
	Targets []string          `json:"targets" doc:"its addresses with their ports"`
	Labels  map[string]string `json:"labels" doc:"what it is: __meta_mariposa_organization, _project, _service, _instance, _instance_id, _slot, _compute_type, _health, _node, _rack and _dc"`
}

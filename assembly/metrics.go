package assembly

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"mariposa"
)

// systemMetrics are the metrics of the actors.
type systemMetrics struct {
	registry *prometheus.Registry
	repairs  prometheus.Counter
}

func newSystemMetrics(c *plane) *systemMetrics {
	m := &systemMetrics{registry: prometheus.NewRegistry()}
	m.repairs = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "mariposa_reread_mended_total", Help: "Objects that a full re-read found different from the feed; should stay at 0.",
	})
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	m.registry.MustRegister(m.repairs,
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "mariposa_plan_loops_total", Help: "How often the plan of a project repeated itself without a change of state and was delayed; should stay at 0.",
		}, func() float64 { return float64(c.engine.Loops()) }),
		gauge("mariposa_revision", "The newest revision seen.", func() float64 { return float64(c.pic.Revision()) }),
		gauge("mariposa_instances", "Instances in the store.", func() float64 { return float64(c.pic.Instances.Len()) }),
		gauge("mariposa_projects", "Projects.", func() float64 { return float64(c.pic.Projects.Len()) }),
		gauge("mariposa_open_tasks", "Tasks that have not ended.", func() float64 { return float64(c.pic.Tasks.Len()) }),
		gauge("mariposa_nodes", "Known nodes.", func() float64 { return float64(c.pic.Nodes.Len()) }),
		gauge("mariposa_nodes_pending", "Nodes that wait until an operator accepts them.", func() float64 { return float64(c.countNodes(mariposa.NodePending)) }),
		gauge("mariposa_nodes_unknown", "Nodes that cannot be reached.", func() float64 { return float64(c.countNodes(mariposa.NodeUnknown)) }),
		gauge("mariposa_storm_nodes", "Lost nodes whose instances are not replaced for now, because many nodes were lost at once; 0: rescheduling works as usual.", func() float64 { held, _ := c.engine.Storm(); return float64(held) }),
		gauge("mariposa_storm_slowed_nodes", "Lost nodes whose instances are replaced more slowly, because several nodes were lost at once.", func() float64 { _, slowed := c.engine.Storm(); return float64(slowed) }),
		gauge("mariposa_nodes_draining", "Nodes that are being drained.", func() float64 { return float64(c.countDraining()) }),
		gauge("mariposa_sessions", "Agents connected to this replica.", func() float64 { return float64(c.fleet.Sessions()) }),
		gauge("mariposa_connections_held", "Open connections with an authenticated request, agents included.", func() float64 { return float64(c.gate.Stats().Held) }),
		gauge("mariposa_connections_pending", "Open connections without an authenticated request.", func() float64 { return float64(c.gate.Stats().Pending) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "mariposa_connections_evicted_total", Help: "Pending connections that were closed to make room for others.",
		}, func() float64 { return float64(c.gate.Stats().Evicted) }),
		gauge("mariposa_shards", "Shards held by this replica.", func() float64 { n, _ := c.engine.Held(); return float64(n) }),
	)
	return m
}

// countNodes counts the nodes in a state.
func (c *plane) countNodes(state mariposa.NodeState) (n int) {
	for _, r := range c.pic.Nodes.All() {
		if st := r.Status(); st != nil && st.State == state {
			n++
		}
	}
	return n
}

// countDraining counts the nodes that are being drained.
func (c *plane) countDraining() (n int) {
	for _, r := range c.pic.Nodes.All() {
		if d := r.Spec().Drain; d != nil && d.State == mariposa.DrainActive {
			n++
		}
	}
	return n
}

func (m *systemMetrics) observeRepairs(n int) {
	if n > 0 {
		slog.Error("a full re-read found objects that the feed had missed", "objects", n)
	}
	m.repairs.Add(float64(n))
}

package manifest

import (
	"slices"

	"mariposa"
)

// unsupportedKeys lists what is parsed and checked but has no effect yet, so that users
// do not rely on a key without effect. A row with values refuses only those; otherwise
// any value is refused except the fine ones and the empty one. Delete the line of a key
// when you implement it.
var unsupportedKeys = map[string]struct{ values, fine []string }{
	"services.*.service_type": {values: []string{"scheduled", "event"}},
	"services.*.affinity":     {},
	"services.*.schedule":     {},
}

// refuseUnsupported reports a key that is set but has no effect yet.
func (c *checker) refuseUnsupported(at *spot, pattern string) {
	row, listed := unsupportedKeys[pattern]
	n := at.node
	if !listed || n.Value == "" && len(n.Content) == 0 {
		return
	}
	if row.values != nil {
		if slices.Contains(row.values, n.Value) {
			c.fault(at, mariposa.FaultNotSupported, "%s is not supported yet; use another value", quoteText(n.Value))
		}
		return
	}
	if !slices.Contains(row.fine, n.Value) {
		c.fault(at, mariposa.FaultNotSupported, "is not supported yet; remove it")
	}
}

// refuseUnsupportedDefault reports a default compute type that is not supported
// yet.
func (c *checker) refuseUnsupportedDefault(at *spot, compute mariposa.ComputeType) {
	if slices.Contains(unsupportedKeys["services.*.compute_type"].values, string(compute)) && at.kind() != kindRefused {
		c.fault(at, mariposa.FaultNotSupported, "the default, %q, is not supported yet; set another compute_type", string(compute))
	}
}

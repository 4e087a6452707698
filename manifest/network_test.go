package manifest_test

import (
	"slices"
	"testing"

	"mariposa"
	"mariposa/manifest"
)

func onNetworks(t *testing.T, service, networks string) *mariposa.Service {
	t.Helper()
	p, err := manifest.Parse([]byte("services:\n  db: {compute_type: dummy, " + service + "}\nnetworks: {" + networks + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return p.ByName["db"]
}

// Only a change of an instance's networks needs a new incarnation.
func TestToBeOnAnotherNetworkMakesANewIncarnation(t *testing.T) {
	t.Parallel()
	own := onNetworks(t, "networks: [a, b]", "a: {}, b: ")
	shared := onNetworks(t, "networks: [b, a]", "a: {shared: true}, b: {shared: false}, c: {shared: true}")
	if !slices.Equal(shared.Shared, []string{"a"}) || own.Shared != nil {
		t.Errorf("shares %v, and by itself %v", shared.Shared, own.Shared)
	}
	for name, c := range map[string]struct {
		other *mariposa.Service
		same  bool
	}{
		"the order is no matter":            {onNetworks(t, "networks: [b, a]", "a: , b: {}"), true},
		"nor what is declared and not used": {onNetworks(t, "networks: [a, b]", "a: , b: , c: {shared: true}"), true},
		"nor to say that it is not shared":  {onNetworks(t, "networks: [a, b]", "a: {shared: false}, b: "), true},
		"to be on one less":                 {onNetworks(t, "networks: [a]", "a: , b: "), false},
		"to share one":                      {shared, false},
		"to be on none":                     {onNetworks(t, "scale: 1", "a: "), false},
	} {
		if (own.Digest == c.other.Digest) != c.same {
			t.Errorf("%s: %s and %s", name, own.Digest, c.other.Digest)
		}
	}
}

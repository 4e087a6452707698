package converge

import (
	"testing"

	"mariposa"
)

func TestAFilterPicksWhatIsAllThatItSays(t *testing.T) {
	spec, def := &mariposa.InstanceSpec{Number: 2, Node: "n1"}, &mariposa.Service{Image: "one"}
	for name, c := range map[string]struct {
		filter *mariposa.Filter
		def    *mariposa.Service
		want   bool
	}{
		"none picks all":             {nil, nil, true},
		"one that says nothing":      {&mariposa.Filter{}, nil, true},
		"its version":                {&mariposa.Filter{Version: 2}, def, true},
		"another version":            {&mariposa.Filter{Version: 1}, def, false},
		"its image":                  {&mariposa.Filter{Image: "one"}, def, true},
		"another image":              {&mariposa.Filter{Image: "two"}, def, false},
		"an image that nobody knows": {&mariposa.Filter{Image: "one"}, nil, false},
		"itself among others":        {&mariposa.Filter{Instances: []string{"b", "a"}}, def, true},
		"others":                     {&mariposa.Filter{Instances: []string{"b"}}, def, false},
		"its node":                   {&mariposa.Filter{Nodes: []string{"n1"}}, def, true},
		"another node":               {&mariposa.Filter{Nodes: []string{"n2"}}, def, false},
		"one thing of two":           {&mariposa.Filter{Version: 2, Nodes: []string{"n2"}}, def, false},
	} {
		if got := Matches(c.filter, "a", spec, c.def); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

package converge

import (
	"fmt"
	"strings"

	"mariposa"
)

// wanting says which values are missing to make anything of a definition, and
// how to give them; empty when none is.
func wanting(d *mariposa.Service) string {
	if len(d.Needs) == 0 {
		return ""
	}
	how := make([]string, len(d.Needs))
	for i, key := range d.Needs {
		how[i] = "mariposa meta set " + key + " VALUE"
	}
	if len(d.Needs) == 1 {
		return fmt.Sprintf("needs the metadata key %s: set it with %s", d.Needs[0], how[0])
	}
	return fmt.Sprintf("needs the metadata keys %s: set them with %s", strings.Join(d.Needs, ", "), strings.Join(how, ", "))
}

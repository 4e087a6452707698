package converge

import (
	"fmt"
	"slices"
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
		value := "VALUE"
		if slices.Contains(d.Secrets, key) {
			value = "-" // from standard input: words on a command line can be seen by others
		}
		how[i] = "mariposa meta set " + key + " " + value
	}
	if len(d.Needs) == 1 {
		return fmt.Sprintf("needs the metadata key %s: set it with %s", d.Needs[0], how[0])
	}
	return fmt.Sprintf("needs the metadata keys %s: set them with %s", strings.Join(d.Needs, ", "), strings.Join(how, ", "))
}

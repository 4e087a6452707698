package cli

import (
	"strings"
	"testing"
)

// The help of a command about services does not speak of the whole project.
func TestTheHelpOfServiceCommandsIsAboutServices(t *testing.T) {
	t.Parallel()
	for command, says := range map[string]string{"logs": "Print the logs of the instances of services.", "instances": "List the instances of services"} {
		r := (&run{}).do(t, "service", command, "--help")
		own, _, _ := strings.Cut(r.stdout, "Flags:")
		r.expect(exitOK, strings.Contains(own, says), !strings.Contains(own, "of a project"), strings.Contains(own, "service "+command+" web"))
	}
}

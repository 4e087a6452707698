package mariposa_test

import (
	"strings"
	"testing"

	"mariposa"
)

func TestTheNameOfACheckFitsInASentence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command []string
		want    string
	}{
		{[]string{"sh", "-c", "test -e a &&\n\ttest -e b\n"}, "command sh -c test -e a && test -e b"},
		{[]string{"a\x1b[31m\u202eb"}, "command a [31m b"},
		{[]string{"sh", "-c", strings.Repeat("ä", 5000)}, "command sh -c " + strings.Repeat("ä", 93) + "…"},
	} {
		check := mariposa.HealthCheck{Type: mariposa.CheckCommand, Command: c.command}
		if got := check.Name(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

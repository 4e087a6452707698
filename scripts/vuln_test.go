// Package scripts_test runs the scripts the way users run them.
package scripts_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// An unreachable database must not look like a database without findings.
func TestVulnSaysWhenItsDatabaseCannotBeReached(t *testing.T) {
	t.Parallel()
	for _, db := range []string{"http://127.0.0.1:1", "file://" + t.TempDir()} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "./vuln.sh")
		cmd.Env = append(os.Environ(), "GOVULNDB="+db)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 4 {
			t.Errorf("%s: %v\n%s", db, err, out)
		}
		for _, part := range []string{db, "cannot be reached", "nothing was checked", "GOVULNDB="} {
			if !strings.Contains(string(out), part) {
				t.Errorf("it does not say %q:\n%s", part, out)
			}
		}
	}
}

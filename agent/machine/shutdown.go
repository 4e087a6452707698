package machine

import (
	"bytes"
	"context"
	"os/exec"
	"time"
)

// IsShuttingDown reports whether systemd is shutting this machine down or rebooting it. It
// runs the systemctl in the PATH; without systemd, the answer is no.
func IsShuttingDown() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", "is-system-running")
	cmd.WaitDelay = time.Second
	out, _ := cmd.Output() // it fails in every state but running
	return string(bytes.TrimSpace(out)) == "stopping"
}

package main_test

import (
	"strings"
	"testing"

	"mariposa"
)

func TestProcessesStartInTheirWorkingDirectory(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	text := "services: {web: {compute_type: process, command: [sh, -c, 'pwd -P; exec sleep 100000'], working_dir: /usr/lib, update: {min_healthy: 0}}}"
	h.ok("project", "create", "shop", "-m", fileOf(t, text), "--wait")
	h.await("it prints", func() bool { return strings.HasSuffix(h.ok("logs", "web"), "| /usr/lib\n") })
	web, _ := h.the("shop", "web")
	if out := h.ok("instance", "exec", web.ID, "--", "pwd", "-P"); out != "/usr/lib\n" {
		t.Errorf("inside it is %q", out)
	}
	h.wants(3, "cannot start in working_dir /srv/nowhere", "project", "update", "--force", "--wait", "-m", fileOf(t, strings.Replace(text, "/usr/lib", "/srv/nowhere", 1)))
	if still, err := h.Instance(t.Context(), web.ID); err != nil || still.State != mariposa.StateRunning {
		t.Errorf("the old one is %+v, %v", still, err)
	}
	h.wants(1, "must be an absolute path", "project", "update", "--force", "-m", fileOf(t, strings.Replace(text, "/usr/lib", "lib", 1)))
}

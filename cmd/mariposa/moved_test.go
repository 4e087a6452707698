package main_test

import (
	"os"
	"strings"
	"testing"

	"mariposa"
)

// The data directory of an agent is moved while its instances run. They go on, and
// everything that can be done with them still works.
func TestInstancesSurviveTheMoveOfTheDataDirectory(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data, "MARIPOSA_PROJECT=shop"}
	agent := a.agentWith(a.joinToken())
	a.awaitNode("node-a", mariposa.NodeRunning)
	a.ok("project", "create", "shop", "-m", fileOf(t, `
services:
  web: {compute_type: process, command: [sh, -c, 'echo hello; exec sleep 100000'], mdata: {word: "{{ .meta.word }}"}, networks: [table], update: {min_healthy: 0}}
networks: {table: {}}
metadata: {word: {required: true}}
`))
	a.ok("meta", "set", "word", "one")
	a.converged("shop", "web", 1)
	before := a.pids("shop")
	_ = agent.Process.Kill()
	_ = agent.Wait()
	moved := a.dir + "-moved"
	must(t, os.Rename(a.dir, moved))
	a.dir = moved
	t.Cleanup(func() { _ = os.RemoveAll(moved) })
	a.launch(nil, "agent", "--server", a.url, "--data", moved, "--name", "node-a", "--moved")
	web, _ := a.the("shop", "web")
	var out string
	a.await("a command runs inside", func() bool {
		var code int
		out, _, code = a.mariposa("", "instance", "exec", web.Name, "--", "sh", "-c", `touch made && cd "$MARIPOSA_NETWORK_TABLE" && touch seen && echo done`)
		return code == 0
	})
	if out != "done\n" {
		t.Errorf("it printed %q", out)
	}
	a.runOn("shop", before)
	if out := a.ok("instance", "logs", web.Name); out != "hello\n" {
		t.Errorf("its log is %q", out)
	}
	a.ok("meta", "set", "word", "two")
	a.await("it gets new values", func() bool {
		return strings.Contains(a.ok("instance", "exec", web.Name, "--", "sh", "-c", `cat "$MARIPOSA_MDATA_FILE"`), "two")
	})
	a.ok("instance", "restart", web.Name)
	a.await("it is restarted in place", func() bool {
		now, pid := a.the("shop", "web")
		return now.ID == web.ID && pid != 0 && pid != before[web.ID] && strings.Count(a.ok("instance", "logs", web.Name), "hello") == 2
	})
	a.ok("instance", "exec", web.Name, "--", "ls", "made")
	a.ok("project", "stop", "--wait")
	live := a.processes()
	if len(live) > 0 {
		t.Errorf("left behind: %v", live)
	}
}

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mariposa"
)

// The agent asks the systemctl in its PATH whether the machine is shutting down.
func TestAMachineThatShutsDownAnnouncesItsReboot(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	bin := t.TempDir()
	systemd := filepath.Join(bin, "state")
	write(t, filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\n[ \"$1\" = is-system-running ] && cat "+systemd+"\nexit 1\n"))
	must(t, os.Chmod(filepath.Join(bin, "systemctl"), 0o700))
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	run := func(more ...string) *exec.Cmd {
		return a.launch(append(more, env...), "agent", "--server", a.url, "--data", a.dir, "--name", "node-a")
	}
	stop := func(agent *exec.Cmd, state string) {
		t.Helper()
		write(t, systemd, []byte(state+"\n"))
		must(t, agent.Process.Signal(syscall.SIGTERM))
		if err := agent.Wait(); err != nil {
			t.Fatalf("the agent ended with %v:\n%s", err, a.out)
		}
	}
	agent := run("MARIPOSA_JOIN=" + a.joinToken())
	a.awaitNode("node-a", mariposa.NodeRunning)
	if out := a.ok("node", "show", "node-a"); !strings.Contains(out, "kernel") || !strings.Contains(out, "booted") {
		t.Errorf("node show says nothing about the machine:\n%s", out)
	}
	a.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000']}}")
	a.converged("hello", "web", 1)
	before := a.pids("hello")

	stop(agent, "stopping")
	n := a.nodeNamed("node-a") // the agent waits until the server knows it
	if n == nil || n.Status != mariposa.NodeRebooting || !strings.HasPrefix(n.Reason, "announced a reboot at ") {
		t.Fatalf("the node is %+v", n)
	}
	agent = run()
	a.awaitNode("node-a", mariposa.NodeRunning)
	a.converged("hello", "web", 1)
	a.runOn("hello", before)

	stop(agent, "running") // an ordinary stop
	if n := a.nodeNamed("node-a"); n == nil || n.Status == mariposa.NodeRebooting {
		t.Errorf("after an ordinary stop, the node is %+v", n)
	}
	a.awaitNode("node-a", mariposa.NodeUnknown)
	out := a.ok("events", "--since", "0")
	if strings.Count(out, "node-a is rebooting") != 1 || !strings.Contains(out, "node-a is unknown") {
		t.Errorf("events:\n%s", out)
	}
	run()
	a.awaitNode("node-a", mariposa.NodeRunning)
	a.runOn("hello", before)
}

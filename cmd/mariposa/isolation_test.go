package main_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// hostileManifest is the manifest of a deployer who tries to get more permissions.
const hostileManifest = `services:
  web:
    compute_type: process
    scale: 1
    command: [sh, -c, 'find / -name admin.token -o -name secret.key -o -name join.token -o -name node.json -o -name mariposa.db 2>/dev/null | xargs -r cat;
      cat DIR/admin.token DIR/secret.key DIR/join.token DIR/mariposa.db DIR/node/node.json /proc/[0-9]*/environ /proc/[0-9]*/root/DIR/admin.token;
      ls DIR DIR/node DIR/node/instances; kill -9 VICTIM; echo tried it all; exec sleep 100000']
`

func TestADeployerBecomesNobodyByAManifest(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("victim", `services:
  db:
    compute_type: process
    command: [sleep, "100000"]
    environment: ["PASSWORD=planted-in-the-victim"]
    files: {/run/secrets/db: planted-in-the-victim}
`)
	h.create("shop", "services: {web: {compute_type: process, command: [sleep, '100000']}}\n")
	h.converged("victim", "db", 1)
	victim := slices.Collect(maps.Values(h.pids("victim")))[0]

	robot := &person{h: h, name: "admin", home: t.TempDir(), token: strings.TrimSpace(h.ok("token", "create", "ci", "--project", "shop", "--role", "deployer", "--expires", "1h"))}
	robot.login(h.URL())
	file := fileOf(t, strings.NewReplacer("DIR", h.dir, "VICTIM", strconv.Itoa(victim)).Replace(hostileManifest))
	robot.can("-j", "shop", "project", "update", "-m", file, "--force")
	var said string
	h.await("the attack was tried", func() bool {
		for _, i := range h.instances("shop") {
			if log, err := h.Logs(t.Context(), i.ID, client.LogOptions{Tail: -1}); err == nil {
				said = readAll(log)
			}
			if strings.Contains(said, "tried it all") {
				return true
			}
		}
		return false
	})
	var node struct{ Key string }
	must(t, json.Unmarshal(read(t, filepath.Join(h.dir, "node", "node.json")), &node))
	for what, secret := range map[string]string{
		"the admin token": h.admin, "the node's key": node.Key, "another project's secret": "planted-in-the-victim", "the server's environment": "hunter2",
		"the key that seals secrets": strings.TrimSpace(string(read(t, filepath.Join(h.dir, "secret.key")))), "the store": "SQLite format",
	} {
		if strings.Contains(said, secret) {
			t.Errorf("the manifest has read %s", what)
		}
	}
	if !alive(victim) {
		t.Error("the manifest has ended another project's process")
	}
	if s := h.ok("node", "show", h.nodeName()); !regexp.MustCompile(`isolation +each instance has its own uid, file system view`).MatchString(s) {
		t.Errorf("node show:\n%s", s)
	}
}

func readAll(r io.ReadCloser) string {
	defer r.Close()
	b, _ := io.ReadAll(r) // check what was read
	return string(b)
}

func (h *devServer) nodeName() string {
	h.t.Helper()
	all, err := h.Nodes(h.t.Context())
	must(h.t, err)
	return all.Nodes[0].Name
}

// TestANodeThatCannotIsolateRunsNoProcesses starts an agent that cannot create
// namespaces, as in many containers.
func TestANodeThatCannotIsolateRunsNoProcesses(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	confined := func(flags ...string) *exec.Cmd {
		args := append([]string{"--bounding-set=-sys_admin", filepath.Join(binaries, "mariposa"), "agent", "--server", a.url, "--data", a.dir, "--name", "node-a"}, flags...)
		cmd := exec.CommandContext(context.Background(), "setpriv", args...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + a.dir, "MARIPOSA_JOIN=" + a.joinToken()}
		a.parts = append(a.parts, launch(t, cmd, a.out))
		return cmd
	}
	agent := confined()
	a.create("shop", "services: {web: {compute_type: process, command: [sleep, '100000']}}\n")
	const why = "its agent cannot isolate instances"
	a.await("the service says why it does not run", func() bool {
		s := a.state("shop")
		return len(s.Services) == 1 && s.Services[0].Status == mariposa.StatusBlocked && strings.Contains(s.Services[0].Reason, why)
	})
	var n contract.Node
	a.await("the node is there", func() bool {
		all, err := a.Nodes(t.Context())
		if err == nil && len(all.Nodes) == 1 {
			n = all.Nodes[0]
		}
		return n.Status == mariposa.NodeRunning
	})
	if offer := n.Offers[mariposa.ComputeProcess]; slices.Contains(n.Drivers, mariposa.ComputeProcess) || !strings.Contains(offer.Unavailable, why) || !strings.HasPrefix(offer.Details["isolation"], "none: ") {
		t.Errorf("the node shows %+v", n)
	}
	if s := a.out.String(); !strings.Contains(s, "this node cannot isolate process instances") {
		t.Errorf("the agent said:\n%s", s)
	}
	end(agent)
	confined("--allow-unisolated")
	a.converged("shop", "web", 1)
	if s := a.out.String(); !strings.Contains(s, "process instances are not isolated") {
		t.Errorf("the agent said:\n%s", s)
	}
	for _, i := range a.instances("shop") {
		if i.Details["isolation"] != "none" {
			t.Errorf("the instance shows %v", i.Details)
		}
	}
}

// TestTheAgentsTokenIsHiddenFromItsOwnUser tries to read the environment of an agent
// without root, as an instance without isolation could.
func TestTheAgentsTokenIsHiddenFromItsOwnUser(t *testing.T) {
	t.Parallel()
	must(t, os.Chmod(binaries, 0o755))
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	must(t, os.Chown(dir, 65534, 65534))
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd := program(context.Background(), dir, []string{"MARIPOSA_JOIN=planted-token"}, "agent", "--server", "http://127.0.0.1:1", "--data", dir)
	cmd.SysProcAttr = nobody
	out := &lockedBuffer{}
	launch(t, cmd, out)
	defer end(cmd)
	h := &devServer{t: t, out: out}
	h.await("the agent runs", func() bool { return strings.Contains(out.String(), "process instances are isolated") })
	look := exec.CommandContext(t.Context(), "cat", "/proc/"+strconv.Itoa(cmd.Process.Pid)+"/environ")
	look.SysProcAttr = nobody
	if b, err := look.CombinedOutput(); err == nil || strings.Contains(string(b), "planted-token") {
		t.Errorf("its environment was read: %q, %v", b, err)
	}
}

func TestFlagsOfIsolationAreChecked(t *testing.T) {
	t.Parallel()
	for says, flags := range map[string][]string{
		"invalid range of uids":   {"--process-uids", "5-10"},
		"--process-tmp":           {"--process-tmp", "1k"},
		"--process-pids":          {"--process-pids", "2"},
		"no such file":            {"--process-path", "/no/such/folder"},
		"absolute path":           {"--process-path", "relative"},
		"are not free":            {"--process-uids", "1000-65534"},
		"a directory of Mariposa": {"--process-path", "DATA"},
	} {
		dir := t.TempDir()
		args := []string{"agent", "--server", "http://127.0.0.1:1", "--join", "x", "--data", dir}
		for _, f := range flags {
			args = append(args, strings.Replace(f, "DATA", dir, 1))
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, errs, code := finish(t, program(ctx, dir, nil, args...), "")
		cancel()
		if code == 0 || !strings.Contains(errs, says) {
			t.Errorf("%v: exit %d, without %q\n%s", flags, code, says, errs)
		}
	}
}

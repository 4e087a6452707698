package main_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

// island is a whole system in a network of its own, in which bridges and system
// containers can do no harm.
type island struct {
	t       *testing.T
	dir     string
	anchor  *exec.Cmd // keeps the namespace
	dev     *exec.Cmd
	printed *lockedBuffer
	env     []string // of all commands
}

func newIsland(t *testing.T) *island {
	t.Helper()
	i := emptyIsland(t)
	i.open()
	return i
}

// open starts the system.
func (i *island) open() {
	i.t.Helper()
	i.t.Cleanup(i.tearDown)
	i.start()
}

// emptyIsland returns an island without a system.
func emptyIsland(t *testing.T) *island {
	t.Helper()
	i := &island{t: t, dir: t.TempDir()}
	// LXC looks for bridges in /sys, which shows the network that it was mounted in.
	i.anchor = exec.CommandContext(context.Background(), "unshare", "--net", "--mount", "--propagation", "slave", "--", "sh", "-ec", `
mount --rbind /sys/fs/cgroup "$0"
mount -t sysfs sysfs /sys
mount --rbind "$0" /sys/fs/cgroup
ip link set lo up
echo ready
exec sleep 100000`, t.TempDir())
	ready := &lockedBuffer{}
	launch(t, i.anchor, ready)
	t.Cleanup(func() { end(i.anchor) })
	i.await("the network is up", func() bool { return strings.Contains(ready.String(), "ready") })
	return i
}

// inside returns a command of the binary in the network of the island.
func (i *island) inside(ctx context.Context, args ...string) *exec.Cmd {
	cmd := program(ctx, i.dir, append([]string{"MARIPOSA_DATA=" + i.dir, "MARIPOSA_LXC=on", "MARIPOSA_KVM=emulate"}, i.env...), args...)
	cmd.Args = append([]string{"nsenter", "--target", strconv.Itoa(i.anchor.Process.Pid), "--net", "--mount", "--", cmd.Path}, args...)
	path, err := exec.LookPath("nsenter")
	must(i.t, err)
	cmd.Path, cmd.Err = path, nil
	return cmd
}

func (i *island) start() {
	i.t.Helper()
	_ = os.Remove(filepath.Join(i.dir, "url"))
	i.printed = &lockedBuffer{}
	i.dev = launch(i.t, i.inside(context.Background(), "dev", "--listen", "127.0.0.1:0", "--data", i.dir), i.printed)
	i.await("its node offers system containers", func() bool {
		if _, err := os.Stat(filepath.Join(i.dir, "url")); err != nil {
			return false
		}
		out, _, code := i.try("node", "list", "--json")
		var all contract.Nodes
		return code == 0 && json.Unmarshal([]byte(out), &all) == nil && len(all.Nodes) == 1 && strings.Contains(out, `"infrastructure"`)
	})
}

func (i *island) tearDown() {
	if i.t.Failed() {
		i.t.Logf("the server said:\n%s", i.printed)
	}
	end(i.dev)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if out, err := i.inside(ctx, "dev", "--listen", "127.0.0.1:0", "--data", i.dir, "--down", "--yes").CombinedOutput(); err != nil {
		i.t.Errorf("tearing down: %v\n%s", err, out)
	}
}

func (i *island) await(what string, ok func() bool) {
	i.t.Helper()
	pause := polling()
	for deadline := time.Now().Add(limit); !ok(); pause() {
		if time.Now().After(deadline) {
			i.t.Fatalf("still not so after %s: %s\n%s", limit, what, i.printed)
		}
	}
}

func (i *island) try(args ...string) (stdout, stderr string, code int) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), limit)
	defer cancel()
	return finish(i.t, i.inside(ctx, args...), "")
}

func (i *island) ok(args ...string) string {
	i.t.Helper()
	out, said, code := i.try(args...)
	if code != 0 {
		i.t.Fatalf("%v: exit code %d\n%s%s", args, code, out, said)
	}
	return out
}

// describe returns what the system says about a project. It is for a test that has failed.
func (i *island) describe(project string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own context has ended
	defer cancel()
	var all strings.Builder
	for _, args := range [][]string{{"instance", "list"}, {"events", "--limit", "60"}, {"logs", "--timestamps", "--tail", "40"}} {
		out, err := i.inside(ctx, append([]string{"-j", project}, args...)...).CombinedOutput()
		fmt.Fprintf(&all, "%s: %v\n%s\n", strings.Join(args, " "), err, out)
	}
	return all.String()
}

// reaches reports whether the node reaches an instance at its address.
func (i *island) reaches(one contract.Instance) bool {
	i.t.Helper()
	host, _, _ := strings.Cut(one.Addresses[0], ":")
	return exec.CommandContext(i.t.Context(), "nsenter", "--target", strconv.Itoa(i.anchor.Process.Pid), "--net", "/bin/busybox", "ping", "-c", "1", "-W", "5", host).Run() == nil
}

// running returns the running instances of a project by name.
func (i *island) running(project string) map[string]contract.Instance {
	i.t.Helper()
	var all contract.Instances
	must(i.t, json.Unmarshal([]byte(i.ok("-j", project, "instance", "list", "--json")), &all))
	found := map[string]contract.Instance{}
	for _, one := range all.Instances {
		if one.State == mariposa.StateRunning {
			found[one.Name] = one
		}
	}
	return found
}

// smallSystem returns a root file system with the machine's busybox, and an init.
func smallSystem(t *testing.T) []byte {
	t.Helper()
	names, err := exec.CommandContext(t.Context(), "/bin/busybox", "--list").Output()
	must(t, err)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		must(t, w.WriteHeader(&h))
		_, err := w.Write(content)
		must(t, err)
	}
	for _, dir := range []string{"bin", "sbin", "etc", "tmp", "proc", "sys", "dev", "run", "root"} {
		add(tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, read(t, "/bin/busybox"))
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0::/root:/bin/sh\n"))
	add(tar.Header{Name: "etc/inittab", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("::sysinit:/bin/echo booted\n::respawn:/bin/sleep 1000000\n::shutdown:/bin/echo bye\n"))
	for name := range strings.FieldsSeq(string(names)) {
		if name != "busybox" && name != "init" {
			add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
		}
	}
	add(tar.Header{Name: "sbin/init", Typeflag: tar.TypeSymlink, Linkname: "/bin/busybox"}, nil)
	must(t, w.Close())
	return b.Bytes()
}

// A service of system containers, from its image to its end, and through a kill of the agent.
func TestAServiceRunsInSystemContainers(t *testing.T) {
	t.Parallel()
	i := newIsland(t)
	archive := filepath.Join(t.TempDir(), "small.tar")
	write(t, archive, smallSystem(t))
	i.ok("image", "import", archive, "--name", "small:1")
	manifest := fileOf(t, `services:
  box:
    compute_type: infrastructure
    image: small:1
    command: [sh, -c, "echo first boot of $MARIPOSA_NAME; id -u"]
    environment: {MODE: test}
    scale: 2
    memory: 32m
    ports: [8080]
    update: {min_healthy: 0}
    files: {/root/pin: "{{ .meta.pin }}"}
metadata: {pin: {secret: true}}
`)
	i.ok("project", "create", "shop", "-m", manifest, "--metadata", fileOf(t, "pin: s3cret-pin\n"), "--wait")
	before := i.running("shop")
	if len(before) != 2 {
		t.Fatalf("%v run", before)
	}
	var one contract.Instance
	for _, one = range before {
		if one.ComputeType != mariposa.ComputeInfrastructure || len(one.Addresses) != 1 || !strings.HasSuffix(one.Addresses[0], ":8080") {
			t.Errorf("it is %+v", one)
		}
	}
	i.await("their logs", func() bool {
		logs := i.ok("-j", "shop", "logs")
		return strings.Count(logs, "booted") == 2 && strings.Count(logs, "first boot of box.") == 2
	})
	if out := i.ok("-j", "shop", "instance", "exec", one.Name, "--", "sh", "-c", "cat /root/pin; echo; echo $MODE; hostname; id -u"); out != "s3cret-pin\ntest\n"+strings.ReplaceAll(one.Name, ".", "-")+"\n0\n" {
		t.Errorf("inside it is %q", out)
	}
	uids := i.ok("-j", "shop", "instance", "exec", one.Name, "--", "cat", "/proc/self/uid_map")
	if f := strings.Fields(uids); len(f) != 3 || f[0] != "0" || f[1] == "0" {
		t.Errorf("its ids are %q: root inside is root of the machine", uids)
	}
	if _, said, code := i.try("image", "rm", "small:1"); code != 1 || !strings.Contains(said, "2 instances were created from small:1") {
		t.Errorf("an image in use: exit code %d, %s", code, said)
	}

	// The agent and the server are killed. The containers run on, and are taken over.
	end(i.dev)
	i.start()
	i.await("both run as before", func() bool {
		now := i.running("shop")
		return len(now) == 2 && now[one.Name].PhysicalID == one.PhysicalID && one.PhysicalID != ""
	})
	if logs := i.ok("-j", "shop", "logs"); strings.Count(logs, "booted") != 2 {
		t.Errorf("they were booted again:\n%s", logs)
	}

	// One whose init is killed is replaced.
	pid := atoi(strings.TrimSpace(i.details(one.ID)["pid"]))
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	i.await("it is replaced", func() bool {
		now := i.running("shop")
		return len(now) == 2 && now[one.Name].ID == ""
	})
	i.ok("project", "delete", "shop", "--yes", "-f", "--wait")
	i.ok("image", "rm", "small:1")
}

func (i *island) details(id string) map[string]string {
	i.t.Helper()
	var one contract.Instance
	must(i.t, json.Unmarshal([]byte(i.ok("instance", "show", id, "--json")), &one))
	return one.Details
}

// What cannot be started says why, in one sentence.
func TestASystemContainerThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	i := newIsland(t)
	i.ok("project", "create", "shop", "-m", fileOf(t, "services: {box: {compute_type: lx, image: 'nothing:1'}}"))
	i.await("it says why", func() bool {
		return strings.Contains(i.ok("-j", "shop", "state"), `the image store of this node has none named "nothing:1": import it with `)
	})
	if _, said, code := i.try("validate", "-m", fileOf(t, "services: {box: {compute_type: lx, image: a, ports: ['80:8080']}}")); code == 0 || !strings.Contains(said, "a system container is reached at its own address") {
		t.Errorf("exit code %d: %s", code, said)
	}
}

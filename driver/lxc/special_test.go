package lxc_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/kvm/guesttest"
	"mariposa/driver/lxc"
)

// node is a driver that collects what it reports.
type node struct {
	*lxc.Driver
	t  *testing.T
	w  *world
	mu sync.Mutex
	is []driver.Event
}

func openNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, w: newWorld(t)}
	n.open()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		list, _ := n.List(ctx)
		for _, i := range list {
			if err := n.Remove(ctx, i.ID); err != nil {
				t.Error(err)
			}
		}
		_ = n.Close()
	})
	return n
}

func (n *node) open() {
	n.t.Helper()
	d, err := newDriver(n.w.options, n.w.subnet)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Driver = d
	d.Watch(func(e driver.Event) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.is = append(n.is, e)
	})
}

func (n *node) start(i driver.Instance) driver.Observed {
	n.t.Helper()
	o, err := n.Start(n.t.Context(), i)
	if err != nil {
		n.t.Fatalf("Start: %v", err)
	}
	return o
}

func (n *node) stop(id string, timeout time.Duration) driver.Observed {
	n.t.Helper()
	o, err := n.Stop(n.t.Context(), id, timeout)
	if err != nil {
		n.t.Fatalf("Stop: %v", err)
	}
	return o
}

// cannotStart wants a start to fail with a sentence, and to leave nothing.
func (n *node) cannotStart(i driver.Instance, words ...string) {
	n.t.Helper()
	_, err := n.Start(n.t.Context(), i)
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			n.t.Errorf("Start: %v, want %q", err, word)
		}
	}
	if list, err := n.List(n.t.Context()); err != nil || len(list) != 0 {
		n.t.Errorf("after a start that failed there are %v, %v", list, err)
	}
}

// end returns the end of an instance, once it is reported.
func (n *node) end(id string) (found driver.Observed) {
	n.t.Helper()
	await(n.t, "its end is reported", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, e := range n.is {
			if e.Kind == driver.InstanceChanged && e.Instance.ID == id && !e.Instance.Running {
				found = e.Instance
				return true
			}
		}
		return false
	})
	return found
}

func (n *node) log(id string) string {
	n.t.Helper()
	r, err := n.Logs(n.t.Context(), id, driver.LogOptions{Tail: -1})
	if err != nil {
		n.t.Fatal(err)
	}
	defer r.Close() // it was only read
	text, err := io.ReadAll(r)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

func system(id string, command ...string) driver.Instance {
	i := instance(id, command...)
	i.Workload.Image = "system"
	return i
}

// A container has its own ids, network, files and processes, whatever else the machine has.
func TestAContainerIsIsolated(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	first, second := d.start(system(drivertest.NewID())), d.start(system(drivertest.NewID()))
	ids := map[string]bool{}
	for _, o := range []driver.Observed{first, second} {
		pid := pidOf(t, o)
		for _, kind := range []string{"uid_map", "gid_map"} {
			b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), kind))
			f := strings.Fields(string(b))
			if err != nil || len(f) != 3 || f[0] != "0" || f[2] != "65536" {
				t.Fatalf("its %s is %q, %v", kind, b, err)
			}
			if outside, _ := strconv.Atoi(f[1]); outside < 1<<29 {
				t.Errorf("its ids begin at %d", outside)
			}
			ids[f[1]] = true
		}
		for _, kind := range []string{"net", "user", "mnt", "pid", "ipc", "uts", "cgroup"} {
			inside, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
			outside, err2 := os.Readlink("/proc/self/ns/" + kind)
			if err1 != nil || err2 != nil || inside == outside {
				t.Errorf("its namespace %s is %s, that of the machine %s (%v, %v)", kind, inside, outside, err1, err2)
			}
		}
		if o.Details["isolation"] == "" || !strings.HasPrefix(o.Details["isolation"], "unprivileged") {
			t.Errorf("its details are %v", o.Details)
		}
	}
	if len(ids) != 2 {
		t.Errorf("two containers have the ids %v", ids)
	}
	if first.Addresses[0] == second.Addresses[0] {
		t.Errorf("two containers have the address %v", first.Addresses)
	}
	for command, want := range map[string]string{
		"id -u":                         "0\n",
		"stat -c '%u:%g %a' /srv/owned": "1234:1235 4751\n",
		"stat -c '%u:%g' / /etc":        "0:0\n0:0\n",
		"hostname":                      strings.ReplaceAll(first.Name, ".", "-") + "\n",
		"mknod /tmp/disk b 8 0 2>&1 && head -c1 /tmp/disk; test -e /dev/mem || echo none": "none\n",
		"ip -o link | grep -c eth": "1\n",
	} {
		got := run(t, d, first.ID, command)
		if strings.HasPrefix(command, "mknod") {
			got = got[strings.LastIndex(strings.TrimSuffix(got, "\n"), "\n")+1:]
		}
		if got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if details := d.Details(); !strings.HasPrefix(details["isolation"], "unprivileged") || details["network"] == "" || details["lxc"] == "" {
		t.Errorf("the details are %v", details)
	}
}

// The command of an image with an init is a script that runs once, after the first boot.
func TestTheCommandIsAScriptAtTheFirstBoot(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := system(drivertest.NewID(), "sh", "-c", `echo "script of $GREETING, as $(id -u) in $(pwd)"; echo "$PEM"; ps | grep -c '^ *1 .*init'; date > /srv/ran; exit 3`)
	i.Workload.Environment = []mariposa.Variable{{Name: "GREETING", Value: ` "a" 'b' $HOME # `}, {Name: "PEM", Value: "line 1\nline '2'"}}
	i.Workload.WorkingDir = "/srv"
	i.Workload.Files = []mariposa.Variable{{Name: "/run/secrets/db", Value: "s3cret"}}
	d.start(i)
	if got := run(t, d, i.ID, "cat /run/secrets/db"); got != "s3cret" {
		t.Errorf("its file has %q", got)
	}
	want := "script of  \"a\" 'b' $HOME # , as 0 in /srv\nline 1\nline '2'\n1\nmariposa: the command of the first boot failed: exit status 3\n"
	await(t, "the script has run", func() bool { return strings.Contains(d.log(i.ID), "failed") })
	await(t, "its init has booted", func() bool { return strings.Contains(d.log(i.ID), "booted\n") })
	if got := strings.Replace(d.log(i.ID), "booted\n", "", 1); got != want { // both write at the same time
		t.Errorf("its log is %q, want %q", got, want)
	}
	ran := run(t, d, i.ID, "cat /srv/ran")
	if o := d.stop(i.ID, drivertest.Limit); o.Reason != "was shut down" || o.ExitCode == nil || *o.ExitCode != 0 {
		t.Errorf("it ended: %+v", o)
	}
	if !strings.Contains(d.log(i.ID), "going down\n") {
		t.Errorf("its log is %q", d.log(i.ID))
	}
	d.start(i)
	if again := run(t, d, i.ID, "cat /srv/ran"); again != ran {
		t.Errorf("its files were %q, and after a restart %q", ran, again)
	}
	await(t, "it has booted again", func() bool { return strings.Count(d.log(i.ID), "booted\n") == 2 })
	if got := d.log(i.ID); strings.Count(got, "script of") != 1 {
		t.Errorf("the script has run again: %q", got)
	}
}

// Limits are in place, and change while a container runs.
func TestLimitsAreInPlace(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := graceful(drivertest.NewID())
	i.Workload.Memory, i.Workload.MilliCPU = 64<<20, 100
	o := d.start(i)
	if o.Details["limits"] != "" {
		t.Errorf("limits: %s", o.Details["limits"])
	}
	read := func(controller, v1, v2 string) string {
		dir, name := lxc.GroupDir(d.Driver, i.ID, controller), v1
		if _, err := os.Stat(filepath.Join(dir, v1)); err != nil {
			name = v2
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(b))[0]
	}
	check := func(memory, cpu string) {
		t.Helper()
		if got := read("memory", "memory.limit_in_bytes", "memory.max"); got != memory {
			t.Errorf("its memory is limited to %s, want %s", got, memory)
		}
		if got := read("cpu", "cpu.cfs_quota_us", "cpu.max"); got != cpu {
			t.Errorf("its cpu is limited to %s, want %s", got, cpu)
		}
		if got := read("pids", "pids.max", "pids.max"); got != "4096" {
			t.Errorf("its processes are limited to %s", got)
		}
	}
	check("67108864", "10000")
	i.Workload.Memory, i.Workload.MilliCPU = 128<<20, 200
	now, err := d.Update(t.Context(), i)
	if err != nil || now.PhysicalID != o.PhysicalID || !now.Started.Equal(o.Started) {
		t.Fatalf("Update: %+v, %v", now, err)
	}
	check("134217728", "20000")
	i.Workload.Memory = 32 << 20
	if _, err = d.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	check("33554432", "20000")
	if got := run(t, d, i.ID, "x=x; (while :; do x=$x$x; done) 2>/dev/null; echo $?"); got != "137\n" {
		t.Errorf("a command in it is not limited: %q", got)
	}
}

// How an instance ended is said in words.
func TestTheEndOfAContainerIsExplained(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	for name, c := range map[string]struct {
		command string
		memory  int64
		code    int
		reason  string
	}{
		"code":   {"exit 3", 0, 3, "exited with code 3"},
		"zero":   {"exit 0", 0, 0, "exited with code 0"},
		"memory": {"x=x; while :; do x=$x$x$x$x; done", 16 << 20, 137, "ran out of memory and was killed"},
	} {
		i := instance(drivertest.NewID(), "sh", "-c", c.command)
		i.Workload.Memory = c.memory
		if o := d.start(i); !o.Running {
			t.Errorf("%s: Start returned %+v", name, o)
		}
		if o := d.end(i.ID); o.Reason != c.reason || o.ExitCode == nil || *o.ExitCode != c.code {
			t.Errorf("%s: it ended: %+v", name, o)
		}
	}
	i := graceful(drivertest.NewID())
	if err := unix.Kill(pidOf(t, d.start(i)), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if o := d.end(i.ID); o.Reason != "killed by signal 9 (SIGKILL)" || o.ExitCode == nil || *o.ExitCode != 137 {
		t.Errorf("it ended: %+v", o)
	}
}

// What cannot run is refused with a sentence that says why.
func TestErrorsAreExplained(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	missing := instance(drivertest.NewID())
	missing.Workload.Image = "no-such-image"
	d.cannotStart(missing, "no-such-image", "mariposa image import")
	none := instance(drivertest.NewID())
	none.Workload.Image = ""
	d.cannotStart(none, "it has no image")
	d.cannotStart(instance(drivertest.NewID()), "its image has no init", "set `command`")
	d.cannotStart(instance(drivertest.NewID(), "/no/such/program"), "its image has no program /no/such/program", "check `command`")
	d.cannotStart(instance(drivertest.NewID(), "/etc/passwd"), "its program /etc/passwd cannot be executed")
	nobody := graceful(drivertest.NewID())
	nobody.Workload.User = "stranger"
	d.cannotStart(nobody, `its image has no user "stranger"`)
	published := graceful(drivertest.NewID())
	published.Workload.Ports = []mariposa.Port{{Host: 443, Target: 8443}}
	d.cannotStart(published, "port 443 of the node", "write 8443 alone")
	relative := graceful(drivertest.NewID())
	relative.Workload.Files = []mariposa.Variable{{Name: "relative", Value: "x"}}
	d.cannotStart(relative, `cannot create its file "relative"`)
	nowhere := graceful(drivertest.NewID())
	nowhere.Workload.WorkingDir = "/no/such/directory"
	d.cannotStart(nowhere, "/no/such/directory", "check `working_dir`")
}

// An instance keeps its address, its ids and its files when it is started again, and when the
// agent is.
func TestAnInstanceStaysTheSame(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	other, i := graceful(drivertest.NewID()), graceful(drivertest.NewID())
	d.start(other)
	first := d.start(i)
	run(t, d, i.ID, "echo mine > /srv/mine")
	if err := d.Remove(t.Context(), other.ID); err != nil { // its address is free now
		t.Fatal(err)
	}
	d.stop(i.ID, drivertest.Limit)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d.open()
	again := d.start(i)
	if again.Addresses[0] != first.Addresses[0] || again.Details["isolation"] != first.Details["isolation"] {
		t.Errorf("it was %+v and is %+v", first, again)
	}
	if got := run(t, d, i.ID, "cat /srv/mine"); got != "mine\n" {
		t.Errorf("its file has %q", got)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d.open()
	if got := run(t, d, i.ID, "cat /srv/mine"); got != "mine\n" {
		t.Errorf("after a restart of the agent, its file has %q", got)
	}
}

// A supervisor that is killed takes its container with it, and the end is reported.
func TestAKilledSupervisorEndsItsContainer(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := graceful(drivertest.NewID())
	pid := pidOf(t, d.start(i))
	if err := unix.Kill(lxc.SupervisorPID(d.Driver, i.ID), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if o := d.end(i.ID); o.Reason != "its supervisor was killed" {
		t.Errorf("it ended: %+v", o)
	}
	await(t, "its processes are gone", func() bool { return unix.Kill(pid, 0) != nil })
	d.start(i)
}

// What a command leaves running goes on after it, as on any machine; what a killed agent leaves
// does not.
func TestCommandsMayStartServices(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := graceful(drivertest.NewID())
	d.start(i)
	run(t, d, i.ID, "setsid sleep 54321 < /dev/null > /dev/null 2>&1 &")
	s, err := d.Exec(t.Context(), i, driver.ExecOptions{Command: []string{"sh", "-c", "sleep 12345; exit 1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // never fails
	await(t, "one is left running", func() bool { return run(t, d, i.ID, "ps | grep -c '[s]leep 54321'; true") == "1\n" })
	lxc.KillSessions(d.Driver, i.ID)
	if code, err := s.Wait(); code != 137 || err != nil {
		t.Errorf("it ended with %d, %v", code, err)
	}
	if got := run(t, d, i.ID, "ps | grep -c '[s]leep 12345'; ps | grep -c '[s]leep 54321'; true"); got != "0\n1\n" {
		t.Errorf("running are %q", got)
	}
}

// Where the kernel cannot map ids, each container has a copy of its image; where it has no user
// namespaces, containers are privileged, and that is said.
func TestOlderKernels(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit     func(*lxc.Driver)
		isolation string
	}{
		"no mapped ids":      {lxc.WithoutOverlay, "unprivileged"},
		"no user namespaces": {lxc.WithoutUserNS, "privileged"},
	} {
		d := openNode(t)
		c.limit(d.Driver)
		i := system(drivertest.NewID(), "sh", "-c", "echo mine > /srv/mine")
		o := d.start(i)
		if !strings.HasPrefix(o.Details["isolation"], c.isolation) || !strings.HasPrefix(d.Details()["isolation"], c.isolation) {
			t.Errorf("%s: %v, %v", name, o.Details, d.Details())
		}
		inside, err1 := os.Readlink("/proc/" + o.Details["pid"] + "/ns/net")
		outside, err2 := os.Readlink("/proc/self/ns/net")
		if err1 != nil || err2 != nil || inside == outside {
			t.Errorf("%s: its network is %q, that of the machine %q", name, inside, outside)
		}
		await(t, "its script has run", func() bool { return strings.Contains(run(t, d, i.ID, "cat /srv/mine || true"), "mine") })
		if got := run(t, d, i.ID, "stat -c '%u:%g %a' /srv/owned; id -u"); got != "1234:1235 4751\n0\n" {
			t.Errorf("%s: %q", name, got)
		}
		d.stop(i.ID, 0)
		d.start(i)
		if got := run(t, d, i.ID, "cat /srv/mine"); got != "mine\n" {
			t.Errorf("%s: after a restart its file has %q", name, got)
		}
	}
}

// Root of a container reads and sets values with the tools that guests of Triton have.
func TestMetadataToolsWorkInside(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	tool, err := guesttest.Tool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	volume := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "tools"}
	source, err := d.Provide(t.Context(), volume)
	if err == nil {
		err = os.WriteFile(filepath.Join(source, "mdata"), tool, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	i := graceful(drivertest.NewID())
	i.Volumes = []driver.Volume{{Mount: mariposa.Mount{Volume: volume.ID, Name: "tools", Path: "/tools"}, Source: source}}
	i.Mdata.Values = []mariposa.Variable{{Name: "color", Value: "blue"}}
	d.start(i)
	check := func(command, want string) {
		t.Helper()
		if got := run(t, d, i.ID, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	check("/tools/mdata get color", "blue\n")
	check("/tools/mdata get sdc:uuid", i.ID+"\n")
	check("/tools/mdata put mine 'a b' && /tools/mdata get mine && /tools/mdata list", "a b\ncolor\nmine\n")
	check("/tools/mdata put color red 2>&1 || true", "mdata: the project sets the key color\n")
	check("su -s /bin/sh web -c '/tools/mdata get color' 2>/dev/null || echo refused", "refused\n")
	if err := d.PublishValues(t.Context(), i.ID, []mariposa.Variable{{Name: "color", Value: "green"}}); err != nil {
		t.Error(err)
	}
	check("/tools/mdata get color", "green\n")
	d.stop(i.ID, drivertest.Limit)
	d.start(i)
	check("/tools/mdata get mine", "a b\n")
}

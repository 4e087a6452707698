package docker_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/docker"
	"mariposa/driver/docker/enginetest"
	"mariposa/driver/drivertest"
)

// withPodman is the part of the suite that depends most on the engine. The whole suite runs with
// Podman if TEST_ENGINE=podman.
var withPodman = []string{
	"a start after the end restarts the same instance",
	"a stop kills after its timeout",
	"an unexpected end is reported exactly once",
	"logs can be read and followed",
	"a command can have a terminal",
	"a command ends with its session and with its instance",
	"a command that cannot run is refused",
	"volumes are created once, found again, and removed with their content",
	"networks are created once, found again, and removed with their content",
	"a restart by the engine is reported",
	"a lost engine is reported, and changes meanwhile are found when it is back",
	"usage of a running instance is measured",
}

func TestPodman(t *testing.T) {
	t.Parallel()
	e, err := enginetest.StartPodman(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Run("engine", func(t *testing.T) { testPodman(t, e) })
	t.Run("its service is killed", func(t *testing.T) { testKilledPodman(t, e) })
}

// testPodman runs what can run beside each other.
func testPodman(t *testing.T, e *enginetest.Engine) {
	t.Run("suite", func(t *testing.T) { drivertest.Run(t, harnessOn(e), withPodman...) })
	t.Run("limits change in place, and last", func(t *testing.T) {
		t.Parallel()
		d := openOn(t, e.Host(), t.TempDir(), drivertest.NewID())
		if name := d.Driver.(driver.Conditional).Details()["engine"]; !strings.HasPrefix(name, "Podman ") {
			t.Errorf("the engine is %q", name)
		}
		i := instance(drivertest.NewID())
		i.Workload.Memory, i.Workload.MilliCPU = 64<<20, 250
		o := d.start(i)
		wantLimits(t, d.Driver, i.ID, 64<<20, 250)
		for _, want := range [][2]int64{{128 << 20, 500}, {0, 0}, {32 << 20, 1000}} {
			i.Workload.Memory, i.Workload.MilliCPU = want[0], want[1]
			if now, err := d.Update(t.Context(), i); err != nil || now.PhysicalID != o.PhysicalID || !now.Started.Equal(o.Started) {
				t.Fatalf("Update: %+v, %v", now, err)
			}
			wantLimits(t, d.Driver, i.ID, want[0], want[1])
		}
		if _, err := d.Stop(t.Context(), i.ID, 0); err != nil {
			t.Fatal(err)
		}
		if again := d.start(i); again.PhysicalID != o.PhysicalID {
			t.Errorf("started again, it is %+v", again)
		}
		wantLimits(t, d.Driver, i.ID, 32<<20, 1000)
	})
	t.Run("containers find each other and errors are explained", func(t *testing.T) {
		t.Parallel()
		d := openOn(t, e.Host(), t.TempDir(), drivertest.NewID())
		db, web, second := instance(drivertest.NewID(), "nc", "-ll", "-p", "5432", "-e", "echo", "hello from db"), instance(drivertest.NewID()), instance(drivertest.NewID())
		db.Service, db.Workload.Ports = "db", []mariposa.Port{{Host: 7998, Target: 5432}}
		second.Workload.Ports = db.Workload.Ports
		d.start(db)
		d.start(web)
		await(t, "web reaches db by its name", func() bool {
			return strings.Contains(run(t, d.Driver, web.ID, "nc -w 2 db 5432 < /dev/null || true"), "hello from db")
		})
		d.cannotStart(second, "port 7998 of this node is in use", "change `ports`")
		d.cannotStart(instance(drivertest.NewID(), "/no/such/program"), "its image has no program /no/such/program", "check `command`")
		missing, stranger := instance(drivertest.NewID()), instance(drivertest.NewID())
		missing.Workload.Image, stranger.Workload.User = "127.0.0.1:1/no/such:image", "stranger"
		d.cannotStart(missing, "127.0.0.1:1/no/such:image", "cannot be reached")
		d.cannotStart(stranger, "stranger")
	})
	t.Run("private images", func(t *testing.T) {
		t.Parallel()
		testPrivateImages(t, e)
	})
}

// wantLimits checks the limits of a container by its cgroups.
func wantLimits(t *testing.T, d driver.Driver, id string, memory, milli int64) {
	t.Helper()
	out := run(t, d, id, "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us 2>/dev/null || cat memory.max cpu.max")
	fields := strings.Fields(strings.ReplaceAll(out, "max", "-1"))
	if len(fields) < 2 {
		t.Fatalf("its cgroup has %q", out)
	}
	bytes, _ := strconv.ParseInt(fields[0], 10, 64)
	quota, _ := strconv.ParseInt(fields[1], 10, 64)
	if memory > 0 && (bytes != memory || quota != milli*100) || memory == 0 && (bytes > 0 && bytes < 1<<50 || quota > 0) {
		t.Errorf("with %d and %d it has %d and %d", memory, milli, bytes, quota)
	}
}

// testPrivateImages checks that an image which was fetched with a login is only for those who have
// access to it, also by its digest.
func testPrivateImages(t *testing.T, e *enginetest.Engine) {
	registry, err := e.StartPrivateRegistry()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Stop)
	digest, err := registry.Push(t.Context(), "shop/web:1", "FROM "+enginetest.Image+"\nLABEL a=b\n")
	if err != nil || digest == "" {
		t.Fatal(digest, err)
	}
	d := openOn(t, e.Host(), t.TempDir(), drivertest.NewID())
	name := registry.Host + "/shop/web:1@" + digest
	good := &mariposa.Login{Registry: registry.Host, Username: enginetest.RegistryUser, Password: enginetest.RegistryPassword}
	wrong := &mariposa.Login{Registry: registry.Host, Username: enginetest.RegistryUser, Password: "guessed"}
	ensure := func(login *mariposa.Login) error {
		return d.Driver.(driver.Imager).EnsureImage(t.Context(), name, login, func(driver.Progress) {})
	}
	for n, c := range []struct {
		login   *mariposa.Login
		refused bool
	}{{wrong, true}, {nil, true}, {good, false}, {wrong, true}, {nil, true}, {good, false}} {
		if err := ensure(c.login); (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "refuses to give image") {
			t.Errorf("attempt %d: %v", n, err)
		}
	}
	i := instance(drivertest.NewID())
	i.Workload.Image, i.Login = name, good
	if o := d.start(i); o.Details["image_digest"] != digest {
		t.Errorf("it runs %v", o.Details)
	}
	if _, err := d.Driver.(driver.Resolver).ResolveImage(t.Context(), registry.Host+"/shop/web:1", good); err == nil || !strings.Contains(err.Error(), "Podman cannot ask") {
		t.Errorf("ResolveImage: %v", err)
	}
}

// testKilledPodman kills the service of Podman: containers run on, and what happens meanwhile is
// found.
func testKilledPodman(t *testing.T, e *enginetest.Engine) {
	d := openOn(t, e.Host(), t.TempDir(), "node")
	stays, ends := instance(drivertest.NewID()), instance(drivertest.NewID())
	before, gone := d.start(stays), d.start(ends)
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "the loss is reported", func() bool { return d.saw(driver.EngineLost) })
	d.cannotStart(instance(drivertest.NewID()), "Podman cannot be reached")
	pid, err := strconv.Atoi(gone.Details["pid"])
	if err != nil {
		t.Fatal(gone.Details)
	}
	if p, err := os.FindProcess(pid); err != nil || p.Kill() != nil {
		t.Fatalf("cannot end process %d", pid)
	}
	if err := e.Launch(); err != nil {
		t.Fatal(err)
	}
	await(t, "the return is reported", func() bool { return d.saw(driver.EngineBack) })
	if is := d.listed(ends.ID); is == nil || is.Running || is.ExitCode == nil || *is.ExitCode != 137 {
		t.Errorf("the one that ended is %+v", is)
	}
	if is := d.start(stays); is.PhysicalID != before.PhysicalID || !is.Started.Equal(before.Started) {
		t.Errorf("the other one is %+v, was %+v", is, before)
	}
	if _, err := e.API.ContainerKill(t.Context(), before.PhysicalID, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	d.end(stays.ID) // its events arrive again
}

// The socket of an engine is found, and used from then on.
func TestTheDefaultSocketOfAnEngineIsFound(t *testing.T) {
	t.Setenv("DOCKER_HOST", "") // so it does not run in parallel
	dir := t.TempDir()
	first, second := "unix://"+dir+"/docker.sock", "unix://"+newProxy(t, engine.Socket()).path
	open := func(hosts ...string) map[string]string {
		t.Helper()
		d, err := docker.New(docker.Options{Dir: dir, Scope: "node", DefaultHosts: hosts})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		return map[string]string{"host": d.Details()["host"], "engine": d.Details()["engine"], "why": d.Unavailable()}
	}
	if is := open(first); is["why"] == "" || is["host"] != "" {
		t.Errorf("without a socket: %v", is)
	}
	if is := open(first, second); is["host"] != second || !strings.HasPrefix(is["engine"], map[bool]string{true: "Podman ", false: "Docker "}[engine.IsPodman()]) {
		t.Errorf("with the second socket: %v", is)
	}
	newProxyAt(t, dir+"/docker.sock", engine.Socket())
	if is := open(first, second); is["host"] != second {
		t.Errorf("its engine was exchanged: %v", is)
	}
	t.Setenv("DOCKER_HOST", first)
	if is := open("unix:///none"); is["host"] != first {
		t.Errorf("with DOCKER_HOST: %v", is)
	}
}

package docker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/docker"
	"mariposa/driver/docker/enginetest"
	"mariposa/driver/drivertest"
)

// opened opens a driver and collects what it reports.
type opened struct {
	driver.Driver
	t     *testing.T
	scope string
	mu    sync.Mutex
	is    []driver.Event
}

func openOn(t *testing.T, host, dir, scope string) *opened {
	t.Helper()
	d, err := docker.New(docker.Options{Host: host, Dir: dir, Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	o := &opened{Driver: d, t: t, scope: scope}
	d.Watch(func(e driver.Event) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.is = append(o.is, e)
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		list, _ := d.List(ctx)
		for _, i := range list {
			if err := d.Remove(ctx, i.ID); err != nil {
				t.Error(err)
			}
		}
		_ = d.Close()
	})
	return o
}

func open(t *testing.T) *opened {
	t.Helper()
	return openOn(t, engine.Host(), t.TempDir(), drivertest.NewID())
}

func (o *opened) start(i driver.Instance) driver.Observed {
	o.t.Helper()
	is, err := o.Start(o.t.Context(), i)
	if err != nil {
		o.t.Fatalf("Start: %v", err)
	}
	return is
}

// cannotStart wants a start to fail with a sentence.
func (o *opened) cannotStart(i driver.Instance, words ...string) {
	o.t.Helper()
	_, err := o.Start(o.t.Context(), i)
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			o.t.Fatalf("Start: %v, want %q", err, word)
		}
	}
}

// end returns the end of an instance, once it is reported.
func (o *opened) end(id string) (found driver.Observed) {
	o.t.Helper()
	await(o.t, "its end is reported", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, e := range o.is {
			if e.Kind == driver.InstanceChanged && e.Instance.ID == id && !e.Instance.Running {
				found = e.Instance
				return true
			}
		}
		return false
	})
	return found
}

func (o *opened) saw(kind driver.EventKind) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.is {
		if e.Kind == kind {
			return true
		}
	}
	return false
}

// Everything of a workload reaches the container.
func TestAContainerHasWhatItsWorkloadSays(t *testing.T) {
	t.Parallel()
	d := open(t)
	i := instance(drivertest.NewID(), "-c", "echo $GREETING; pwd; id -u; exec sleep 1000")
	i.Workload.Entrypoint, i.Workload.WorkingDir, i.Workload.User = []string{"sh"}, "/tmp", "web"
	i.Workload.Environment = []mariposa.Variable{{Name: "GREETING", Value: "hello $HOME"}}
	i.Workload.Files = []mariposa.Variable{{Name: "/run/secrets/db", Value: "s3cret"}, {Name: "/etc/app.conf", Value: "a=1\n"}}
	i.Workload.Tags = []mariposa.Variable{{Name: "role", Value: "front"}, {Name: "mariposa.node", Value: "forged"}}
	i.Workload.DNS, i.Workload.DNSSearch = []string{"10.0.0.2"}, []string{"my.example.com"}
	i.Workload.Memory, i.Workload.MilliCPU = 64<<20, 250
	i.Workload.Ports = []mariposa.Port{{Target: 8080}, {Target: 9090}}
	nameserver := "nameserver 127.0.0.11\n" // the engine's, which asks the others
	if engine.IsPodman() {
		nameserver = "nameserver 10.0.0.2\n"
	}
	o := d.start(i)
	if len(o.Addresses) != 2 || !strings.HasSuffix(o.Addresses[0], ":8080") || !strings.HasSuffix(o.Addresses[1], ":9090") {
		t.Errorf("its addresses are %v", o.Addresses)
	}
	await(t, "its log shows what its command sees", func() bool {
		r, err := d.Logs(t.Context(), i.ID, driver.LogOptions{Tail: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close() // it was only read
		text, err := io.ReadAll(r)
		return err == nil && string(text) == "hello $HOME\n/tmp\n1234\n"
	})
	for command, want := range map[string]string{
		"cat /run/secrets/db": "s3cret", "cat /etc/app.conf": "a=1\n", "stat -c '%a %u' /run/secrets/db": "400 1234\n", "id -u; id -g": "1234\n1235\n",
		"grep ^nameserver /etc/resolv.conf": nameserver, "grep ^search /etc/resolv.conf": "search my.example.com\n", "pwd": "/tmp\n",
		"echo $GREETING $PORT $PORT_9090": "hello $HOME 8080 9090\n", "cat $MARIPOSA_MDATA_FILE": "{}\n",
		"touch /run/mariposa/x || echo refused": "refused\n", "touch /run/secrets/db || echo refused": "refused\n",
	} {
		if got := run(t, d.Driver, i.ID, command, "2>/dev/null"); strings.ReplaceAll(got, "\n\n", "\n") != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	c := inspect(t, o.PhysicalID)
	if c.Config.Labels["role"] != "front" || c.Config.Labels["mariposa.node"] == "forged" || c.Config.Labels["mariposa.project"] != "shop" {
		t.Errorf("its labels are %v", c.Config.Labels)
	}
	if dns := c.HostConfig.DNS; len(dns) != 1 || dns[0].String() != "10.0.0.2" {
		t.Errorf("its name servers are %v", dns)
	}
	if c.HostConfig.Memory != 64<<20 || c.HostConfig.CPUQuota != 25_000 || c.HostConfig.Privileged || c.HostConfig.RestartPolicy.Name != container.RestartPolicyDisabled {
		t.Errorf("it has %+v", c.HostConfig)
	}

	// Limits change in place, and can be taken away.
	for _, want := range [][2]int64{{128 << 20, 500}, {0, 0}, {32 << 20, 1000}} {
		i.Workload.Memory, i.Workload.MilliCPU = want[0], want[1]
		now, err := d.Update(t.Context(), i)
		if err != nil || now.PhysicalID != o.PhysicalID || !now.Started.Equal(o.Started) {
			t.Fatalf("Update: %+v, %v", now, err)
		}
		wantLimits(t, d.Driver, i.ID, want[0], want[1])
		if engine.IsPodman() { // it shows the first limits
			continue
		}
		c := inspect(t, o.PhysicalID)
		if want[0] > 0 && (c.HostConfig.Memory != want[0] || c.HostConfig.CPUQuota != want[1]*100) || want[0] == 0 && (c.HostConfig.Memory < 1<<50 || c.HostConfig.CPUQuota > 0) {
			t.Errorf("with %v it has %d and %d", want, c.HostConfig.Memory, c.HostConfig.CPUQuota)
		}
	}
}

func inspect(t *testing.T, id string) container.InspectResponse {
	t.Helper()
	r, err := engine.API.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Container
}

// What the engine refuses is said in our words.
func TestTheErrorsOfTheEngineAreExplained(t *testing.T) {
	t.Parallel()
	d := open(t)
	missing := instance(drivertest.NewID())
	missing.Workload.Image = "127.0.0.1:1/no/such:image"
	d.cannotStart(missing, "127.0.0.1:1/no/such:image", "cannot be reached")
	d.cannotStart(instance(drivertest.NewID(), "/no/such/program"), "its image has no program /no/such/program", "check `command`")
	nobody := instance(drivertest.NewID())
	nobody.Workload.User = "stranger"
	d.cannotStart(nobody, "stranger", "check `user`")
	if _, err := d.Start(t.Context(), nobody); err == nil || !strings.HasPrefix(err.Error(), "its image ") { // the engine did not say it
		t.Errorf("without its user: %v", err)
	}
	wrong := instance(drivertest.NewID())
	wrong.Workload.Image = "Not Valid"
	d.cannotStart(wrong, "the name of its image is not valid")

	first, second := instance(drivertest.NewID()), instance(drivertest.NewID())
	first.Workload.Ports, second.Workload.Ports = []mariposa.Port{{Host: 7999, Target: 80}}, []mariposa.Port{{Host: 7999, Target: 80}}
	d.start(first)
	d.cannotStart(second, "port 7999 of this node is in use", "change `ports`")
	if list, err := d.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("after starts that failed there are %v, %v", list, err)
	}
}

// Containers of others are never touched, whatever they are called.
func TestForeignContainersAreNotTouched(t *testing.T) {
	t.Parallel()
	d := open(t)
	id := drivertest.NewID()
	made, err := engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "mariposa-" + id, Config: &container.Config{Image: enginetest.Image}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = engine.API.ContainerRemove(context.WithoutCancel(t.Context()), made.ID, client.ContainerRemoveOptions{Force: true})
	})
	if _, err := engine.API.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	d.cannotStart(instance(id), "another container has the name mariposa-"+id)
	if o, err := d.Stop(t.Context(), id, 0); err != nil || o.PhysicalID != "" {
		t.Errorf("Stop: %+v, %v", o, err)
	}
	if err := d.Remove(t.Context(), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := d.Usage(t.Context(), id); err == nil {
		t.Error("its usage was measured")
	}
	if list, err := d.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	if c := inspect(t, made.ID); !c.State.Running {
		t.Error("it was ended")
	}
}

// Containers of one network know each other by name; others do not reach them.
func TestContainersOfANetworkFindEachOther(t *testing.T) {
	t.Parallel()
	d := open(t)
	back := driver.Resource{Kind: mariposa.KindNetwork, ID: drivertest.NewID(), Name: "backend"}
	if _, err := d.Driver.(driver.Provider).Provide(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	db := instance(drivertest.NewID(), "nc", "-ll", "-p", "5432", "-e", "echo", "hello from db")
	db.Service, db.Networks = "db", []driver.Network{{ID: back.ID, Name: "backend"}}
	db.Workload.Ports = []mariposa.Port{{Target: 5432}}
	web, stranger := instance(drivertest.NewID()), instance(drivertest.NewID())
	web.Networks = db.Networks
	o := d.start(db)
	d.start(web)
	d.start(stranger)
	await(t, "web reaches db by its name", func() bool {
		return strings.Contains(run(t, d.Driver, web.ID, "nc -w 2 db 5432 < /dev/null || true"), "hello from db")
	})
	if host, port := mariposa.SplitAddress(o.Addresses[0]); port != "5432" || !strings.Contains(run(t, d.Driver, web.ID, "nc -w 2", host, "5432 < /dev/null || true"), "hello") {
		t.Errorf("its address %v does not lead to it", o.Addresses)
	}
	if out := run(t, d.Driver, stranger.ID, "nc -w 1 db 5432 < /dev/null 2>&1 || true"); strings.Contains(out, "hello") {
		t.Errorf("a container of no network reaches it: %q", out)
	}
	if err := d.Driver.(driver.Provider).Withdraw(t.Context(), back); err == nil {
		t.Error("a network in use was removed")
	}
	for _, id := range []string{db.ID, web.ID} {
		if err := d.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if err := d.Driver.(driver.Provider).Withdraw(t.Context(), back); err != nil {
		t.Error(err)
	}
}

// networks returns the networks of projects that a node has.
func (o *opened) networks() (names []string) {
	o.t.Helper()
	list, err := engine.API.NetworkList(o.t.Context(), client.NetworkListOptions{Filters: make(client.Filters).Add("label", "mariposa.node="+o.scope)})
	if err != nil {
		o.t.Fatal(err)
	}
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}

// Containers without networks are in one of their project. It comes with the first and goes
// with the last, also if that does not run any more.
func TestProjectsDoNotReachEachOther(t *testing.T) {
	t.Parallel()
	d := open(t)
	of := func(i driver.Instance, project string) driver.Instance {
		i.Origin = &mariposa.Provenance{Project: project}
		return i
	}
	shop, blog := drivertest.NewID(), drivertest.NewID()
	db := of(instance(drivertest.NewID(), "nc", "-ll", "-p", "5432", "-e", "echo", "hello from db"), shop)
	db.Service, db.Workload.Ports = "db", []mariposa.Port{{Target: 5432}}
	web, stranger := of(instance(drivertest.NewID()), shop), of(instance(drivertest.NewID()), blog)
	host, _ := mariposa.SplitAddress(d.start(db).Addresses[0])
	d.start(web)
	d.start(stranger)
	await(t, "web reaches db by its name", func() bool {
		return strings.Contains(run(t, d.Driver, web.ID, "nc -w 2 db 5432 < /dev/null || true"), "hello from db")
	})
	if out := run(t, d.Driver, stranger.ID, "nc -w 1 "+host+" 5432 < /dev/null 2>&1 || true"); strings.Contains(out, "hello") {
		t.Errorf("a container of another project reaches it: %q", out)
	}
	if all := d.networks(); len(all) != 2 {
		t.Errorf("networks %v", all)
	}
	if all, err := d.Driver.(driver.Provider).Provided(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("they are shown as %v, %v", all, err)
	}
	for _, id := range []string{db.ID, stranger.ID} {
		if err := d.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Stop(t.Context(), web.ID, 0); err != nil {
		t.Fatal(err)
	}
	if all := d.networks(); len(all) != 1 || !strings.Contains(all[0], shop) {
		t.Fatalf("networks %v", all)
	}
	if _, err := engine.API.NetworkRemove(t.Context(), d.networks()[0], client.NetworkRemoveOptions{}); (err == nil) == engine.IsPodman() { // Podman refuses
		t.Fatal(err)
	}
	second := of(instance(drivertest.NewID()), shop)
	d.start(second) // someone has removed its network
	d.start(web)    // likewise
	for _, id := range []string{second.ID, web.ID} {
		if err := d.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if left := d.networks(); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// Many containers of a project begin and end at the same time: none is without its network.
func TestTheNetworkOfAProjectIsNotRemovedUnderAStart(t *testing.T) {
	t.Parallel()
	d := open(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 2 {
				i := instance(drivertest.NewID())
				if _, err := d.Start(t.Context(), i); err != nil {
					t.Error(err)
				}
				if err := d.Remove(t.Context(), i.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left := d.networks(); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// An engine that is killed takes nothing with it if it keeps its containers, also if it is killed
// during operations; one that hangs is noticed, and holds up no one for long.
func TestAnEngineThatIsKilledOrHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, err := enginetest.Start(dir, "--live-restore")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	d := openOn(t, e.Host(), t.TempDir(), "node")
	var all []driver.Instance
	for range 3 {
		all = append(all, instance(drivertest.NewID()))
	}
	var before []driver.Observed
	for _, i := range all {
		before = append(before, d.start(i))
	}
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.List(t.Context()); !errors.Is(err, driver.ErrEngineAway) { // whether the loss is noticed or not
		t.Errorf("List: %v", err)
	}
	await(t, "the loss is reported", func() bool { return d.saw(driver.EngineLost) })
	d.cannotStart(instance(drivertest.NewID()), "cannot be reached")
	if why := d.Driver.(driver.Conditional).Unavailable(); !strings.Contains(why, "cannot be reached") {
		t.Errorf("it says %q", why)
	}
	if err := e.Launch(); err != nil {
		t.Fatal(err)
	}
	await(t, "the return is reported", func() bool { return d.saw(driver.EngineBack) })
	list, err := d.List(t.Context())
	if err != nil || len(list) != len(all) {
		t.Fatalf("List: %v, %v", list, err)
	}
	for n, i := range all {
		if o := d.start(i); o.PhysicalID != before[n].PhysicalID || !o.Started.Equal(before[n].Started) {
			t.Errorf("it is %+v, was %+v", o, before[n])
		}
	}

	d.mu.Lock()
	d.is = nil
	d.mu.Unlock()
	if err := e.Freeze(); err != nil {
		t.Fatal(err)
	}
	await(t, "that it hangs is reported", func() bool { return d.saw(driver.EngineLost) })
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	_, err = d.Stop(ctx, all[0].ID, 0)
	cancel()
	if err == nil || time.Since(begun) > 15*time.Second {
		t.Errorf("Stop: %v after %v", err, time.Since(begun))
	}
	if _, err := d.List(t.Context()); !errors.Is(err, driver.ErrEngineAway) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("List: %v", err)
	}
	if err := e.Thaw(); err != nil {
		t.Fatal(err)
	}
	await(t, "the return is reported", func() bool { return d.saw(driver.EngineBack) })
	if o, err := d.Stop(t.Context(), all[0].ID, 0); err != nil || o.Running {
		t.Errorf("Stop: %+v, %v", o, err)
	}
	testAnEngineKilledDuringOperations(t, e)
}

// Fifty at once: every start returns what runs, every end is reported once.
func TestFiftyContainersAtOnce(t *testing.T) {
	t.Parallel()
	d := open(t)
	const n = 50
	var work sync.WaitGroup
	errs := make(chan error, n)
	slots := make(chan struct{}, 16)
	for range n {
		work.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			i := instance(drivertest.NewID())
			if o, err := d.Start(t.Context(), i); err != nil || !o.Running {
				errs <- fmt.Errorf("start: %+v, %w", o, err)
			}
		})
	}
	work.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	list, err := d.List(t.Context())
	if err != nil || len(list) != n {
		t.Fatalf("%d, %v", len(list), err)
	}
	for _, o := range list {
		if _, err := engine.API.ContainerKill(t.Context(), o.PhysicalID, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range list {
		if o := d.end(o.ID); o.ExitCode == nil || *o.ExitCode != 137 || !strings.HasPrefix(o.Reason, "killed by signal 9") {
			t.Errorf("%+v", o)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.is) != n {
		t.Errorf("%d ends were reported", len(d.is))
	}
}

// A command can be closed before it has a process, or before that is the command's own.
func TestACommandThatIsClosedAtOnceEnds(t *testing.T) {
	t.Parallel()
	d := open(t)
	i := instance(drivertest.NewID())
	d.start(i)
	for range 8 {
		for _, command := range [][]string{{"yes"}, {"sleep", "1000"}} {
			s, err := d.Driver.(driver.Execer).Exec(t.Context(), i, driver.ExecOptions{Command: command})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				_, _ = s.Wait() // that it ends is what matters
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(drivertest.Limit):
				t.Fatalf("%v does not end", command)
			}
		}
	}
}

// A reader that does not read, of a log or of a command, holds up neither the end of the driver
// nor that of the command. A driver without containers leaves no directory for their files.
func TestAReaderThatDoesNotReadHoldsUpNoOne(t *testing.T) {
	t.Parallel()
	d := open(t)
	i := instance(drivertest.NewID(), "sh", "-c", "while :; do echo a line that nobody reads; done")
	files := filepath.Dir(filepath.Dir(inspect(t, d.start(i).PhysicalID).Mounts[0].Source)) // of all containers
	if _, err := os.Stat(filepath.Join(files, i.ID)); err != nil {
		t.Fatal(err)
	}
	r, err := d.Logs(t.Context(), i.ID, driver.LogOptions{Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	s, err := d.Driver.(driver.Execer).Exec(t.Context(), i, driver.ExecOptions{Command: []string{"yes"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if code, err := s.Wait(); code != 137 || err != nil {
		t.Errorf("the command ended with %d, %v", code, err)
	}
	if err := d.Remove(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		_ = d.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(drivertest.Limit):
		t.Fatal("the driver does not end")
	}
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("its log ended with %v", err)
	}
	if _, err := os.Stat(files); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left, %v", files, err)
	}
}

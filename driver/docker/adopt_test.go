package docker_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/docker/enginetest"
	"mariposa/driver/drivertest"
)

// byHand runs a container as people do, without Mariposa.
func byHand(t *testing.T, change func(*client.ContainerCreateOptions), command ...string) (id string) {
	t.Helper()
	o := client.ContainerCreateOptions{
		Name:       "by-hand-" + strings.ToLower(drivertest.NewID()[2:10]),
		Config:     &container.Config{Image: enginetest.Image, Cmd: command},
		HostConfig: &container.HostConfig{},
	}
	if change != nil {
		change(&o)
	}
	made, err := engine.API.ContainerCreate(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = engine.API.ContainerRemove(context.WithoutCancel(t.Context()), made.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	})
	if _, err := engine.API.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func adopted(container string) driver.Instance {
	i := instance(drivertest.NewID())
	i.Service, i.Adopts, i.Origin = "", container, &mariposa.Provenance{Project: "p1"}
	return i
}

func (o *opened) adopt(i driver.Instance) driver.Observed {
	o.t.Helper()
	is, err := o.Driver.(driver.Adopter).Adopt(o.t.Context(), i)
	if err != nil {
		o.t.Fatalf("Adopt: %v", err)
	}
	return is
}

// foreign returns a container in the list of foreign ones; nil if it is not there.
func (o *opened) foreign(id string) *mariposa.ForeignContainer {
	o.t.Helper()
	all, err := o.Driver.(driver.Adopter).ForeignContainers(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	n := slices.IndexFunc(all, func(c mariposa.ForeignContainer) bool { return c.ID == id })
	if n < 0 {
		return nil
	}
	return &all[n]
}

func (o *opened) listed(id string) *driver.Observed {
	o.t.Helper()
	all, err := o.List(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	n := slices.IndexFunc(all, func(o driver.Observed) bool { return o.ID == id })
	if n < 0 {
		return nil
	}
	return &all[n]
}

func (o *opened) log(id string) string {
	o.t.Helper()
	r, err := o.Logs(o.t.Context(), id, driver.LogOptions{Tail: -1})
	if err != nil {
		o.t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		o.t.Fatal(err)
	}
	return string(b)
}

// A container that someone else created is listed, and adopted without being touched: after that
// it is an instance like any other, also for the next driver.
func TestAForeignContainerIsAdopted(t *testing.T) {
	t.Parallel()
	dir, scope := t.TempDir(), drivertest.NewID()
	d := openOn(t, engine.Host(), dir, scope)
	id := byHand(t, func(o *client.ContainerCreateOptions) {
		o.HostConfig.Memory, o.HostConfig.NanoCPUs = 64<<20, 500_000_000
		o.Config.Env = []string{"MODE=mine"}
	}, "sh", "-c", "echo hello; exec sleep 100000")
	if f := d.foreign(id); f == nil || !f.Running || strings.TrimPrefix(f.Image, "docker.io/") != enginetest.Image || !strings.HasPrefix(f.Name, "by-hand-") || len(f.Addresses) != 1 || f.Created.IsZero() {
		t.Fatalf("it is listed as %+v", f)
	}
	one, err := d.Driver.(driver.Adopter).ForeignContainer(t.Context(), id[:12])
	if err != nil || one.ID != id || one.Memory != 64<<20 || one.MilliCPU != 500 {
		t.Fatalf("it is %+v, %v", one, err)
	}
	if d.listed(id) != nil {
		t.Fatal("it is an instance before it is adopted")
	}
	before := inspect(t, id)

	i := adopted(id)
	is := d.adopt(i)
	if !is.Running || is.PhysicalID != id || is.ID != i.ID || is.Labels != i.Labels || is.Name != i.Name || is.Project != "shop" || is.Origin == nil || is.Origin.Project != "p1" {
		t.Fatalf("it was adopted as %+v", is)
	}
	if again := d.adopt(i); again.PhysicalID != id {
		t.Errorf("adopted again, it is %+v", again)
	}
	if d.foreign(id) != nil {
		t.Error("it is still foreign")
	}
	if _, err := d.Driver.(driver.Adopter).ForeignContainer(t.Context(), id); mariposa.CodeOf(err) != mariposa.Conflict {
		t.Errorf("it can be adopted twice: %v", err)
	}
	if _, err := d.Driver.(driver.Adopter).Adopt(t.Context(), adopted(id)); err == nil || !strings.Contains(err.Error(), "already adopted as instance "+i.ID) {
		t.Errorf("another instance adopts it: %v", err)
	}

	// A start and an update leave it as it is.
	if is := d.start(i); is.PhysicalID != id {
		t.Errorf("started, it is %+v", is)
	}
	i.Workload.Memory = 32 << 20
	if is, err := d.Update(t.Context(), i); err != nil || is.PhysicalID != id {
		t.Errorf("updated, it is %+v, %v", is, err)
	}
	if now := inspect(t, id); now.State.StartedAt != before.State.StartedAt || now.Name != before.Name || now.HostConfig.Memory != 64<<20 || now.Config.Image != before.Config.Image {
		t.Errorf("it was %+v and is %+v", before, now)
	}

	await(t, "its log", func() bool { return d.log(i.ID) == "hello\n" })
	if out := run(t, d.Driver, i.ID, "echo $MODE"); out != "mine\n" {
		t.Errorf("inside it is %q", out)
	}
	if u, err := d.Usage(t.Context(), i.ID); err != nil || u.At.IsZero() {
		t.Errorf("it uses %+v, %v", u, err)
	}

	// Another driver in the same place knows it: the agent was restarted.
	next := openOn(t, engine.Host(), dir, scope)
	if is := next.listed(i.ID); is == nil || !is.Running || is.PhysicalID != id || is.Labels != i.Labels || is.Origin == nil {
		t.Fatalf("after a restart it is %+v", is)
	}
	if other := open(t); other.listed(i.ID) != nil || other.foreign(id) == nil {
		t.Error("the driver of another node has it")
	}

	stopped, err := next.Stop(t.Context(), i.ID, time.Second)
	if err != nil || stopped.Running || stopped.PhysicalID != id {
		t.Fatalf("stopped, it is %+v, %v", stopped, err)
	}
	if is := next.start(i); !is.Running || is.PhysicalID != id {
		t.Fatalf("started again, it is %+v", is)
	}
	if err := next.Remove(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.API.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}); err == nil {
		t.Error("its container is still there")
	}
	if next.listed(i.ID) != nil || openOn(t, engine.Host(), dir, scope).listed(i.ID) != nil {
		t.Error("it is still known")
	}
}

// The end of an adopted container is reported, and its removal behind our back, after which its
// record is gone.
func TestTheEndOfAnAdoptedContainerIsReported(t *testing.T) {
	t.Parallel()
	dir, scope := t.TempDir(), drivertest.NewID()
	d := openOn(t, engine.Host(), dir, scope)
	id := byHand(t, nil, "sh", "-c", "trap 'exit 7' USR1; touch /tmp/ready; while :; do sleep 0.1; done")
	i := adopted(id)
	d.adopt(i)
	run(t, d.Driver, i.ID, "while [ ! -e /tmp/ready ]; do sleep 0.1; done")
	if _, err := engine.API.ContainerKill(t.Context(), id, client.ContainerKillOptions{Signal: "USR1"}); err != nil {
		t.Fatal(err)
	}
	if is := d.end(i.ID); is.Running || is.ExitCode == nil || *is.ExitCode != 7 || is.PhysicalID != id {
		t.Errorf("it ended as %+v", is)
	}
	d.start(i)
	if _, err := engine.API.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	await(t, "it is forgotten", func() bool { return d.listed(i.ID) == nil && openOn(t, engine.Host(), dir, scope).listed(i.ID) == nil })
	d.cannotStart(i, "there is no container")
	if stopped, err := d.Stop(t.Context(), i.ID, time.Second); err != nil || stopped.Running {
		t.Errorf("it cannot be stopped: %v", err)
	}
	if err := d.Remove(t.Context(), i.ID); err != nil {
		t.Error(err)
	}
}

// A container may have been removed while no agent ran.
func TestAnAdoptedContainerThatIsGoneAtTheStartIsForgotten(t *testing.T) {
	t.Parallel()
	dir, scope := t.TempDir(), drivertest.NewID()
	d := openOn(t, engine.Host(), dir, scope)
	id := byHand(t, nil, "sleep", "100000")
	i := adopted(id)
	d.adopt(i)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.API.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	next := openOn(t, engine.Host(), dir, scope)
	if next.listed(i.ID) != nil {
		t.Error("it is listed")
	}
	if _, err := next.Driver.(driver.Adopter).Adopt(t.Context(), i); err == nil || !strings.Contains(err.Error(), "there is no container") {
		t.Errorf("it is adopted again: %v", err)
	}
}

// Two installations on one engine cannot adopt the same container.
func TestAContainerIsAdoptedOnceOnAnEngine(t *testing.T) {
	t.Parallel()
	d, other := open(t), open(t)
	id := byHand(t, nil, "sleep", "100000")
	first, second := adopted(id), adopted(id)
	d.adopt(first)
	a := other.Driver.(driver.Adopter)
	if _, err := a.Adopt(t.Context(), second); err == nil || !strings.Contains(err.Error(), "another node or installation has already adopted the container") {
		t.Errorf("the other adopts it: %v", err)
	}
	if other.listed(second.ID) != nil {
		t.Error("the other lists it")
	}
	if err := d.Remove(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	left, err := engine.API.VolumeList(t.Context(), client.VolumeListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range left.Items {
		if strings.HasSuffix(v.Name, id) {
			t.Errorf("the volume %s is left", v.Name)
		}
	}
}

// A node that has lost its record of an adopted container finds it again.
func TestTheRecordOfAnAdoptedContainerIsLost(t *testing.T) {
	t.Parallel()
	dir, scope := t.TempDir(), drivertest.NewID()
	d := openOn(t, engine.Host(), dir, scope)
	id := byHand(t, nil, "sleep", "100000")
	i := adopted(id)
	was := d.adopt(i)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(dir, "adopted", "*"))
	if err != nil || len(records) != 1 {
		t.Fatalf("the records are %v, %v", records, err)
	}
	if err := os.Remove(records[0]); err != nil {
		t.Fatal(err)
	}
	next := openOn(t, engine.Host(), dir, scope)
	if is := next.listed(i.ID); is == nil || !is.Running || is.PhysicalID != id || is.Labels != i.Labels || is.Name != i.Name || !is.Started.Equal(was.Started) {
		t.Errorf("it is listed as %+v", is)
	}
	// Nor does it lose a claim that someone has removed.
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.API.VolumeRemove(t.Context(), "mariposa-adopted-"+id, client.VolumeRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	openOn(t, engine.Host(), dir, scope)
	if _, err := open(t).Driver.(driver.Adopter).Adopt(t.Context(), adopted(id)); err == nil {
		t.Error("another installation has adopted it")
	}
}

// What cannot be adopted says why.
func TestContainersThatCannotBeAdopted(t *testing.T) {
	t.Parallel()
	d, other := open(t), open(t)
	ours := other.start(instance(drivertest.NewID()))
	a := d.Driver.(driver.Adopter)
	for ref, code := range map[string]mariposa.Code{
		ours.PhysicalID: mariposa.Conflict, "no-such-container": mariposa.ResourceNotFound, "": mariposa.InvalidArgument, "../images": mariposa.InvalidArgument, "a?b": mariposa.InvalidArgument,
	} {
		if _, err := a.ForeignContainer(t.Context(), ref); mariposa.CodeOf(err) != code {
			t.Errorf("%q: %v", ref, err)
		}
	}
	if d.foreign(ours.PhysicalID) != nil {
		t.Error("a container of another node is listed")
	}
	if _, err := a.Adopt(t.Context(), adopted(ours.PhysicalID)); err == nil || !strings.Contains(err.Error(), "was created by Mariposa") {
		t.Errorf("it is adopted: %v", err)
	}
	id := byHand(t, nil, "sleep", "100000")
	if _, err := a.Adopt(t.Context(), adopted(id[:12])); err == nil {
		t.Error("a container is adopted by a part of its id")
	}
}

// The log of a container with a terminal has another format, and a container can say how long it
// takes to stop; its volumes are not removed with it.
func TestAnAdoptedContainerKeepsItsWays(t *testing.T) {
	t.Parallel()
	d := open(t)
	volume := "by-hand-" + strings.ToLower(drivertest.NewID()[2:10])
	id := byHand(t, func(o *client.ContainerCreateOptions) {
		o.Config.Image, o.Config.Tty = enginetest.Graceful, true
		patience := 60
		o.Config.StopTimeout = &patience
		o.HostConfig.Binds = []string{volume + ":/data"}
	}, "sh", "-c", "trap 'sleep 2; echo done; exit 3' TERM; echo one; echo two; while :; do sleep 0.1; done")
	t.Cleanup(func() {
		_, _ = engine.API.VolumeRemove(context.WithoutCancel(t.Context()), volume, client.VolumeRemoveOptions{Force: true})
	})
	i := adopted(id)
	d.adopt(i)
	await(t, "its log", func() bool { return d.log(i.ID) == "one\ntwo\n" })
	is, err := d.Stop(t.Context(), i.ID, time.Second)
	if err != nil || is.ExitCode == nil || *is.ExitCode != 3 {
		t.Errorf("it stopped as %+v, %v", is, err)
	}
	if err := d.Remove(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.API.VolumeInspect(t.Context(), volume, client.VolumeInspectOptions{}); err != nil {
		t.Errorf("its volume is gone: %v", err)
	}
}

// A container that is removed when it ends has nothing left to be started.
func TestAnAdoptedContainerThatRemovesItself(t *testing.T) {
	t.Parallel()
	d := open(t)
	id := byHand(t, func(o *client.ContainerCreateOptions) { o.HostConfig.AutoRemove = true }, "sleep", "100000")
	i := adopted(id)
	d.adopt(i)
	if is, err := d.Stop(t.Context(), i.ID, time.Second); err != nil || is.Running {
		t.Fatalf("it stopped as %+v, %v", is, err)
	}
	await(t, "it is gone", func() bool { return d.listed(i.ID) == nil })
	d.cannotStart(i, "there is no container")
}

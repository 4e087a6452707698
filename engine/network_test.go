package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// joining returns a manifest with a service on a network.
func joining(scale int, networks string, more ...string) string {
	return web(scale, append([]string{"networks: [backend]"}, more...)...) + "networks: {backend: {" + networks + "}}\n"
}

// networks returns those of the store.
func (r *rig) networks() (all []string) {
	r.t.Helper()
	for _, rec := range r.list(mariposa.KindNetwork) {
		spec := rec.Spec.(*mariposa.NetworkSpec)
		all = append(all, fmt.Sprintf("%s of %q, %d users", spec.Name, spec.Project+spec.Organization, len(spec.Users)))
	}
	return all
}

// parts counts the parts of networks on nodes, by goal.
func (r *rig) parts() map[mariposa.Goal]int {
	r.t.Helper()
	all := map[mariposa.Goal]int{}
	for _, rec := range r.list(mariposa.KindAttachment) {
		all[rec.Spec.(*mariposa.AttachmentSpec).Goal]++
	}
	return all
}

// wantJoined checks that every instance is on an existing network, attached on the
// instance's node.
func (r *rig) wantJoined(n int) {
	r.t.Helper()
	for _, rec := range r.wantInstances(n) {
		spec := rec.Spec.(*mariposa.InstanceSpec)
		if len(spec.Networks) != 1 {
			r.t.Fatalf("%s is on %+v", spec.Name, spec.Networks)
		}
		j := spec.Networks[0]
		network, err := r.store.Get(r.t.Context(), mariposa.KindNetwork, j.Network)
		if err != nil || !slices.Contains(network.Spec.(*mariposa.NetworkSpec).Projects(), spec.Project) {
			r.t.Errorf("the network of %s is %+v, %v", spec.Name, network.Spec, err)
		}
		part, err := r.store.Get(r.t.Context(), mariposa.KindAttachment, j.Attachment)
		if err != nil {
			r.t.Fatalf("%s has no part of its network: %v", spec.Name, err)
		}
		if is := part.Spec.(*mariposa.AttachmentSpec); is.Node != spec.Node || is.Network != j.Network || is.Goal != mariposa.GoalKept || is.Compute != spec.Compute {
			r.t.Errorf("%s on %s has the part %+v", spec.Name, spec.Node, is)
		}
	}
}

// submit brings another manifest of a project into force.
func (r *rig) resubmit(project string, number int, body string) string {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindProject, project)
	if err != nil {
		r.t.Fatal(err)
	}
	spec := *rec.Spec.(*mariposa.ProjectSpec)
	spec.Number, spec.Version = number, fmt.Sprint("v", number)
	r.write(store.Write{Kind: mariposa.KindProject, ID: project, Spec: &spec},
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(project, number), Project: project, Spec: &mariposa.VersionSpec{Project: project, Version: spec.Version, Number: number, Manifest: []byte(body)}})
	return r.ask(project, mariposa.TaskReprovision, mariposa.Patch{Number: number})
}

// deletes requests the deletion of a project.
func (r *rig) deletes(project string) {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindProject, project)
	if err != nil {
		r.t.Fatal(err)
	}
	spec := *rec.Spec.(*mariposa.ProjectSpec)
	spec.Deleting = true
	r.write(store.Write{Kind: mariposa.KindProject, ID: project, Spec: &spec})
	r.ask(project, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalDeleted})
	r.rest()
}

// rest waits until everything has converged, however often planners have to retry.
func (r *rig) rest() {
	r.t.Helper()
	r.settle()
	for range 5 {
		r.pass(time.Minute)
	}
}

func TestANetworkComesWithTheFirstInstanceOnEachNode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, task := r.create("shop", joining(6, ""))
	r.rest()
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantJoined(6)
	if got := r.networks(); !slices.Equal(got, []string{fmt.Sprintf("backend of %q, 0 users", p)}) || r.parts()[mariposa.GoalKept] != 3 {
		t.Errorf("there are %v with %v", got, r.parts())
	}
	if made, parts := r.events("network.created"), r.events("network.attaching"); made != 1 || parts != 3 {
		t.Errorf("got %d networks and %d parts", made, parts)
	}
	r.node("n4", mariposa.Resources{}) // emptier than all others
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 8}}, "web")
	r.rest()
	r.wantJoined(8)
	if r.parts()[mariposa.GoalKept] != 4 || r.events("network.created") != 1 {
		t.Errorf("on one more node there are %v", r.parts())
	}
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 0}}, "web")
	r.rest()
	if len(r.networks()) != 1 {
		t.Error("it is still in the manifest, and gone")
	}
}

func TestANetworkGoesWithTheLastInstanceThatUsesIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", joining(3, ""))
	r.rest()
	node := r.wantInstances(3)[0].Spec.(*mariposa.InstanceSpec).Node
	r.leave(node) // the instance there cannot be removed
	r.resubmit(p, 2, web(3))
	r.rest()
	if len(r.networks()) != 1 || r.parts()[mariposa.GoalGone] != 0 {
		t.Fatalf("an instance still uses it, and there are %v with %v", r.networks(), r.parts())
	}
	r.comeBack(node)
	r.rest()
	if len(r.networks()) != 0 || r.parts()[mariposa.GoalKept] != 0 || r.parts()[mariposa.GoalGone] != 3 {
		t.Errorf("nothing uses it, and there are %v with %v", r.networks(), r.parts())
	}
	if r.events("network.deleted") != 1 || r.events("network.detaching") != 3 {
		t.Error("it was not written once")
	}
	r.resubmit(p, 3, joining(3, "")) // its parts are not gone yet
	r.rest()
	r.wantJoined(3)
	if len(r.networks()) != 1 || r.parts()[mariposa.GoalKept]+r.parts()[mariposa.GoalGone] != 3 {
		t.Errorf("used again, there are %v with %v", r.networks(), r.parts())
	}
}

func TestASharedNetworkIsOneAndGoesWithItsLastProject(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	a, _ := r.create("shop", joining(2, "shared: true"))
	b, _ := r.create("blog", joining(2, "shared: true"))
	own, _ := r.create("own", joining(1, ""))
	r.rest()
	r.wantJoined(5)
	shared := `backend of "default", 2 users`
	if got := r.networks(); len(got) != 2 || !slices.Contains(got, shared) {
		t.Fatalf("there are %v", got)
	}
	r.deletes(a)
	if got := r.networks(); len(got) != 2 || !slices.Contains(got, `backend of "default", 1 users`) || r.parts()[mariposa.GoalGone] != 0 {
		t.Errorf("with one project less there are %v with %v", got, r.parts())
	}
	r.wantJoined(3)
	r.resubmit(b, 2, web(2))
	r.rest()
	if got := r.networks(); len(got) != 1 || strings.Contains(got[0], "default") || r.parts()[mariposa.GoalGone] == 0 {
		t.Errorf("with none left there are %v with %v", got, r.parts())
	}
	r.deletes(own)
	if len(r.networks()) != 0 || r.parts()[mariposa.GoalKept] != 0 {
		t.Errorf("left are %v with %v", r.networks(), r.parts())
	}
}

// Starting or ending the sharing of a network means joining another one.
func TestWhoSharesANetworkIsOnAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", joining(2, ""))
	r.rest()
	before := r.wantInstances(2)[0].Spec.(*mariposa.InstanceSpec).Networks[0].Network
	r.resubmit(p, 2, joining(2, "shared: true"))
	r.rest()
	r.wantJoined(2)
	if after := r.wantInstances(2)[0].Spec.(*mariposa.InstanceSpec).Networks[0].Network; after == before {
		t.Error("it is on the same network")
	}
	if got := r.networks(); !slices.Equal(got, []string{`backend of "default", 1 users`}) {
		t.Errorf("there are %v", got)
	}
}

// Two replicas plan two projects that begin to share a network at the same moment: one of
// them retries.
func TestTwoPlannersMakeASharedNetworkOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	r.replica("r2")
	var tasks []string
	for n := range 8 {
		_, task := r.create(fmt.Sprint("p", n), joining(2, "shared: true"))
		tasks = append(tasks, task)
	}
	r.rest()
	for _, task := range tasks {
		r.wantTask(task, mariposa.TaskCompleted)
	}
	r.wantJoined(16)
	if got := r.networks(); !slices.Equal(got, []string{`backend of "default", 8 users`}) || r.events("network.created") != 1 || r.parts()[mariposa.GoalKept] != 3 {
		t.Errorf("there are %v with %v", got, r.parts())
	}
}

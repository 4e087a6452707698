package fleet_test

import (
	"testing"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// A node learns the restart policy in force of instances that started before it changed, and
// learns again that their own applies. It is told only what changed, and in its snapshot.
func TestANodeLearnsAChangedRestartPolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	body := func(policy string) string {
		return "services:\n  web: {compute_type: dummy, restart: " + policy + "}\n  own: {compute_type: dummy}\n"
	}
	r.project("p", body("no"))
	for number, policy := range map[int]string{2: "on-failure:2", 3: "on-failure:2", 4: "'no'"} {
		r.commit(store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", number), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: number, Manifest: []byte(body(policy))}})
	}
	inForce := func(number int) {
		t.Helper()
		st := &mariposa.ProjectStatus{Number: number, Services: map[string]*mariposa.ServiceStatus{}}
		for _, name := range []string{"web", "own"} {
			st.Services[name] = &mariposa.ServiceStatus{Number: number, Scale: 1}
		}
		r.commit(store.Write{Kind: mariposa.KindProject, ID: "p", Project: "p", Status: st})
	}
	inForce(1)
	p := r.connect("n1")
	r.commit(put("a", instance("a", "n1", "web")), put("b", instance("b", "n1", "own")))
	told := func(p *peer, from int) []wire.Assignment { return p.assigned()[from:] }
	if all := told(p, 0); len(all) != 2 || all[0].Restart != nil || all[1].Restart != nil {
		t.Fatalf("first it was told %+v", all)
	}
	inForce(2)
	if all := told(p, 2); len(all) != 1 || all[0].ID != "a" || all[0].Restart == nil || *all[0].Restart != (mariposa.Restart{Policy: mariposa.RestartOnFailure, Max: 2}) {
		t.Fatalf("after the change it was told %+v", all)
	}
	inForce(3)
	if all := told(p, 3); len(all) != 0 {
		t.Errorf("a version with the same policy: it was told %+v", all)
	}
	p = r.connect("n1")
	for _, it := range told(p, 0) {
		if has := it.Restart != nil; has != (it.ID == "a") {
			t.Errorf("its snapshot has %+v", it)
		}
	}
	before := len(p.assigned())
	inForce(4)
	if all := told(p, before); len(all) != 1 || all[0].ID != "a" || all[0].Restart != nil {
		t.Errorf("after the policy is back it was told %+v", all)
	}
}

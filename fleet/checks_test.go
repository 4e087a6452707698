package fleet_test

import (
	"testing"

	"mariposa"
	"mariposa/manifest"
	"mariposa/store"
)

// Changed checks apply to running instances, but not to those that a rollout has to replace:
// they may not have what the new version is asked for.
func TestAnOutdatedInstanceKeepsTheChecksOfItsDefinition(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	body := func(mode, path string) string {
		return "services:\n  web: {compute_type: dummy, environment: {MODE: " + mode + "}, healthchecks: [{type: http, port: 80, path: " + path + "}]}\n"
	}
	bodies := []string{body("a", "/old"), body("a", "/fixed"), body("b", "/new")}
	var defs []*mariposa.Service
	for n, text := range bodies {
		m, err := manifest.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, m.Services[0])
		if n == 0 {
			r.project("p", text)
			continue
		}
		r.commit(store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", n+1), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: n + 1, Manifest: []byte(text)}})
	}
	inForce := func(number int, rollout *mariposa.Rollout) {
		t.Helper()
		r.commit(store.Write{Kind: mariposa.KindProject, ID: "p", Project: "p", Status: &mariposa.ProjectStatus{
			Number: number, Services: map[string]*mariposa.ServiceStatus{"web": {Number: number, Scale: 1, Rollout: rollout}},
		}})
	}
	inForce(1, nil)
	p := r.connect("n1")
	spec := instance("a", "n1", "web")
	spec.Digest = defs[0].Digest
	r.commit(put("a", spec))
	want := func(what string, def *mariposa.Service) {
		t.Helper()
		if all := p.assigned(); len(all) == 0 || all[len(all)-1].Checks != def.ChecksDigest {
			t.Errorf("%s: it was told %+v, want the checks %s", what, all, def.ChecksDigest)
		}
	}
	want("at first", defs[0])
	inForce(2, nil)
	want("other checks, nothing to replace", defs[1])
	inForce(3, &mariposa.Rollout{Number: 3, From: 2})
	want("a rollout", defs[1])
	p = r.connect("n1")
	want("a rollout, after a restart of the agent", defs[1])
	inForce(2, nil)
	want("back", defs[1])
}

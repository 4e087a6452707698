package api_test

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

// count increments a key of shop.
func (h *testServer) count(key string) contract.Changed {
	h.t.Helper()
	return want[contract.Changed](h.call("POST", "/v1/projects/shop/metadata/"+key+"/incr", nil), 200)
}

// submit submits a new manifest for shop.
func (h *testServer) submit(text string) contract.Changed {
	h.t.Helper()
	return want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", text), 200)
}

// numbers returns the version numbers of shop, newest first.
func (h *testServer) numbers() string {
	h.t.Helper()
	var all []string
	for _, v := range want[contract.Versions](h.call("GET", "/v1/projects/shop/versions", nil), 200).Versions {
		all = append(all, fmt.Sprint(v.Number))
	}
	return strings.Join(all, " ")
}

// generations checks that the store contains the values of the kept versions, and no
// others.
func (h *testServer) generations(project string) {
	h.t.Helper()
	needed := map[string]bool{}
	for _, r := range must(h.store.List(h.ctx, store.Query{Kind: mariposa.KindVersion, Project: project}))(h.t) {
		if n := r.Spec.(*mariposa.VersionSpec).Metadata; n > 0 {
			needed[mariposa.MetadataID(project, n)] = true
		}
	}
	for _, r := range must(h.store.List(h.ctx, store.Query{Kind: mariposa.KindMetadata, Project: project}))(h.t) {
		if !needed[r.ID] {
			h.t.Errorf("nothing needs %s any more", r.ID)
		}
		delete(needed, r.ID)
	}
	if len(needed) > 0 {
		h.t.Errorf("gone are %v", needed)
	}
}

func TestCountingOneKeyForAMinuteIsOneVersion(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	h := newTestServer(t, withClock(now))
	c := h.create("shop", hello)
	first := h.count("a")
	hashes := map[string]bool{first.Version: true}
	for i := range 5 {
		now.turn(10 * time.Second)
		next := h.count("a")
		if next.Number != first.Number || hashes[next.Version] || next.Value != fmt.Sprint(i+2) || next.CAS == first.CAS {
			t.Errorf("counted again: %+v after %+v", next, first)
		}
		hashes[next.Version] = true
	}
	down := want[contract.Changed](h.call("POST", "/v1/projects/shop/metadata/a/decr", nil), 200)
	if down.Number != first.Number || down.Value != "5" {
		t.Errorf("counted down: %+v", down)
	}
	now.turn(10 * time.Second) // a minute after the first
	if later := h.count("a"); later.Number != first.Number+1 || later.Value != "6" {
		t.Errorf("a minute later: %+v", later)
	}
	if other := h.count("b"); other.Number != first.Number+2 {
		t.Errorf("another key: %+v", other)
	}
	if back := h.count("a"); back.Number != first.Number+3 {
		t.Errorf("the first key again: %+v", back)
	}
	want[contract.Changed](h.call("POST", "/v1/projects/shop/tags", contract.NewTag{Tag: "kept", Version: "latest"}), 201)
	if tagged := h.count("a"); tagged.Number != first.Number+4 {
		t.Errorf("after a version that has a tag: %+v", tagged)
	}
	want[contract.Changed](h.set("a", "100"), 200)
	if set := h.count("a"); set.Number != first.Number+6 || set.Value != "101" {
		t.Errorf("after it was set: %+v", set)
	}
	if got := h.numbers(); got != "8 7 6 5 4 3 2 1" {
		t.Errorf("versions %s", got)
	}
	h.generations(c.ID)
}

// A caller who passes a version number may not know of later increments.
func TestCountingIsNotOverwrittenUnseen(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	seen := h.count("a")
	doc := h.call("GET", "/v1/projects/shop/metadata", nil)
	h.count("a")
	const path = "/v1/projects/shop/metadata"
	for _, previous := range []string{fmt.Sprint(seen.Number), seen.Version, seen.Version[:10]} {
		h.call("PUT", path+"?previous="+previous, string(doc.body)).wantError(409, mariposa.Conflict)
		h.call("PUT", "/v1/projects/shop?previous="+previous, map[string]any{"metadata": string(doc.body)}).wantError(409, mariposa.Conflict)
	}
	if k := h.key("a"); k.Value != "2" {
		t.Errorf("counted to %s", k.Value)
	}
	newest := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200)
	want[contract.Changed](h.call("PUT", path+"?previous="+newest.Version, "a: 7\n"), 200)
	want[contract.Changed](h.call("PUT", path+"?previous=3", "a: 8\n"), 200) // that one was not counted
	h.call("PUT", path+"?previous=3", "a: 9\n").wantError(409, mariposa.Conflict, "not 3")
	want[contract.Changed](h.call("PUT", path+"?previous=3&force=true", "a: 9\n"), 200)
	want[contract.Changed](h.call("PUT", path, "a: 10\n"), 200) // nobody said anything
}

// A limited number of versions is kept, besides those with a tag, in force or with
// instances. Deleted versions leave nothing behind.
func TestOldVersionsAreForgotten(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, keepVersions(3))
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c)) // version 1 is in force
	doc := func(n int) string { return hello + fmt.Sprintf("# version %d\n", n) }
	tag := func(name, version string) {
		want[contract.Changed](h.call("POST", "/v1/projects/shop/tags", contract.NewTag{Tag: name, Version: version}), 201)
	}
	h.submit(doc(2))
	tag("two", "2")
	want[contract.Changed](h.set("mode", "calm"), 200) // 3
	h.submit(doc(4))                                   // with the values of 3
	h.instance("i1", c.ID, "web", "n1", mariposa.StateRunning, func(s *mariposa.InstanceSpec) { s.Number = 4 })
	want[contract.Changed](h.set("mode", "wild"), 200) // 5
	h.submit(doc(6))
	want[contract.Changed](h.set("mode", "mild"), 200) // 7
	h.submit(doc(8))
	if got := h.numbers(); got != "8 7 6 4 2 1" { // each change forgot what was too much then
		t.Errorf("kept are %s", got)
	}
	h.generations(c.ID)
	for _, gone := range []string{"3", "5"} {
		h.call("GET", "/v1/projects/shop/versions/"+gone, nil).wantError(404, mariposa.ResourceNotFound)
	}
	want[contract.Version](h.call("GET", "/v1/projects/shop/versions/two", nil), 200)
	if d := want[contract.Diff](h.call("GET", "/v1/projects/shop/diff?from=4&to=7", nil), 200); len(d.Metadata) != 1 || d.Metadata[0].Before != "calm" || d.Metadata[0].After != "mild" {
		t.Errorf("of a version whose values were those of a forgotten one: %+v", d.Metadata)
	}
	// Several at once: 6 and 7 share their values with other versions that are deleted too.
	for i, name := range []string{"a", "b", "c"} {
		tag(name, fmt.Sprint(6+i))
	}
	for n := 9; n < 13; n++ {
		h.submit(doc(n))
	}
	want[contract.Changed](h.set("mode", "bold"), 200) // 13
	if got := h.numbers(); got != "13 12 11 8 7 6 4 2 1" {
		t.Errorf("with their tags: %s", got)
	}
	for _, name := range []string{"two", "a", "b", "c"} {
		want[contract.Changed](h.call("DELETE", "/v1/projects/shop/tags/"+name, nil), 200)
	}
	h.submit(doc(14))
	if got := h.numbers(); got != "14 13 12 4 1" {
		t.Errorf("without their tags: %s", got)
	}
	h.generations(c.ID)
	kinds := map[string]int{}
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?since=0&limit=1000&project=shop", nil), 200).Events {
		kinds[e.Kind]++
	}
	if kinds["version.created"] != 14 || kinds["version.forgotten"] != 9 {
		t.Errorf("the events are %v", kinds)
	}
}

func TestVersionsHaveTags(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	const path = "/v1/projects/shop/tags"
	tags := func() string {
		var all []string
		for _, tag := range want[contract.Tags](h.call("GET", path, nil), 200).Tags {
			all = append(all, fmt.Sprintf("%s=%d %v", tag.Tag, tag.Number, tag.Automatic))
		}
		return strings.Join(all, ", ")
	}
	if got := tags(); got != "latest=1 true" {
		t.Errorf("at first: %s", got)
	}
	st := settled(c)
	st.Completed = 1
	h.plan(c.ID, st)
	h.submit(hello + "# two\n")
	if got := tags(); got != "completed=1 true, current=1 true, latest=2 true" {
		t.Errorf("by themselves: %s", got)
	}
	made := want[contract.Changed](h.call("POST", path, contract.NewTag{Tag: "v1.0", Version: "current"}), 201)
	if made.Number != 1 || made.Version != c.Version {
		t.Errorf("made: %+v", made)
	}
	if got := want[contract.Tag](h.call("GET", path+"/v1.0", nil), 200); got.Version != c.Version || got.Automatic {
		t.Errorf("shown: %+v", got)
	}
	// A change can be based on a tag, if it is that of the newest version.
	h.call("PUT", "/v1/projects/shop/manifest?previous=v1.0", hello+"# three\n").wantError(409, mariposa.Conflict, "not v1.0")
	h.call("PUT", "/v1/projects/shop/manifest?previous=latest", hello+"# three\n").wantError(400, mariposa.InvalidArgument, "always means the newest version")
	want[contract.Changed](h.call("POST", path, contract.NewTag{Tag: "v1.0", Version: "2"}), 201) // it moves
	if got := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?previous=v1.0", hello+"# two\n"), 200); got.Number != 2 {
		t.Errorf("based on a tag: %+v", got)
	}
	if v := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/v1.0", nil), 200); v.Number != 2 || fmt.Sprint(v.Tags) != "[latest v1.0]" {
		t.Errorf("by its tag: %+v", v)
	}
	for _, bad := range []string{"", "1", "-x", "a b", "abcdef0", strings.Repeat("t", 64), "ä", "x/", "0123456"} {
		h.call("POST", path, contract.NewTag{Tag: bad, Version: "1"}).wantError(400, mariposa.InvalidArgument, "tag")
	}
	for _, automatic := range []string{"latest", "current", "completed"} {
		h.call("POST", path, contract.NewTag{Tag: automatic, Version: "1"}).wantError(409, mariposa.Conflict, automatic)
		h.call("DELETE", path+"/"+automatic, nil).wantError(409, mariposa.Conflict, automatic)
	}
	h.call("POST", path, contract.NewTag{Tag: "x", Version: "77"}).wantError(404, mariposa.ResourceNotFound, "77")
	h.call("GET", path+"/none", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("DELETE", path+"/none", nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Changed](h.call("DELETE", path+"/v1.0", nil), 200)
	h.call("GET", "/v1/projects/shop/versions/v1.0", nil).wantError(404, mariposa.ResourceNotFound)
}

func TestTwoVersionsAreCompared(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	const one = `services: {web: {compute_type: dummy, scale: 2, environment: {A: "1"}}, old: {compute_type: dummy}}
metadata: {key: {secret: true}}
`
	first := h.create("shop", one)
	const path = "/v1/projects/shop/diff"
	h.call("GET", path, nil).wantError(404, mariposa.ResourceNotFound, "current")
	h.plan(first.ID, &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Version: first.Version, Number: 1, Status: mariposa.StatusConverged})
	h.call("PUT", "/v1/projects/shop/metadata", "mode: calm\nkey: sesame\nplain: open\n")
	h.submit(strings.Replace(strings.Replace(one, `A: "1"`, `A: "2"`, 1), "old:", "new:", 1))
	h.call("PUT", "/v1/projects/shop/metadata", "mode: wild\nkey: barley\nmore: 1\nplain: shut\n")
	want[contract.Changed](h.set("plain", "hush", "?secret=true"), 200)
	d := want[contract.Diff](h.call("GET", path, nil), 200)
	if d.From.Number != 1 || d.To.Number != 5 || d.From.Manifest != one || len(d.Services) != 3 {
		t.Errorf("from the one in force to the newest: %+v", d)
	}
	changes := map[string]string{}
	for _, s := range d.Services {
		changes[s.Service] = s.Change + fmt.Sprint(s.Fields)
	}
	if !strings.HasPrefix(changes["new"], "create") || !strings.HasPrefix(changes["old"], "delete") || !strings.HasPrefix(changes["web"], "replace") || !contains(changes["web"], "environment") {
		t.Errorf("services: %v", changes)
	}
	d = want[contract.Diff](h.call("GET", path+"?from=2&to=latest", nil), 200)
	wanted := "[{key changed true •••• ••••} {mode changed false calm wild} {more added false  1} {plain changed true •••• ••••}]"
	if got := fmt.Sprint(d.Metadata); got != wanted {
		t.Errorf("metadata: %s", got)
	}
	if d := want[contract.Diff](h.call("GET", path+"?from=4&to="+first.Version[:7], nil), 200); !contains(fmt.Sprint(d.Metadata), "{plain removed true •••• }") {
		t.Errorf("what became a secret later: %+v", d.Metadata)
	}
	if d := want[contract.Diff](h.call("GET", path+"?from=3&to=3", nil), 200); len(d.Metadata)+len(d.Services) != 0 {
		t.Errorf("the same twice: %+v", d)
	}
	h.call("GET", path+"?from=99", nil).wantError(404, mariposa.ResourceNotFound, "99")
	h.call("GET", path+"?to=nothing", nil).wantError(404, mariposa.ResourceNotFound, "nothing")
}

// The hash of a version depends on its manifest, its values and its project: it cannot
// be used to guess values.
func TestAVersionIsNamedByWhatItIs(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	plain := h.create("shop", hello)
	if sum := sha1.Sum([]byte(hello)); plain.Version != hex.EncodeToString(sum[:]) {
		t.Errorf("without values it is %s", plain.Version)
	}
	one := want[contract.Changed](h.set("pin", "1234", "?secret=true"), 200)
	two := want[contract.Changed](h.set("pin", "1235"), 200)
	three := want[contract.Changed](h.set("pin", "1234"), 200)
	if one.Version == plain.Version || two.Version == one.Version || three.Version != one.Version || three.Number != one.Number+2 {
		t.Errorf("named %s, %s, %s, %s", plain.Version, one.Version, two.Version, three.Version)
	}
	if gone := want[contract.Changed](h.call("DELETE", "/v1/projects/shop/metadata/pin", nil), 200); gone.Version != plain.Version {
		t.Errorf("without values again it is %s", gone.Version)
	}
	twin := want[contract.Changed](h.call("POST", "/v1/projects", map[string]any{"name": "twin", "manifest": hello, "metadata": map[string]string{"pin": "1234"}}), 201)
	if twin.Version == one.Version {
		t.Error("another project with the same values has a version of the same name: one could be tried out by the other")
	}
	known := []string{one.Version, two.Version, twin.Version}
	sums := func(text string) []string {
		a, b := sha1.Sum([]byte(text)), sha256.Sum256([]byte(text))
		return []string{hex.EncodeToString(a[:]), hex.EncodeToString(b[:20])}
	}
	for pin := 1200; pin < 1300; pin++ {
		text := fmt.Sprint(pin)
		for _, guess := range []string{text, "pin" + text, "pin\x00" + text, "pin: " + text + "\n", `{"pin":"` + text + `"}`, "\x00pin\x00" + text} {
			for _, sum := range append(sums(hello+guess), sums(hello+"\x00"+sums(guess)[0])...) {
				for _, name := range known {
					if sum == name {
						t.Fatalf("%s gives %d away", name, pin)
					}
				}
			}
		}
	}
	listed := h.call("GET", "/v1/projects/shop/versions", nil)
	if v := want[contract.Versions](listed, 200).Versions; len(v) != 5 || contains(string(listed.body), `"1234"`) || contains(string(listed.body), manifest.Mask) {
		t.Errorf("versions %+v", v)
	}
}

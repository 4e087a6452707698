package api_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// guarded is the manifest of a project with a secret.
const guarded = "services: {web: {compute_type: dummy, environment: {PIN: \"{{ .meta.pin }}\"}, update: {min_healthy: 0}}}\n" +
	"metadata:\n  pin: {secret: true}\n  mode: {default: calm}\n"

// withViewer adds a viewer to the users of a project.
func (h *testServer) withViewer(project string) (viewer, deployer, operator *testServer) {
	h.t.Helper()
	deployer, operator = h.newMembers(project)
	name := "viewer-of-" + project
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: name}), 201)
	want[contract.Changed](h.call("PUT", "/v1/projects/"+project+"/users/"+name, contract.MemberChange{Role: "viewer"}), 200)
	return h.as(h.mint(contract.NewToken{Name: "first", User: name})), deployer, operator
}

// about returns the path of a project by id: it is not in the users' personal
// organizations.
func (h *testServer) about(c contract.Changed, rest string) string {
	return "/v1/projects/" + c.ID + rest
}

// ruled returns the manifest with another rule for the secret.
func ruled(rule string) string { return strings.Replace(guarded, "secret: true", rule, 1) }

// The attack that read a secret in 179 requests: plans of manifests whose pattern
// guesses the secret letter by letter. A viewer cannot plan manifests, and a deployer
// gets the same plan whatever the secret is.
func TestASecretCannotBeReadByPlansWithPatterns(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c := h.create("shop", guarded)
	h.set("pin", "4711")
	h.awaitRest("shop")
	viewer, deployer, operator := h.withViewer("shop")
	for _, rule := range []string{
		"secret: true, pattern: '4.*'", "secret: true, pattern: '5.*'", "secret: true, choices: ['4711']", "secret: true, choices: ['4712']",
		"secret: true, type: integer", "secret: true, type: boolean", "pattern: '4.*'", "pattern: '5.*'", "choices: ['4712', '4713']",
	} {
		text := ruled(rule)
		viewer.call("POST", h.about(c, "/plan"), text).wantError(403, mariposa.Forbidden, "deployer")
		viewer.call("POST", h.about(c, "/plan"), "\n\n"+text).wantError(403, mariposa.Forbidden)
		r := deployer.call("POST", h.about(c, "/plan"), text)
		if r.status != 200 || strings.Contains(string(r.body), "replace") {
			t.Errorf("%s: a deployer's plan answers %d %s", rule, r.status, r.body)
		}
	}
	want[contract.Plan](viewer.call("POST", h.about(c, "/plan"), nil), 200)
	want[contract.Plan](viewer.call("POST", h.about(c, "/plan"), " \n"), 200)
	operator.call("POST", h.about(c, "/plan"), ruled("secret: true, pattern: '5.*'")).
		wantError(400, mariposa.InvalidArgument, "metadata.pin")
	// Faults of values that are not secret are reported.
	want[contract.Changed](h.set("mode", "calm"), 200)
	deployer.call("POST", h.about(c, "/plan"), strings.Replace(guarded, "default: calm", "choices: [wild]", 1)).
		wantError(400, mariposa.InvalidArgument, "metadata.mode")
}

// The same rules in submissions of every kind: no response reveals whether the secret
// matches. A value in the request is checked.
func TestASecretCannotBeReadBySubmissionsWithPatterns(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", guarded)
	h.set("pin", "4711")
	_, deployer, _ := h.withViewer("shop")
	for i, rule := range []string{"secret: true, pattern: '5.*'", "secret: true, choices: ['4711']", "secret: true, type: boolean", "pattern: '9'"} {
		text := ruled(rule)
		want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), text), 200)
		want[contract.Changed](deployer.call("PUT", h.about(c, "?force=true"), map[string]any{"manifest": text + fmt.Sprintf("# %d\n", i), "metadata": "pin: ••••\nmode: calm\n"}), 200)
		want[contract.Changed](deployer.call("PUT", h.about(c, "/metadata/mode"), fmt.Sprint("m", i), plainText...), 200)
		want[contract.Changed](deployer.call("PUT", h.about(c, "/metadata"), fmt.Sprintf("pin: ••••\nmode: n%d\n", i)), 200)
	}
	deployer.call("PUT", h.about(c, "/metadata/pin"), "1", plainText...).wantError(400, mariposa.InvalidArgument, "metadata.pin")
	deployer.call("PUT", h.about(c, "/metadata"), "pin: 1\n").wantError(400, mariposa.InvalidArgument, "metadata.pin")
	want[contract.Changed](deployer.call("PUT", h.about(c, "/metadata/pin"), "9", plainText...), 200)
}

// A default can be a guess: plans, versions and outdated instances must not reveal
// whether the secret equals it.
func TestADefaultDoesNotTellWhetherItIsTheSecret(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c := h.create("shop", "services: {web: {compute_type: dummy, environment: {PIN: \"{{ .meta.pin }}\"}, update: {min_healthy: 0}}}\nmetadata: {pin: {}}\n")
	want[contract.Changed](h.set("pin", "4711", "?secret=true"), 200)
	h.startTask("shop", `{"action":"reprovision"}`)
	h.awaitRest("shop")
	_, deployer, _ := h.withViewer("shop")
	for _, guess := range []string{"4710", "4711"} {
		text := fmt.Sprintf("services: {web: {compute_type: dummy, environment: {PIN: \"{{ .meta.pin }}\"}, update: {min_healthy: 0}}}\nmetadata: {pin: {default: '%s'}}\n", guess)
		p := want[contract.Plan](deployer.call("POST", h.about(c, "/plan"), text), 200)
		if len(p.Resources) != 1 || p.Resources[0].Change != "unchanged" || len(p.Steps) != 0 {
			t.Errorf("with the default %s: %+v", guess, p)
		}
		done := want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), text), 200)
		h.awaitRest("shop")
		v := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/"+done.Version, nil), 200)
		if len(v.ServicesChanged) != 0 || h.service("web").Outdated != 0 {
			t.Errorf("submitted with the default %s: %+v, %+v", guess, v, h.service("web"))
		}
	}
}

// Incrementing a secret would reveal whether it is a number, and how large.
func TestASecretIsCountedOnlyByWhoMayReadIt(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", guarded)
	_, deployer, operator := h.withViewer("shop")
	for _, pin := range []string{"4711", "a word", "9223372036854775807"} {
		want[contract.Changed](h.set("pin", pin), 200)
		for _, way := range []string{"incr", "decr?by=0", "incr?by=1000000000000"} {
			deployer.call("POST", h.about(c, "/metadata/pin/"+way), nil).wantError(403, mariposa.Forbidden, "operator")
		}
	}
	want[contract.Changed](h.set("pin", "1"), 200)
	want[contract.Changed](operator.call("POST", h.about(c, "/metadata/pin/incr"), nil), 200)
	want[contract.Changed](deployer.call("POST", h.about(c, "/metadata/build/incr"), nil), 200)
}

// Neither size limits nor the lines of faults reveal the length of a secret.
func TestTheLengthOfASecretDoesNotShow(t *testing.T) {
	long(t)
	t.Parallel()
	for _, pin := range []string{"1", "12345678", "1\n\n2\n3"} {
		h := newTestServer(t)
		c := h.create("shop", guarded)
		want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata", "pin: |-\n  "+strings.ReplaceAll(pin, "\n", "\n  ")+"\nmode: calm\n"), 200)
		_, deployer, _ := h.withViewer("shop")
		failed := deployer.call("PUT", h.about(c, "/manifest?force=true"), strings.Replace(guarded, "default: calm", "choices: [wild]", 1)).
			wantError(400, mariposa.InvalidArgument, "metadata.mode")
		if failed.Errors[0].Line != 2 {
			t.Errorf("beside %q a fault is in line %d", pin, failed.Errors[0].Line)
		}
		const head, rest = "pin: ••••", "\nmode: calm\n#"
		fits := manifest.MaxValues - 64 - len("pin: "+rest)
		deployer.call("PUT", h.about(c, "/metadata"), head+rest+strings.Repeat("x", fits+1)).wantError(413, mariposa.TooLarge)
		want[contract.Changed](deployer.call("PUT", h.about(c, "/metadata"), head+rest+strings.Repeat("x", fits)), 200)
	}
}

// Plans of manifests and rejected changes are recorded in the audit log for the owner
// of the project, with a rate limit.
func TestPlansAndRefusedChangesAreNoted(t *testing.T) {
	long(t)
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", guarded)
	viewer, deployer, _ := h.withViewer("shop")
	noted := func(outcome, action string) []mariposa.Audit {
		return h.audit("?project=shop&limit=1000&outcome=" + outcome + "&action=" + action)
	}
	want[contract.Plan](deployer.call("POST", h.about(c, "/plan"), nil), 200)
	if all := noted("done", "project.plan"); len(all) != 0 {
		t.Errorf("a plan without a manifest is recorded: %+v", all)
	}
	want[contract.Plan](deployer.call("POST", h.about(c, "/plan"), guarded+"# more\n"), 200)
	if all := noted("done", "project.plan"); len(all) != 1 || all[0].ActorName != "deployer-of-shop" || all[0].Project != c.ID || all[0].Organization == "" {
		t.Errorf("a plan is recorded as %+v", all)
	}
	deployer.call("POST", h.about(c, "/plan"), "services: {web: {compute_type: dummy, hunter2: hunter3}}\n").wantError(400, mariposa.InvalidArgument)
	if all := noted("failed", "project.plan"); len(all) != 1 || !strings.Contains(all[0].Reason, "InvalidArgument: 1 fault") || strings.Contains(all[0].Reason, "hunter3") {
		t.Errorf("a rejected plan is recorded as %+v", all)
	}
	deployer.call("PUT", h.about(c, "/manifest?force=true"), "services: [").wantError(400, mariposa.InvalidArgument)
	deployer.call("PUT", h.about(c, "/manifest?previous=9"), guarded+"# more\n").wantError(409, mariposa.Conflict)
	if all := noted("failed", "manifest.put"); len(all) != 2 || all[0].Reason != "Conflict" || all[0].Project != c.ID {
		t.Errorf("rejected manifests are recorded as %+v", all)
	}
	viewer.call("POST", h.about(c, "/plan"), guarded).wantError(403, mariposa.Forbidden)
	if all := noted("denied", ""); len(all) != 1 || all[0].ActorName != "viewer-of-shop" || all[0].Action != "project.plan" || !strings.HasSuffix(all[0].Object, "/plan") {
		t.Errorf("a denied plan is recorded as %+v", all)
	}
	viewer.call("GET", h.about(c, "/metadata?reveal=true"), nil).wantError(403, mariposa.Forbidden)
	if all := noted("denied", "secret.read"); len(all) != 1 || all[0].Project != c.ID {
		t.Errorf("a denied read of secrets is recorded as %+v", all)
	}
	for range 400 {
		deployer.call("POST", h.about(c, "/plan"), "services: [").wantError(400, mariposa.InvalidArgument)
		viewer.call("PUT", h.about(c, "/metadata/mode"), "x", plainText...).wantError(403, mariposa.Forbidden)
	}
	// At most the burst and one per second; more only if 400 requests take very long.
	if n := len(noted("failed", "project.plan")); n < 100 || n > 390 {
		t.Errorf("%d of 401 rejected plans are recorded", n)
	}
	if n := len(noted("denied", "metadata.set")); n < 50 {
		t.Errorf("only %d of 400 denied changes are recorded", n)
	}
}

// The stored response for a repeated request does not let the owner of a copy of the
// store verify a guess of the secret in the request.
func TestWhatIsKeptOfARequestIsNoHashOfItsSecret(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", guarded)
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/pin", "4711", append(plainText, "Idempotency-Key", "once")...), 200)
	hash := sha256.New()
	for _, part := range []string{"PUT", "/v1/projects/shop/metadata/pin", "text/plain", "4711"} {
		hash.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(part))), part...))
	}
	if strings.Contains(string(h.everything()), hex.EncodeToString(hash.Sum(nil))) {
		t.Error("the store holds a hash that anybody can make of a guess")
	}
	r := h.call("PUT", "/v1/projects/shop/metadata/pin", "4711", append(plainText, "Idempotency-Key", "once")...)
	if want[contract.Changed](r, 200); r.header.Get("Idempotency-Replayed") != "true" {
		t.Error("the same request again is done again")
	}
	h.call("PUT", "/v1/projects/shop/metadata/pin", "4712", append(plainText, "Idempotency-Key", "once")...).wantError(409, mariposa.Conflict, "a different request")
}

// The storage usage is visible to viewers. It used to grow by the length of a new secret.
func TestWhatIsStoredTellsNoLengthOfASecret(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", "services: {web: {compute_type: dummy}}\nmetadata: {password: {secret: true}}\n")
	grew := map[int64]bool{}
	set := func(value string) {
		before := h.stored("shop").Metadata
		want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/password", must(json.Marshal(map[string]string{"value": value}))(t)), 200)
		grew[(h.stored("shop").Metadata-before)/16] = true // times are written with more or fewer digits
	}
	set("first")
	clear(grew)
	for _, n := range []int{1, 5, 9, 13, 20, 30, 40, 50, 60} {
		set(strings.Repeat("s", n))
	}
	set(`"two" 'kinds' of quotes: #1`)
	set("two\nlines")
	if len(grew) > 2 {
		t.Errorf("secrets of 1 to 60 bytes take %v times 16 bytes", grew)
	}
}

package api_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

// vault returns a manifest whose service db uses a protected secret and whose service
// web does not. Run is the command of db, and web is the rest of the manifest.
func vaultOf(run, more string) string {
	return "services:\n" +
		"  db: {compute_type: dummy, environment: {RUN: " + run + ", PASSWORD: \"{{ .meta.db-password }}\"}, update: {min_healthy: 0}}\n" +
		"  web: {compute_type: dummy, environment: {BUILD: \"1\"}, update: {min_healthy: 0}}\n" +
		"metadata:\n  db-password: {secret: true, protect: true}\n  mode: {default: calm}\n" + more
}

// protectedShop creates a project with a protected secret in force, and its users.
func (h *testServer) protectedShop() (c contract.Changed, deployer, operator *testServer) {
	h.t.Helper()
	c = want[contract.Changed](h.call("POST", "/v1/projects", map[string]any{"name": "shop", "manifest": vaultOf("serve", ""), "metadata": "db-password: swordfish-1\n"}), 201)
	h.awaitRest("shop")
	deployer, operator = h.newMembers("shop")
	return c, deployer, operator
}

func (h *testServer) version(ref any) contract.Version {
	h.t.Helper()
	return want[contract.Version](h.call("GET", fmt.Sprintf("/v1/projects/shop/versions/%v", ref), nil), 200)
}

// inForce returns the number of the version in force.
func (h *testServer) inForce() int {
	st := h.picture.Projects.Get(h.idOf("shop")).Status()
	if st == nil {
		return 0
	}
	return st.Number
}

// A deployer's version that uses a protected secret waits until an operator approves
// it. Plan, response, task, version and events show that, and deployers cannot approve.
func TestAVersionThatUsesAProtectedSecretWaitsForApproval(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c, deployer, operator := h.protectedShop()
	const sentence = "waits for an operator to approve version 2, which uses the protected secret db-password"
	evil := vaultOf("\"print $PASSWORD\"", "")
	p := want[contract.Plan](deployer.call("POST", h.about(c, "/plan"), evil), 200)
	if fmt.Sprint(p.NeedsApproval) != "[db-password]" || p.Complete || len(p.Waits) == 0 || !strings.HasPrefix(p.Waits[0], sentence) {
		t.Errorf("the plan: %+v", p)
	}
	if p := want[contract.Plan](operator.call("POST", h.about(c, "/plan"), evil), 200); p.NeedsApproval != nil || !p.Complete {
		t.Errorf("the plan of an operator: %+v", p)
	}
	done := want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), evil), 200)
	if done.Number != 2 || fmt.Sprint(done.NeedsApproval) != "[db-password]" || !strings.HasPrefix(done.Reason, sentence) || done.Task == nil {
		t.Fatalf("the answer: %+v", done)
	}
	if p := want[contract.Plan](deployer.call("POST", h.about(c, "/plan"), nil), 200); len(p.Waits) == 0 || !strings.HasPrefix(p.Waits[0], sentence) {
		t.Errorf("the plan of what would happen now: %+v", p)
	}
	if p := want[contract.Project](deployer.call("GET", h.about(c, ""), nil), 200); !strings.HasPrefix(p.Reason, sentence) {
		t.Errorf("the project does not say that its newest version waits: %+v", p)
	}
	if s := want[contract.State](deployer.call("GET", h.about(c, "/state"), nil), 200); !strings.HasPrefix(s.Projects[0].Reason, sentence) {
		t.Errorf("the state does not say that the newest version waits: %+v", s)
	}
	// After a repair the planner has seen the task: the new instance has version 1.
	for id := range h.instances("shop", "db") {
		h.crash(id)
		h.until("the repair", func() bool {
			_, there := h.instances("shop", "db")[id]
			return !there && h.of("shop", "db").Running == 1
		})
	}
	want[contract.Changed](operator.call("PUT", h.about(c, "/state"), contract.Action{Action: "scale", Services: nil, Scale: []byte(`{"db":2}`)}), 202)
	h.until("the scale", func() bool { return h.of("shop", "db").Running == 2 })
	task := h.task(*done.Task)
	if task.State != mariposa.TaskQueued || !strings.Contains(task.Reason, sentence) || task.ReasonCode != mariposa.ReasonWaitsApproval || h.inForce() != 1 {
		t.Fatalf("the task is %+v, and version %d is in force", task, h.inForce())
	}
	if v := h.version(2); fmt.Sprint(v.NeedsApproval) != "[db-password]" || v.Approval != nil {
		t.Errorf("version 2: %+v", v)
	}
	deployer.call("PUT", h.about(c, "/versions/2/approval"), nil).wantError(403, mariposa.Forbidden, "operator")
	deployer.call("DELETE", h.about(c, "/versions/1/approval"), nil).wantError(403, mariposa.Forbidden, "operator")
	since := h.revision()
	ok := want[contract.Changed](operator.call("PUT", h.about(c, "/versions/2/approval"), nil), 200)
	if ok.Number != 2 || ok.Task == nil || *ok.Task != *done.Task {
		t.Errorf("approved: %+v", ok)
	}
	h.awaitTask(*done.Task, mariposa.TaskCompleted)
	if v := h.version(2); v.NeedsApproval != nil || v.Approval == nil || v.Approval.By != "operator-of-shop" || v.Approval.Number != 2 || h.inForce() != 2 {
		t.Errorf("version 2 after the approval: %+v, %+v in force", v, h.inForce())
	}
	events := want[contract.Events](h.call("GET", fmt.Sprintf("/v1/events?project=shop&since=%d&limit=1000", since), nil), 200).Events
	if !slices.ContainsFunc(events, func(e contract.Event) bool { return e.Kind == "version.approved" && e.Actor == "operator-of-shop" }) {
		t.Errorf("no event for the approval: %+v", events)
	}
	noted := h.audit("?project=shop&action=version.approve")
	if len(noted) != 2 || noted[0].Outcome != mariposa.AuditDone || noted[0].Number != 2 || noted[1].Outcome != mariposa.AuditDenied {
		t.Errorf("the audit records are %+v", noted)
	}
	again := want[contract.Changed](operator.call("PUT", h.about(c, "/versions/2/approval"), nil), 200)
	if !strings.Contains(again.Reason, "already") || len(h.audit("?project=shop&action=version.approve")) != 2 {
		t.Errorf("approved again: %+v", again)
	}
}

// A deployer cannot change the value of a protected secret, its protection or the
// instances that use it, and no response reveals whether a guess is right.
func TestADeployerNeitherChangesNorUnprotectsAProtectedSecret(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c, deployer, operator := h.protectedShop()
	for _, guess := range []string{"swordfish-1", "swordfish-2"} {
		deployer.call("PUT", h.about(c, "/metadata/db-password"), guess, plainText...).wantError(403, mariposa.Forbidden, "protected", "operator")
		deployer.call("PUT", h.about(c, "/metadata"), "db-password: "+guess+"\n").wantError(403, mariposa.Forbidden, "protected")
		deployer.call("PUT", h.about(c, "?force=true"), map[string]any{"metadata": "db-password: " + guess + "\n"}).wantError(403, mariposa.Forbidden, "protected")
	}
	deployer.call("DELETE", h.about(c, "/metadata/db-password"), nil).wantError(403, mariposa.Forbidden, "protected")
	deployer.call("PUT", h.about(c, "/metadata"), "mode: wild\n").wantError(403, mariposa.Forbidden, "protected")
	deployer.call("POST", h.about(c, "/metadata/db-password/incr"), nil).wantError(403, mariposa.Forbidden)
	lift := strings.Replace(vaultOf("serve", ""), "protect: true", "protect: false", 1)
	deployer.call("PUT", h.about(c, "/manifest?force=true"), lift).wantError(403, mariposa.Forbidden, "protected")
	deployer.call("POST", h.about(c, "/plan"), lift).wantError(403, mariposa.Forbidden, "protected")
	// Omitting the field does not remove the protection.
	for _, text := range []string{
		strings.Replace(vaultOf("print", ""), ", protect: true", "", 1),
		strings.Replace(vaultOf("print", ""), "  db-password: {secret: true, protect: true}\n", "  db-password: {}\n", 1),
	} {
		if done := want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), text), 200); fmt.Sprint(done.NeedsApproval) != "[db-password]" {
			t.Errorf("submitted without protection: %+v", done)
		}
	}
	if k := h.key("db-password"); !k.Protected || !k.Secret {
		t.Errorf("the key: %+v", k)
	}
	// Other ways to the same value: the environment of another service, mdata, files, escapes.
	for _, service := range []string{
		"{compute_type: dummy, environment: {P: \"{{ .services.db.environment.PASSWORD }}\"}}", "{compute_type: dummy, mdata: {p: \"{{ .meta.db-password }}\"}}",
		"{compute_type: dummy, files: {/p: \"{{ .meta.db-password }}\"}}", "{compute_type: dummy, command: [\"\\x7b\\x7b .meta.db-password }}\"]}",
	} {
		text := vaultOf("serve", "") + "# " + service + "\n"
		text = strings.Replace(text, "services:\n", "services:\n  spy: "+service+"\n", 1)
		if done := want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), text), 200); fmt.Sprint(done.NeedsApproval) != "[db-password]" {
			t.Errorf("%s: %+v", service, done)
		}
		alone := "services:\n  spy: " + service + "\nmetadata: {db-password: {}}\n"
		if !strings.Contains(service, "services.db") {
			if done := want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), alone), 200); fmt.Sprint(done.NeedsApproval) != "[db-password]" {
				t.Errorf("alone %s: %+v", service, done)
			}
		}
	}
	deployer.call("POST", h.about(c, "/services?name=spy2"), "{compute_type: dummy, environment: {P: \"{{ .meta.db-password }}\"}}")
	if h.inForce() != 1 || len(h.instances("shop", "spy")) != 0 {
		t.Errorf("version %d is in force", h.inForce())
	}
	// An operator can do all of that. An unprotected secret needs no approval.
	want[contract.Changed](operator.call("PUT", h.about(c, "/metadata/db-password"), "swordfish-3", plainText...), 200)
	want[contract.Changed](operator.call("PUT", h.about(c, "/manifest?force=true"), lift), 200)
	if done := want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), lift+"# more\n"), 200); done.NeedsApproval != nil || h.key("db-password").Protected {
		t.Errorf("after it was lifted: %+v", done)
	}
}

// An approval covers content: changed content needs another approval, restored content
// needs none, and a deployer's revert does not restore an older value of the secret.
func TestAnApprovalIsOfAContent(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c, deployer, operator := h.protectedShop()
	put := func(by *testServer, text string) contract.Changed {
		t.Helper()
		return want[contract.Changed](by.call("PUT", h.about(c, "/manifest?force=true"), text), 200)
	}
	needs := func(what string, done contract.Changed, want bool) {
		t.Helper()
		if (done.NeedsApproval != nil) != want {
			t.Errorf("%s: %+v", what, done)
		}
	}
	needs("a change of the manifest, were it a comment", put(deployer, vaultOf("serve", "# more\n")), true)
	needs("the approved one again", put(deployer, vaultOf("serve", "")), false)
	h.awaitRest("shop")
	if now := h.inForce(); now != 3 {
		t.Errorf("version %d is in force", now)
	}
	// Deployers can change values that the manifest does not refer to, but not the secret.
	needs("another value", want[contract.Changed](deployer.call("PUT", h.about(c, "/metadata/mode"), "wild", plainText...), 200), false)
	needs("the secret rotated", want[contract.Changed](operator.call("PUT", h.about(c, "/metadata/db-password"), "swordfish-2", plainText...), 200), false)
	h.until("the values to be in force", func() bool { return h.inForce() == 5 })
	// A value that the manifest refers to is part of the content.
	uses := strings.Replace(vaultOf("\"{{ .meta.run }}\"", ""), "mode: {default: calm}", "run: {default: serve}", 1)
	needs("an operator's manifest", put(operator, uses), false)
	h.awaitRest("shop")
	needs("what it runs, by a value", want[contract.Changed](deployer.call("PUT", h.about(c, "/metadata/run"), "print", plainText...), 200), true)
	needs("beside it", want[contract.Changed](operator.call("PUT", h.about(c, "/metadata/mode"), "calm", plainText...), 200), true)
	h.startTask("shop", `{"action":"reprovision"}`)
	h.awaitRest("shop")
	if env := fmt.Sprint(h.only("shop", "db").Version, h.environment(h.only("shop", "db").ID)["RUN"]); h.inForce() != 6 || !strings.HasSuffix(env, "serve") {
		t.Errorf("version %d is in force, with %s", h.inForce(), env)
	}
	want[contract.Changed](operator.call("PUT", h.about(c, "/versions/7/approval"), nil), 200)
	h.until("the values to be in force", func() bool { return h.inForce() == 8 })
	// A revert to approved content needs no approval; the secret keeps the operator's value.
	back := want[contract.Changed](deployer.call("PUT", h.about(c, "/state"), contract.Action{Action: "revert", Version: "1"}), 202)
	needs("a revert", back, false)
	h.awaitRest("shop")
	now := want[contract.MetadataKey](operator.call("GET", h.about(c, "/metadata/db-password?reveal=true"), nil), 200)
	if now.Value != "swordfish-2" || h.inForce() != back.Number {
		t.Errorf("after the revert the secret is %q, and version %d is in force", now.Value, h.inForce())
	}
	// A withdrawn approval no longer allows any way to restore the content. Instances keep running.
	withdrawn := want[contract.Changed](operator.call("DELETE", h.about(c, "/versions/1/approval"), nil), 200)
	operator.call("DELETE", h.about(c, "/versions/1/approval"), nil).wantError(409, mariposa.Conflict, "not approved")
	needs("away", put(deployer, "services: {}\n"), false)
	h.awaitRest("shop")
	needs("and back", want[contract.Changed](deployer.call("PUT", h.about(c, "/state"), contract.Action{Action: "revert", Version: "1"}), 202), true)
	operator.call("PUT", h.about(c, "/versions/"+fmt.Sprint(withdrawn.Number+100)+"/approval"), nil).wantError(404, mariposa.ResourceNotFound)
	operator.call("PUT", h.about(c, fmt.Sprintf("/versions/%d/approval", back.Number+1)), nil).wantError(409, mariposa.Conflict, "uses no protected secret")
}

// An operator who changes another part of a waiting manifest does not approve it.
func TestAChangeBesideDoesNotApproveWhatWaits(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c, deployer, operator := h.protectedShop()
	done := want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), vaultOf("print", "")), 200)
	for _, change := range []struct {
		method, path string
		body         any
		headers      []string
	}{
		{"PUT", "/metadata/db-password", "swordfish-2", plainText},
		{"PUT", "/metadata/mode", "wild", plainText},
		{"PUT", "/services/web", "{compute_type: dummy, environment: {BUILD: \"2\"}}", nil},
		{"POST", "/metadata/build/incr", nil, nil},
	} {
		if now := operator.call(change.method, h.about(c, change.path), change.body, change.headers...); now.status != 200 || !strings.Contains(string(now.body), `"needs_approval":["db-password"]`) {
			t.Errorf("%s %s answers %d %s", change.method, change.path, now.status, now.body)
		}
	}
	// After a repair the planner has seen all changes.
	for id := range h.instances("shop", "db") {
		h.crash(id)
		h.until("the repair", func() bool {
			_, there := h.instances("shop", "db")[id]
			return !there && h.of("shop", "db").Running == 1
		})
	}
	if v := h.version(done.Number); v.Approval != nil || h.inForce() != 1 {
		t.Errorf("version %d is in force, and the one that waited is %+v", h.inForce(), v)
	}
}

// A project created with a token that cannot approve is not approved, and waits from
// the start.
func TestAProjectOfADeployersTokenWaitsFromTheStart(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	robot := h.bearing(contract.NewToken{Name: "robot", Role: mariposa.RoleDeployer})
	done := want[contract.Changed](robot.call("POST", "/v1/projects", map[string]any{"name": "shop", "manifest": vaultOf("serve", ""), "metadata": "db-password: swordfish-1\n"}), 201)
	if done.NeedsApproval == nil {
		t.Fatalf("made: %+v", done)
	}
	scale := want[contract.Changed](h.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "scale", Scale: []byte(`{"web":3}`)}), 202)
	if task := h.task(*done.Task); task.State != mariposa.TaskQueued || len(h.instances("shop", "")) != 0 {
		t.Errorf("the start is %+v", task)
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/versions/1/approval", nil), 200)
	h.awaitTask(*done.Task, mariposa.TaskCompleted)
	h.awaitTask(*scale.Task, mariposa.TaskCompleted)
	if n := h.of("shop", "web").Running; n != 3 {
		t.Errorf("%d of web run", n)
	}
}

// A deployer can run a program that prints guesses. The masked log must not reveal
// which of them is the protected secret. Instances that receive the secret have it
// masked.
func TestTheMaskOfALogDoesNotTellAProtectedSecret(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	node := h.join("n1")
	text := strings.ReplaceAll(vaultOf("serve", ""), "compute_type: dummy", "compute_type: process, command: run")
	c := want[contract.Changed](h.call("POST", "/v1/projects", map[string]any{"name": "shop", "manifest": text, "metadata": "db-password: swordfish-1\n"}), 201)
	h.awaitRest("shop")
	deployer, _ := h.newMembers("shop")
	want[contract.Changed](h.call("PUT", h.about(c, "/metadata/key?secret=true"), "another-secret", plainText...), 200)
	for service, masked := range map[string]string{"web": "guesses: swordfish-0, swordfish-1, ••••\n", "db": "guesses: swordfish-0, ••••, ••••\n"} {
		r := deployer.begin("/v1/instances/" + h.only("shop", service).ID + "/logs?follow=true&tail=16")
		node.speak <- "guesses: swordfish-0, swordfish-1, another-secret"
		line := make([]byte, len(masked))
		if _, err := io.ReadFull(r.Body, line); err != nil || string(line) != masked {
			t.Errorf("%s: %q, %v", service, line, err)
		}
		r.Body.Close()
	}
}

// Live values that wait for an approval do not reach running instances.
func TestValuesThatWaitAreNotReadLive(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	text := "services:\n  db: {compute_type: dummy, mdata: {n: \"{{ .project.name }}\", run: \"{{ .meta.run }}\", p: \"{{ .meta.db-password }}\"}, update: {min_healthy: 0}}\n" +
		"metadata: {db-password: {secret: true, protect: true}, run: {default: serve}}\n"
	c := want[contract.Changed](h.call("POST", "/v1/projects", map[string]any{"name": "shop", "manifest": text, "metadata": "db-password: swordfish-1\n"}), 201)
	h.awaitRest("shop")
	deployer, operator := h.newMembers("shop")
	id := h.only("shop", "db").ID
	read := func() string { return fmt.Sprint(must(g.PublishedValues(h.ctx, id))(t)) }
	// Values sent to a node change nothing in the store, so this polls.
	await := func(part string) {
		t.Helper()
		for began := time.Now(); !strings.Contains(read(), part); h.call("GET", "/healthz", nil) {
			if time.Since(began) > time.Minute {
				t.Fatalf("waited in vain for %s: %s", part, read())
			}
		}
	}
	await("[{n shop} {p swordfish-1} {run serve}]")
	want[contract.Changed](deployer.call("PUT", h.about(c, "/metadata/run"), "print", plainText...), 200)
	want[contract.Changed](operator.call("PUT", h.about(c, "/metadata/db-password"), "swordfish-2", plainText...), 200)
	// Another name is sent at once, together with all values that were allowed before.
	want[contract.Changed](h.call("PUT", h.about(c, ""), contract.ProjectChange{Name: "other"}), 200)
	await("{n other}")
	if got := read(); got != "[{n other} {p swordfish-1} {run serve}]" {
		t.Errorf("while they wait, %s is read", got)
	}
	want[contract.Changed](operator.call("PUT", h.about(c, "/versions/2/approval"), nil), 200)
	await("[{n other} {p swordfish-2} {run print}]")
}

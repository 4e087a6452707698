package main_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// Several teams use one installation. Each user has their own home directory and profile.

// person is a user on a terminal.
type person struct {
	h     *devServer
	name  string
	home  string
	token string
}

// hire creates a user with a token and logs them in.
func (h *devServer) hire(name string) *person {
	h.t.Helper()
	h.ok("user", "create", name)
	p := &person{h: h, name: name, home: h.t.TempDir()}
	p.token = strings.TrimSpace(h.ok("token", "create", "laptop", "--user", name))
	p.login(h.URL())
	return p
}

// login logs a user in and checks that other users cannot read the saved profile.
func (p *person) login(url string) {
	t := p.h.t
	t.Helper()
	out, errs, code := p.run(p.token+"\n", "login", "--url", url, "--token-stdin")
	if code != 0 || !strings.Contains(out, "as "+p.name) || strings.Contains(out+errs, p.token) {
		t.Fatalf("login of %s: exit %d, %s%s", p.name, code, out, errs)
	}
	info, err := os.Stat(filepath.Join(p.home, ".config", "mariposa", "profile.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the profile of %s: %v, %v", p.name, info, err)
	}
}

func (p *person) run(stdin string, args ...string) (stdout, stderr string, code int) {
	p.h.t.Helper()
	return finish(p.h.t, program(p.h.t.Context(), p.home, nil, args...), stdin)
}

// can runs a command that must succeed.
func (p *person) can(args ...string) string {
	p.h.t.Helper()
	out, errs, code := p.run("", args...)
	if code != 0 {
		p.h.t.Fatalf("%s: mariposa %s: exit %d\n%s%s", p.name, strings.Join(args, " "), code, out, errs)
	}
	return out
}

// cannot runs a command that must fail with a message that contains because.
func (p *person) cannot(because string, args ...string) {
	p.h.t.Helper()
	_, errs, code := p.run("", args...)
	refused(p.h.t, because, args, errs, code)
}

// api returns the user's client.
func (p *person) api() *client.Client {
	p.h.t.Helper()
	c, err := client.New(client.Options{URL: p.h.URL(), Token: p.token})
	must(p.h.t, err)
	return c
}

const shopFile = `services:
  web:
    compute_type: process
    command: [sleep, "1000"]
    scale: 2
    environment: {KEY: "{{ .meta.key }}"}
    mdata: {key: "{{ .meta.key }}"}
metadata: {key: {secret: true, generate: 24}}
`

func TestTwoTeamsShareOneInstallation(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	ann, bob := h.hire("ann"), h.hire("bob")
	file := fileOf(t, shopFile)
	ann.can("org", "create", "red", "--base-role", "operator")
	bob.can("org", "create", "blue")
	ann.can("-o", "red", "project", "create", "shop", "-m", file, "--wait")
	bob.can("-o", "blue", "project", "create", "shop", "-m", file, "--wait") // the name is taken only in the other organization
	var shop contract.Project
	if err := json.Unmarshal([]byte(ann.can("-o", "red", "--json", "project", "show", "shop")), &shop); err != nil || shop.OrganizationName != "red" {
		t.Fatalf("%+v, %v", shop, err)
	}
	if s := bob.can("project", "list") + bob.can("instance", "list") + bob.can("state") + bob.can("org", "list") + bob.can("user", "list") + bob.can("--json", "events", "--since", "0") + bob.can("queue", "list", "--all"); strings.Contains(s, "red") || strings.Contains(s, "ann") || strings.Contains(s, shop.ID) {
		t.Errorf("bob sees what is the other team's:\n%s", s)
	}
	bob.cannot("no", "-o", "red", "project", "show", "shop")
	for name, err := range stranger(t, bob, &shop) {
		if mariposa.CodeOf(err) != mariposa.ResourceNotFound || strings.Contains(err.Error(), "red") {
			t.Errorf("%s of another team: %v", name, err)
		}
	}
	if s := ann.can("-o", "red", "-j", "shop", "meta", "list"); !strings.Contains(s, "••••") {
		t.Errorf("meta list:\n%s", s)
	}

	// Members have their role in the organization until they leave.
	ann.can("org", "add", "red", "bob")
	secret := strings.TrimSpace(ann.can("-o", "red", "-j", "shop", "meta", "get", "key", "--reveal"))
	if got := strings.TrimSpace(bob.can("-o", "red", "-j", "shop", "meta", "get", "key", "--reveal")); len(secret) != 24 || got != secret {
		t.Errorf("an operator reads %q, the owner %q", got, secret)
	}
	bob.cannot("deleting shop requires the admin role; you are an operator", "-o", "red", "-j", "shop", "project", "delete", "-f", "--yes")
	ann.can("org", "remove", "red", "bob")
	bob.cannot("no", "-o", "red", "-j", "shop", "meta", "list")

	// A token for automation is limited to a project and a role.
	robot := &person{h: h, name: "ann", home: t.TempDir(), token: strings.TrimSpace(ann.can("token", "create", "ci", "-o", "red", "--project", "shop", "--role", "deployer", "--expires", "1h"))}
	robot.login(h.URL())
	robot.can("-j", "shop", "project", "update", "-m", file, "--force")
	robot.cannot("requires the operator role; this token is limited to the deployer role", "-j", "shop", "meta", "get", "key", "--reveal")
	robot.cannot("requires the operator role; this token is limited to the deployer role", "-j", "shop", "project", "stop")
	robot.cannot("requires the operator role; this token is limited to the deployer role", "-j", "shop", "instance", "create", "x", "--compute-type", "dummy")
	robot.cannot("", "-o", "red", "project", "create", "other", "-m", file)
	ann.can("token", "revoke", "ci")
	robot.cannot("token", "-j", "shop", "state")

	h.ok("user", "disable", "bob")
	bob.cannot("token", "project", "list")
	h.ok("user", "enable", "bob")
	h.kill()
	h.start()
	bob.login(h.URL()) // it listens on another address now
	if s := bob.can("project", "list"); !strings.Contains(s, "shop") {
		t.Errorf("bob's projects after kill -9:\n%s", s)
	}
}

// stranger requests everything of another user's project.
func stranger(t *testing.T, p *person, shop *contract.Project) map[string]error {
	t.Helper()
	c, ctx, out := p.api(), t.Context(), map[string]error{}
	_, out["the project"] = c.Project(ctx, shop.ID)
	_, out["the metadata"] = c.Metadata(ctx, shop.ID, true)
	_, out["one key"] = c.MetadataKey(ctx, shop.ID, "key", true)
	_, out["the versions"] = c.Versions(ctx, shop.ID)
	_, out["the manifest"] = c.Manifest(ctx, shop.ID)
	_, out["a change"] = c.UpdateManifest(ctx, shop.ID, []byte(shopFile), client.Update{Force: true})
	_, out["a move"] = c.MoveProject(ctx, shop.ID, "blue")
	_, out["a copy"] = c.CopyProject(ctx, shop.ID, contract.Copy{Name: "mine", Organization: "blue", Metadata: []string{"key"}})
	_, out["a stop"] = c.Act(ctx, shop.ID, contract.Action{Action: "stop"})
	_, out["its end"] = c.DeleteProject(ctx, shop.ID, true)
	_, out["the organization"] = c.Organization(ctx, shop.Organization)
	_, out["the members"] = c.Members(ctx, shop.Organization)
	for _, i := range p.h.instances(shop.ID) {
		_, out["an instance"] = c.Instance(ctx, i.ID)
		_, out["a restart"] = c.ActOnInstance(ctx, i.ID, "restart")
		_, out["a log"] = c.Logs(ctx, i.ID, client.LogOptions{Tail: -1})
	}
	if len(out) != 15 {
		t.Errorf("only %d questions were asked", len(out))
	}
	return out
}

func TestAMoveToAnotherOrganizationRestartsNothing(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	ann, bob, eve := h.hire("ann"), h.hire("bob"), h.hire("eve")
	file := fileOf(t, shopFile)
	ann.can("org", "create", "red", "--base-role", "admin")
	ann.can("org", "add", "red", "eve")
	bob.can("org", "create", "blue")
	ann.can("-o", "red", "project", "create", "shop", "-m", file, "--wait")
	eve.can("-o", "red", "-j", "shop", "meta", "get", "key", "--reveal")
	p, err := ann.api().Projects(t.Context(), "shop")
	if err != nil || len(p.Projects) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	id := p.Projects[0].ID
	pids := h.pids(id)
	secret := strings.TrimSpace(ann.can("-o", "red", "-j", "shop", "meta", "get", "key", "--reveal"))

	ann.cannot("no", "-o", "red", "project", "move", "shop", "blue", "--yes") // she has no access to the other organization
	bob.can("org", "add", "blue", "ann")
	if _, errs, code := ann.run("", "-o", "red", "project", "move", "shop", "blue"); code == 0 || !strings.Contains(errs, "--yes") {
		t.Errorf("a move nobody confirms: exit %d, %s", code, errs)
	}
	if before, err := h.Project(t.Context(), id); err != nil || before.OrganizationName != "red" {
		t.Fatalf("it moved all the same: %+v, %v", before, err)
	}
	ann.can("-o", "red", "project", "move", "shop", "blue", "--yes")
	if got := strings.TrimSpace(bob.can("-o", "blue", "-j", "shop", "meta", "get", "key", "--reveal")); got != secret || len(secret) != 24 {
		t.Errorf("the new owner reads %q, not %q", got, secret)
	}
	eve.cannot("no", "-o", "red", "-j", "shop", "state")
	if _, err := eve.api().Project(t.Context(), id); mariposa.CodeOf(err) != mariposa.ResourceNotFound {
		t.Errorf("a member of the former organization: %v", err)
	}
	for range 2 {
		h.converged(id, "web", 2)
		if now := h.pids(id); !maps.Equal(now, pids) || len(pids) != 2 {
			t.Errorf("the pids were %v and are %v", pids, now)
		}
		h.kill()
		h.start()
	}
	bob.login(h.URL())
	bob.can("-o", "blue", "-j", "shop", "meta", "set", "key", "another")
	for name, pid := range h.pids(id) {
		file := environ(t, pid)["MARIPOSA_MDATA_FILE"]
		h.await("the new owner's values arrive in "+name, func() bool { return valuesIn(file)["key"] == "another" })
	}
	if s := bob.can("-o", "blue", "events", "--audit"); !strings.Contains(s, "project.move") || !strings.Contains(s, "ann") {
		t.Errorf("the audit of the new organization:\n%s", s)
	}
	q, err := h.Quota(t.Context(), "blue")
	if err != nil || q.Used.Projects != 1 || q.Used.Instances != 2 {
		t.Errorf("the new organization uses %+v, %v", q, err)
	}
	if q, err := h.Quota(t.Context(), "red"); err != nil || q.Used.Projects != 0 || q.Used.Instances != 0 {
		t.Errorf("the former one uses %+v, %v", q, err)
	}
}

func TestWhoRunsTheInstallationMayActForOthersAndIsSeenToDoSo(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	ann, bob := h.hire("ann"), h.hire("bob")
	file := fileOf(t, dummies)
	h.ok("--as", "ann", "project", "create", "hers", "-m", file, "--wait")
	if s := ann.can("project", "list"); !strings.Contains(s, "hers") {
		t.Errorf("her projects:\n%s", s)
	}
	if s := h.ok("--as", "ann", "whoami"); !strings.Contains(s, "ann") || !strings.Contains(s, "admin") {
		t.Errorf("whoami: %s", s)
	}
	bob.cannot("no such user", "--as", "ann", "project", "list")
	bob.cannot("no such user", "--as", "nobody", "project", "list")
	records, err := h.Audit(t.Context(), client.AuditFilter{Action: "project.create"})
	if err != nil || len(records.Records) != 1 {
		t.Fatalf("%+v, %v", records, err)
	}
	if a := records.Records[0]; a.ActorName != "admin" || a.ForName != "ann" || a.ProjectName != "hers" || a.From == "" {
		t.Errorf("%+v", a)
	}
	status, _ := h.answer(http.MethodGet, "/v1/users/ann/projects/hers", "", nil)
	if status != http.StatusOK {
		t.Errorf("with the prefix: %d", status)
	}
	var lines int
	for line := range strings.Lines(h.ok("events", "--audit", "--json")) {
		var a mariposa.Audit
		if err := json.Unmarshal([]byte(line), &a); err != nil || a.Action == "" {
			t.Fatalf("%q: %v", line, err)
		}
		lines++
	}
	if lines < 5 {
		t.Errorf("the export has %d lines", lines)
	}
}

func TestTheAuditTellsOfRepairsAndOfWhatWasDenied(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	ann, bob := h.hire("ann"), h.hire("bob")
	file := fileOf(t, shopFile)
	ann.can("org", "create", "red")
	ann.can("org", "add", "red", "bob")
	ann.can("-o", "red", "project", "create", "shop", "-m", file, "--wait")
	bob.cannot("permission denied: stopping shop requires the operator role; you are a viewer", "-o", "red", "-j", "shop", "project", "stop")
	ann.can("-o", "red", "-j", "shop", "meta", "get", "key", "--reveal")
	if _, err := (&person{h: h, token: "mrp_guessed"}).api().Projects(t.Context(), ""); mariposa.CodeOf(err) != mariposa.Unauthorized {
		t.Errorf("a guessed token: %v", err)
	}
	shop, err := ann.api().Projects(t.Context(), "shop")
	if err != nil || len(shop.Projects) != 1 {
		t.Fatalf("%+v, %v", shop, err)
	}
	id := shop.Projects[0].ID
	var victim string
	for name, pid := range h.pids(id) {
		victim = name
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		break
	}
	h.await("it is replaced", func() bool { p := h.pids(id); return len(p) == 2 && p[victim] == 0 })
	h.kill()
	h.start()
	ann.login(h.URL())
	for name, c := range map[string]struct {
		filter client.AuditFilter
		fits   func(a mariposa.Audit) bool
	}{
		"a repair": {client.AuditFilter{Project: id, Actor: "mariposa"}, func(a mariposa.Audit) bool {
			return a.Action == "instance.repair" && a.ProjectName == "shop" && a.Outcome == mariposa.AuditDone
		}},
		"a denied stop": {client.AuditFilter{Outcome: mariposa.AuditDenied, Actor: "bob"}, func(a mariposa.Audit) bool {
			return a.Action == "state.put" && a.Project == id && a.From == "127.0.0.1" && a.Token != ""
		}},
		"a secret that was read": {client.AuditFilter{Action: "secret.read"}, func(a mariposa.Audit) bool {
			return a.ActorName == "ann" && a.ObjectName == "key" && a.Project == id && a.Number == 1
		}},
		"a guess": {client.AuditFilter{Action: "login"}, func(a mariposa.Audit) bool { return a.Outcome == mariposa.AuditDenied && a.Actor == "" }},
		"a version": {client.AuditFilter{Action: "project.create"}, func(a mariposa.Audit) bool {
			return a.ActorName == "ann" && a.Version == shop.Projects[0].Version && a.Number == 1 && a.Task != ""
		}},
	} {
		got, err := h.Audit(t.Context(), c.filter)
		if err != nil || len(got.Records) != 1 || !c.fits(got.Records[0]) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if s := ann.can("-o", "red", "-j", "shop", "events", "--audit"); !strings.Contains(s, "instance.repair") || !strings.Contains(s, "denied") || strings.Contains(s, "login") {
		t.Errorf("what the owner reads:\n%s", s)
	}
	bob.login(h.URL())
	bob.cannot("requires the admin role; you are a viewer", "-o", "red", "-j", "shop", "events", "--audit")
}

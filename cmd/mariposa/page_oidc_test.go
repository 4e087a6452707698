package main_test

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mariposa/client"
	"mariposa/contract"
)

// startProvider starts a real identity provider, and returns its issuer. scripts/setup.sh installs it.
func startProvider(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", ".cache", "oidc"))
	must(t, err)
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "oidc-provider")); err != nil {
		t.Fatalf("the identity provider is missing: run scripts/setup.sh (%v)", err)
	}
	cmd := exec.Command("node", filepath.Join("testdata", "oidc", "provider.mjs"), dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { end(cmd) })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "http://") {
			return lines.Text()
		}
	}
	t.Fatal("the provider did not start")
	return ""
}

// signInAt signs in at the provider, from the page of the server.
func (p *tab) signInAt(name string) {
	p.t.Helper()
	p.press("Sign in with Acme")
	p.atProvider(name)
}

func (p *tab) atProvider(name string) {
	p.t.Helper()
	p.fill("input[name=login]", name)
	p.eval("document.querySelector('button').click()")
}

func TestPeopleSignInAtAProvider(t *testing.T) {
	t.Parallel()
	issuer := startProvider(t)
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte("a secret of tests\n"), 0o600))
	h := newDevServer(t, "--dummy-nodes", "1", "--oidc-issuer", issuer, "--oidc-client-id", "mariposa", "--oidc-client-secret-file", secret, "--oidc-name", "Acme")
	p := newTab(t)
	p.visit(h.URL() + "/")
	p.sees("Sign in with Acme")
	p.fits("oidc-sign-in")
	p.signInAt("ann")
	p.sees("there is no user ann: ask an admin of the installation to create one.")
	ann, err := h.CreateUser(t.Context(), contract.NewUser{Name: "ann"})
	must(t, err)

	// The next attempt needs no password: the provider knows who it is.
	p.visit(h.URL() + "/")
	p.press("Sign in with Acme")
	p.until("ann is signed in", "document.querySelector('.you summary')?.innerText === 'ann' && location.hash === ''")
	users, err := h.Users(t.Context())
	must(t, err)
	for _, u := range users.Users {
		if u.ID == ann.ID && (u.Identity == nil || u.Identity.Subject != "subject-of-ann" || u.Identity.Issuer != issuer) {
			t.Errorf("ann is %+v", u)
		}
	}

	// Before something sensitive, she signs in again.
	p.visit(h.URL() + "/account")
	p.press("Create a token…")
	p.fill("dialog input[name=name]", "ci")
	p.confirm("Create")
	p.sees("Sign in again with Acme")
	p.confirm("Sign in again with Acme")
	p.atProvider("ann")
	p.until("she is back", "location.pathname === '/account' && document.querySelector('.you')")
	p.press("Create a token…")
	p.fill("dialog input[name=name]", "ci")
	p.confirm("Create")
	p.until("the token is shown", "document.querySelector('dialog .shown-once')")
	p.confirm("Close")

	// A name that somebody chose at the provider does not make them an admin.
	other := newTab(t)
	other.visit(h.URL() + "/")
	other.signInAt("admin")
	other.sees("admin is an admin of the installation: sign in with a password or a token")
	h.ok("user", "update", "admin", "--oidc-subject", "subject-of-admin")
	other.visit(h.URL() + "/")
	other.press("Sign in with Acme")
	other.until("the connected admin is signed in", "document.querySelector('.you summary')?.innerText === 'admin'")
	other.eval("location.assign('/v1/oidc/sign-in?again=true')")
	other.until("the provider asks", "document.querySelector('button[name=refuse]')")
	other.eval("document.querySelector('button[name=refuse]').click()")
	other.sees("Acme refused the sign-in (access_denied).")

	// Nobody can end a sign-in that was started in another browser.
	r, err := http.Get(h.URL() + "/v1/oidc/callback?code=x&state=y")
	must(t, err)
	body, _ := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if r.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "started in another browser") {
		t.Errorf("a foreign callback answers %d %s", r.StatusCode, body)
	}

	// With the flag, people get a user at their first sign-in.
	h.kill()
	h.args = append(h.args, "--oidc-create-users", "--listen", strings.TrimPrefix(h.URL(), "http://"))
	h.start()
	bob := newTab(t)
	bob.visit(h.URL() + "/")
	bob.signInAt("Bob.Smith@example.com")
	bob.until("bob is signed in", "document.querySelector('.you summary')?.innerText === 'bob-smith'")
	records, err := h.Audit(t.Context(), client.AuditFilter{Action: "session.create"})
	must(t, err)
	if len(records.Records) == 0 || records.Records[0].ActorName != "bob-smith" || records.Records[0].Reason != "by Acme" {
		t.Errorf("the audit log has %+v", records.Records)
	}
}

package main_test

import (
	"strings"
	"testing"

	"mariposa/client"
	"mariposa/contract"
)

// choose selects a choice of a field.
func (p *tab) choose(selector, value string) {
	p.t.Helper()
	p.until("there is "+selector, "document.querySelector("+quote(selector)+")")
	p.eval("(() => { const f = document.querySelector(" + quote(selector) + "); f.value = " + quote(value) + "; f.dispatchEvent(new Event('change', {bubbles: true})) })()")
}

// pressIn clicks a button of a part of the page.
func (p *tab) pressIn(selector, text string) {
	p.t.Helper()
	p.until("there is a button "+text+" in "+selector, clicked(buttonIn(selector, text)))
}

// closed waits until no sheet is open.
func (p *tab) closed() {
	p.t.Helper()
	p.until("the sheet is closed", "!document.querySelector('dialog')")
}

// fits checks that the page is not wider than a phone, in both schemes, and keeps screenshots.
func (p *tab) fits(name string) {
	p.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		p.look(360, 740, scheme)
		if w := p.eval("String(document.documentElement.scrollWidth)"); w != "360" {
			p.t.Errorf("%s is %s px wide on a phone of 360 px", name, w)
		}
		p.shot(name + "-phone-" + scheme)
		p.look(1280, 800, scheme)
		p.shot(name + "-" + scheme)
	}
}

const valuesManifest = `services:
  web: {compute_type: dummy, update: {min_healthy: 0}, environment: {MODE: "{{ .meta.mode }}", PASS: "{{ .meta.pass }}"}, mdata: {motd: "{{ .meta.motd }}"}}
metadata:
  mode: {required: true, choices: [calm, wild], description: "how <b>it</b> runs"}
  pass: {required: true, secret: true, description: password of the database}
  motd: {default: welcome}
`

const horse = "correct horse battery"

// One server for the pages of values, project actions, people and the account.
func TestThePageOfValuesPeopleAndAccounts(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.fed(horse+"\n", "user", "password", "admin", "--stdin")
	p := signedIn(t, h.Client) // by a link, which does not prove who it is

	// A new project asks for its values as the manifest declares them.
	p.press("Paste a manifest")
	p.fill("input[name=name]", "shop")
	p.paste(valuesManifest)
	p.sees("how <b>it</b> runs")
	p.choose("select[name=value-mode]", "calm")
	p.pressIn(".missing", "Generate")
	p.until("a secret is generated, and masked", "document.querySelector('textarea.masked[name=value-pass]')?.value.length === 32")
	p.shot("values-asked")
	p.press("Create: start 1")
	p.until("the project runs", "location.pathname === '/projects/admin/shop' && "+cells("web", "ok")+" === 1")

	for _, part := range []struct {
		name string
		test func(*testing.T, *devServer, *tab)
	}{{"values", testValues}, {"project", testProjectActions}, {"people", testPeople}, {"account", testAccount}} {
		if !t.Run(part.name, func(t *testing.T) { part.test(t, h, p) }) {
			t.FailNow() // the next part begins where this one ends
		}
	}
	p.quiet("403 (Forbidden)", "409 (Conflict)", "404 (Not Found)") // of what the server asked about, and refused
}

func testValues(t *testing.T, h *devServer, p *tab) {
	t.Helper()
	p.t = t
	p.press("Values")
	p.until("the values are shown", "document.querySelector('[data-key=mode] .value')?.innerText === 'calm' && document.querySelector('[data-key=pass] .value')?.innerText.includes('•')")
	p.sees("welcome by default")
	p.fits("values")

	// A secret is revealed after the person has confirmed who they are.
	secret, err := h.MetadataKey(t.Context(), "shop", "pass", true)
	must(t, err)
	p.pressIn("[data-key=pass]", "Reveal…")
	p.confirm("Reveal")
	p.sees("Confirm that it is you.")
	p.fill("input[name=proof]", "wrong horse battery")
	p.confirm("Confirm")
	p.sees("the password is wrong")
	p.shot("values-confirm")
	p.fill("input[name=proof]", horse)
	p.keys("Enter")
	p.until("the secret is shown", "document.querySelector('[data-key=pass] .revealed')?.textContent === "+quote(secret.Value))
	p.pressIn("[data-key=pass]", "Hide")
	p.until("the secret is masked", "!document.querySelector('.revealed')")

	p.pressIn("[data-key=mode]", "Change…")
	p.sees("web uses it.")
	p.choose("dialog select[name=value-mode]", "wild")
	p.confirm("Change")
	p.until("the value is changed", "document.querySelector('[data-key=mode] .value')?.innerText === 'wild'")
	p.pressIn("[data-key=mode]", "History")
	p.until("the history is shown", "document.querySelector('[data-key=mode] .more')?.innerText.includes('by admin')")
	p.press("Add a value…")
	p.fill("dialog input[name=key]", "note")
	p.fill("dialog textarea[name=value-value]", "<img src=x onerror=alert(1)>")
	p.confirm("Add")
	p.until("the value is text", "document.querySelector('[data-key=note] .value')?.innerText.startsWith('<img') && !document.querySelector('img')")
	p.pressIn("[data-key=note]", "Remove…")
	p.confirm("Remove")
	p.until("the value is gone", "!document.querySelector('[data-key=note]')")

	// A viewer sees what is set, and nothing that would be refused.
	made, err := h.CreateToken(t.Context(), contract.NewToken{Name: "screen", Role: "viewer"})
	must(t, err)
	viewer, err := client.New(client.Options{URL: h.URL(), Token: made.Secret})
	must(t, err)
	v := signedIn(t, viewer)
	v.visit(h.URL() + "/projects/admin/shop/values")
	v.until("the values are shown", "document.querySelector('[data-key=pass] .value')")
	if got := v.eval("[...new Set([...document.querySelectorAll('main button, main summary')].map((b) => b.innerText))].join()"); got != "History" {
		t.Errorf("a viewer sees the buttons %s", got)
	}
	v.quiet()

	// A service that waits for values says where to set them.
	h.create("unset", valuesManifest)
	p.visit(h.URL() + "/projects/admin/unset")
	p.press("Set the values")
	p.until("the values are there", "location.pathname === '/projects/admin/unset/values' && document.querySelector('[data-key=mode]')")
	p.visit(h.URL() + "/projects/admin/shop/values")
}

func testProjectActions(t *testing.T, h *devServer, p *tab) {
	t.Helper()
	p.t = t
	_, err := h.CreateOrganization(t.Context(), contract.NewOrganization{Name: "acme"})
	must(t, err)
	more := func(what string) {
		t.Helper()
		p.until("the menu is open", clicked("document.querySelector('.more-menu:not([open]) summary')"))
		p.pressIn(".more-menu[open]", what)
	}
	more("Copy…")
	p.sees("Volumes and their data are not copied.")
	p.until("the values can be chosen", "document.querySelector('dialog input[name=copy-mode]')?.checked && !document.querySelector('dialog input[name=copy-pass]').checked")
	p.shot("project-copy")
	p.fill("dialog input[name=name]", "twin")
	p.confirm("Copy")
	p.until("the copy is open", "location.pathname === '/projects/admin/twin' && document.querySelector('h1').innerText === 'twin'")
	copied, err := h.Metadata(t.Context(), "twin", false)
	must(t, err)
	if strings.Join(copied.Missing, ",") != "pass" {
		t.Errorf("the copy lacks %v", copied.Missing)
	}
	more("Rename…")
	p.fill("dialog input[name=name]", "double")
	p.confirm("Rename")
	p.until("the new name is open", "location.pathname === '/projects/admin/double' && document.querySelector('h1').innerText === 'double'")
	more("Move…")
	p.sees("Instances keep running.")
	p.confirm("Move")
	p.until("the project is in the other organization", "location.pathname === '/projects/acme/double'")
	more("Delete…")
	p.until("it cannot be deleted yet", "document.querySelector('dialog button.primary')?.disabled")
	p.fill("dialog input[name=typed]", "double")
	p.shot("project-delete")
	p.confirm("Delete")
	p.until("the overview is open", "location.pathname === '/' && !document.querySelector('[data-project=double]')")
}

func testPeople(t *testing.T, h *devServer, p *tab) {
	t.Helper()
	p.t = t
	p.press("Admin")
	p.until("the organizations are shown", "document.querySelector('[data-organization=acme]')")
	p.fits("organizations")
	p.press("People")
	p.press("Create a user…")
	p.fill("dialog input[name=name]", "ann")
	p.confirm("Create")
	p.sees("mariposa user password ann")
	p.confirm("Close")
	h.fed(horse+"\n", "user", "password", "ann", "--stdin")
	p.fits("people")

	p.visit(h.URL() + "/admin/organizations/acme")
	p.press("Add a member…")
	p.fill("dialog input[name=user]", "ann")
	p.confirm("Add")
	p.until("ann is a member", "document.querySelector('[data-member=ann] select')?.value === 'member'")
	p.choose("[data-member=ann] select", "owner")
	p.sees("Owners are admins of all its projects")
	p.confirm("Change the role")
	p.until("ann is an owner", "document.querySelector('[data-member=ann] select')?.value === 'owner'")
	p.until("there is the button of the quota", clicked("[...document.querySelectorAll('.section-head')].find((e) => e.innerText.startsWith('Quota'))?.querySelector('button')"))
	p.fill("dialog input[name=instances]", "7")
	p.fill("dialog input[name=memory]", "1.5 GiB")
	p.confirm("Set")
	p.sees("of 1.5 GiB")
	p.fits("organization")
	if q, err := h.Quota(t.Context(), "acme"); err != nil || q.Limits.Instances == nil || *q.Limits.Instances != 7 || *q.Limits.Memory != 3<<29 {
		t.Errorf("the quota is %+v (%v)", q.Limits, err)
	}

	p.visit(h.URL() + "/projects/admin/shop/people")
	p.press("Add a person…")
	p.fill("dialog input[name=user]", "ann")
	p.choose("dialog select[name=role]", "deployer")
	p.confirm("Add")
	p.until("ann has a role", "document.querySelector('[data-member=ann]')?.innerText.includes('deployer')")
	p.closed()

	p.visit(h.URL() + "/admin/audit")
	p.fill("input[name=action]", "people")
	p.until("the audit log is filtered", "document.querySelectorAll('[data-action]').length === 1 && document.querySelector('[data-action=\"people.put\"]')?.innerText.includes('ann becomes deployer')")
	p.fill("input[name=action]", "")
	p.until("choices show what applies", "document.querySelector('select[name=span]').selectedOptions[0]?.text === 'Any time'")
	p.choose("select[name=outcome]", "failed")
	p.until("only failures are shown", "document.querySelector('[data-action=\"session.confirm\"]') && ![...document.querySelectorAll('[data-action]')].some((e) => !e.innerText.includes('failed'))")
	p.choose("select[name=outcome]", "")
	p.until("everything is shown", "document.querySelectorAll('[data-action]').length > 10")
	p.fits("audit")

	// Ann sees her own organizations, and not the users of the installation.
	ann := newTab(t)
	ann.visit(h.URL() + "/")
	ann.fill("input[name=user]", "ann")
	ann.fill("input[name=password]", horse)
	ann.press("Sign in")
	ann.press("Admin")
	ann.until("her organizations are shown", "document.querySelector('[data-organization=acme]') && document.querySelector('[data-organization=ann]')")
	if got := ann.eval("[...document.querySelectorAll('.tabs a')].map((a) => a.innerText).join()"); got != "Organizations,Audit" {
		t.Errorf("ann sees the pages %s", got)
	}
	ann.visit(h.URL() + "/admin/organizations/acme")
	ann.until("her organization is shown", "document.querySelector('[data-member=ann]')")
	if got := ann.eval("[...document.querySelectorAll('.section-head')].find((e) => e.innerText.startsWith('Quota')).innerText"); got != "Quota" {
		t.Errorf("ann can change %s", got)
	}
	ann.quiet()
}

func testAccount(t *testing.T, h *devServer, p *tab) {
	t.Helper()
	p.t = t
	other := newTab(t)
	other.visit(h.URL() + "/")
	other.fill("input[name=user]", "admin")
	other.fill("input[name=password]", horse)
	other.press("Sign in")
	other.until("a person is signed in", "document.querySelector('.you')")
	p.click(".you summary")
	p.press("Your account")
	p.until("three sessions are shown: this one, the other one, and that of the viewer", "document.querySelectorAll('.sessions li').length === 3")

	p.press("Create a token…")
	p.fill("dialog input[name=name]", "ci")
	p.choose("dialog select[name=role]", "deployer")
	p.choose("dialog select[name=expires]", "")
	p.confirm("Create")
	p.sees("It does not expire.")
	p.until("the token is shown", "document.querySelector('dialog .shown-once')")
	p.shot("account-token")
	token := p.eval("document.querySelector('dialog .shown-once').textContent")
	c, err := client.New(client.Options{URL: h.URL(), Token: token})
	must(t, err)
	if who, err := c.Whoami(t.Context()); err != nil || who.Token.Name != "ci" || who.Token.Role != "deployer" {
		t.Errorf("the token is that of %+v (%v)", who, err)
	}
	p.confirm("Close")
	p.until("the token is listed and not shown again", "document.querySelector('[data-token=ci]') && !document.body.innerHTML.includes("+quote(token)+")")
	p.fits("account")
	p.pressIn("[data-token=ci]", "Revoke…")
	p.sees("Programs that use this token are refused at once.")
	p.confirm("Revoke")
	p.until("the token is gone", "!document.querySelector('[data-token=ci]')")
	if _, err := c.Whoami(t.Context()); err == nil {
		t.Error("the revoked token still works")
	}

	p.pressIn(".sessions", "End…")
	p.confirm("End the session")
	p.until("two sessions are left", "document.querySelectorAll('.sessions li').length === 2 && !document.querySelector('[aria-label=Sessions] .section-head button')")
	other.sees("Use a token instead")
	p.pressIn("[aria-label=Password]", "Change…")
	const next = "staple battery horse"
	p.fill("dialog input[name=current]", "wrong horse battery")
	p.fill("dialog input[name=next]", next)
	p.fill("dialog input[name=again]", next)
	p.confirm("Change")
	p.sees("the current password is wrong")
	p.fill("dialog input[name=current]", horse)
	p.confirm("Change")
	p.sees("Your password is changed.")
	p.confirm("Close")
	other.fill("input[name=user]", "admin")
	other.fill("input[name=password]", next)
	other.press("Sign in")
	other.until("the new password works", "document.querySelector('.you')")
	signedIn(t, h.Client)
	p.visit(h.URL() + "/account")
	p.press("End all others…")
	p.sees("2 browsers have to sign in again")
	p.confirm("End them")
	p.until("one session is left", "document.querySelectorAll('.sessions li').length === 1")
	other.sees("Use a token instead")
	other.quiet("401")
}

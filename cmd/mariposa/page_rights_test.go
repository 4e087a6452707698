package main_test

import (
	"testing"

	"mariposa"
	"mariposa/contract"
)

// signedIn opens the page, and signs in as a person.
func (p *person) signedIn() *tab {
	p.h.t.Helper()
	return signedIn(p.h.t, p.api())
}

// While a page is open, its person gets and loses rights. The page shows what is left, and no button
// that would be refused.
func TestThePageFollowsTheRightsOfItsPerson(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("shop", pageManifest)
	h.create("bank", pageManifest)
	h.converged("shop", "web", 4)
	ann := h.hire("ann")
	p := ann.signedIn()
	p.sees("Nothing runs here yet")
	role := func(role mariposa.Role) { h.must(h.PutProjectUser(t.Context(), "shop", "ann", role)) }
	role(mariposa.RoleOperator)
	p.until("the project appears", "document.querySelector('[data-project=shop]') && !document.querySelector('[data-project=bank]')")
	p.visit(h.URL() + "/projects/admin/shop")
	p.until("an operator has buttons", cells("web", "ok")+" === 4 && "+button("Stop…"))
	role(mariposa.RoleViewer)
	p.until("a viewer has none", cells("web", "ok")+" === 4 && !document.querySelector('main input') && !("+button("Stop…")+")")
	h.must(h.RemoveProjectUser(t.Context(), "shop", "ann"))
	p.sees("There is no such project, or you cannot see it.")
	p.press("Projects")
	p.sees("Nothing runs here yet")
	h.must(h.UpdateUser(t.Context(), "ann", contract.UserChange{Admin: new(true)}, false))
	p.until("an admin sees everything", button("Nodes")+" && document.querySelectorAll('[data-project]').length === 2")
	p.quiet()
}

// When another person signs in, nothing is left of what the one before saw or typed.
func TestAnotherPersonAtThePageSeesNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("shop", pageManifest)
	h.converged("shop", "web", 4)
	bob := h.hire("bob")
	p := newTab(t)
	p.visit(h.URL() + "/projects/admin/shop")
	p.press("Use a token instead")
	p.fill("input[name=token]", h.admin)
	p.keys("Enter")
	p.until("the project is open", cells("web", "ok")+" === 4")
	p.press("Change") // the editor
	p.until("the editor is loaded", editorRoot+"?.querySelector('.cm-content')")
	p.click(".you summary")
	p.press("Your account")
	p.press("Create a token…")
	p.fill("dialog input[name=name]", "ci")
	p.confirm("Create")
	p.until("the token is shown", "document.querySelector('dialog .shown-once')")
	list, err := h.Tokens(t.Context(), "")
	must(t, err)
	for _, one := range list.Tokens {
		if one.Use == mariposa.TokenSession {
			h.must(h.RevokeToken(t.Context(), one.ID, true))
		}
	}
	p.until("the session has ended", "document.querySelector('form input[name=token]') && !document.querySelector('dialog')")
	p.fill("input[name=token]", bob.token) // as before: it asked for a token
	p.replaced(func() { p.keys("Enter") })
	p.until("bob is signed in", "document.querySelector('.you summary')?.innerText === 'bob'")
	p.until("the page begins anew", "location.pathname === '/account' && document.querySelector('main h1')")
	if p.eval("!!document.querySelector('dialog')") != "false" {
		t.Error("bob sees the sheet of the admin, with a token")
	}

	// A link for somebody else does not replace the session.
	link, _, err := h.CreateLink(t.Context(), "")
	must(t, err)
	p.visit(link)
	p.sees("you are signed in as bob, and this link is for admin: sign out first")
	p.confirm("Close")
	p.sees("bob")
	p.quiet("401", "409 (Conflict)")
}

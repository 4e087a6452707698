package main_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"testing"

	"mariposa/client"
	"mariposa/contract"
	"mariposa/listener/porttest"
)

// axe is axe-core 4.11.0 from npm, which checks pages for accessibility. It is under the MPL 2.0.
//
//go:embed testdata/axe-core-4.11.0.min.js
var axe string

// accessible checks what is shown in both color schemes. In the second one, only contrast can
// differ.
func (p *tab) accessible(what string) {
	p.t.Helper()
	for scheme, rules := range map[string]string{"light": "{type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}", "dark": "{type: 'rule', values: ['color-contrast']}"} {
		p.scheme(scheme)
		for _, v := range p.violations(rules) {
			p.t.Errorf("%s, %s: %s", what, scheme, strings.Join(v, "\n\t"))
		}
	}
	p.scheme("light")
}

// violations returns which rules what is shown violates, and where. Of long lists it looks at the
// beginning.
func (p *tab) violations(rules string) (found [][]string) {
	p.t.Helper()
	if p.eval("!window.axe") == "true" {
		p.command("Runtime.evaluate", map[string]any{"expression": axe}, nil)
	}
	got := p.eval("axe.run({include: document, exclude: ['li:nth-child(n+30)']}, {resultTypes: ['violations'], runOnly: " + rules + "}).then((r) => JSON.stringify(r.violations.map((v) => [v.id, v.help, ...v.nodes.slice(0, 3).map((n) => n.target.join(' ') + ': ' + n.html.slice(0, 200) + ' ' + (n.any[0]?.message ?? ''))])))")
	must(p.t, json.Unmarshal([]byte(got), &found))
	return found
}

// scheme sets the color scheme. Nothing moves, so that no color is seen half faded in.
func (p *tab) scheme(name string) {
	p.t.Helper()
	p.command("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}, {"name": "prefers-reduced-motion", "value": "reduce"}}}, nil)
}

// photograph checks that what is shown fits a phone and a screen, and keeps screenshots of it in
// both color schemes.
func (p *tab) photograph(name string) {
	p.t.Helper()
	p.look(360, 740, "light")
	if w := p.eval("String(document.documentElement.scrollWidth)"); w != "360" {
		p.t.Errorf("%s is %s px wide on a phone of 360 px", name, w)
	}
	p.shot("phone-" + name)
	p.look(1280, 800, "dark")
	if w := p.eval("String(document.documentElement.scrollWidth <= innerWidth)"); w != "true" {
		p.t.Errorf("%s is wider than a screen of 1280 px", name)
	}
	p.shot("dark-" + name)
	p.scheme("light")
	p.shot("light-" + name)
}

// evil is a text that runs a script if anything takes it for HTML.
const evil = `"'><img src=x onerror=attacked()><script>attacked()</script>`

// turned is a text that would show what follows it from right to left.
const turned = "\u202egnp.exe"

// links returns the addresses of links, without duplicates.
func (p *tab) links(selector string) []string {
	p.t.Helper()
	var all []string
	must(p.t, json.Unmarshal([]byte(p.eval("JSON.stringify([...new Set([...document.querySelectorAll("+quote(selector)+")].map((a) => a.pathname))])")), &all))
	return all
}

// Every page is accessible, fits a phone, says nothing to the console, and shows texts of users
// as text. Pages are found by their links.
func TestEveryPageIsAccessibleAndShowsTextAsText(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "2")
	h.must(h.CreateToken(t.Context(), contract.NewToken{Name: strings.ReplaceAll(evil, " ", "")}))
	h.create("reports", "services: {report: {compute_type: dummy, scale: 3, dummy: {fail_prop: \"yes\"}}}\n")
	mesh := "services:\n"
	for i := range 60 { // layers of ten
		mesh += fmt.Sprintf("  service-%02d: {compute_type: dummy, update: {min_healthy: 0}", i)
		if i >= 10 {
			mesh += fmt.Sprintf(", depends_on: [service-%02d, service-%02d]", i-10, i/10*10-10+(i+3)%10)
		}
		mesh += "}\n"
	}
	h.create("mesh", mesh)
	p := newTab(t)
	p.visit(h.URL() + "/")
	p.sees("Use a token instead")
	p.accessible("the sign-in page")
	p.photograph("sign-in")
	p.eval("document.querySelector('main').append(Object.assign(document.createElement('button'), {id: 'nameless'}))")
	if found := p.violations("['button-name']"); len(found) != 1 {
		t.Errorf("a button without a name is not found: %v", found)
	}
	attack := quote(evil)
	manifest := fmt.Sprintf(`services:
  web: {compute_type: dummy, scale: 6, depends_on: [db], update: {min_healthy: 0, canary: 1}, environment: {EVIL: %s, MODE: "{{ .meta.mode }}"}}
  db: {compute_type: dummy, update: {min_healthy: 0}}
  a-service-with-a-name-that-is-as-long-as-names-may-be-012345678: {compute_type: dummy, scale: 70, update: {min_healthy: 0}}
metadata:
  mode: {default: %s, description: %s}
`, attack, attack, attack)
	h.create("shop", manifest)
	h.converged("shop", "web", 6)
	h.must(h.UpdateManifest(t.Context(), "shop", []byte(strings.Replace(manifest, "MODE:", "STYLE:", 1)), client.Update{Force: true, Message: evil + turned}))
	link, _, err := h.CreateLink(t.Context(), "")
	must(t, err)
	p.command("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": "window.attacks = 0; window.attacked = () => { attacks++ }"}, nil)
	p.visit(link)
	p.until("the canary is held", "document.querySelector('[data-project=shop][data-status=held]')")
	shop := "/projects/admin/shop"
	p.visit(h.URL() + shop)
	p.until("the tabs are there", "document.querySelector('.tabs a')")
	pages := append(p.links("header nav a, .tabs a"), "/projects/new", "/projects/admin/nothing")
	for _, at := range pages {
		p.look(1280, 800, "light")
		p.visit(h.URL() + at)
		p.until(at+" is loaded", "document.querySelector('main h1') && !document.querySelector('main').innerText.includes('Loading')")
		name := strings.Trim(strings.ReplaceAll(strings.TrimPrefix(at, "/projects/admin/"), "/", "-"), "-")
		if name == "" {
			name = "overview"
		}
		p.accessible(at)
		p.photograph(name)
		p.eval("window.scrollTo(0, 0)")
		if at == shop {
			p.look(1280, 800, "light")
			p.click("[data-service=web] .grid .cell")
			p.until("the panel is open", "document.querySelector('.panel details')")
			p.eval("document.querySelector('.panel details').open = true")
			p.sees(evil)
			p.accessible("the panel of an instance")
			p.photograph("panel")
			p.keys("Escape")
			p.press("Freeze…")
			p.until("the sheet is open", "document.querySelector('dialog[open]')")
			p.accessible("a sheet")
			p.photograph("sheet")
			p.confirm("Keep as it is")
		}
		if path.Base(at) == "versions" {
			p.sees(evil + "\ufffdgnp.exe")
		}
	}
	p.look(1280, 800, "light")
	p.visit(h.URL() + "/projects/admin/mesh/graph")
	p.until("all services and a map are there", "document.querySelectorAll('.gnode').length === 60 && document.querySelectorAll('.map rect').length === 61")
	p.eval("document.querySelector('.graph').scrollTo(1e6, 0)")
	p.until("the map shows what is visible", "Number(document.querySelector('.map .view').getAttribute('x')) > 0 || document.querySelector('.graph').scrollWidth <= document.querySelector('.graph').clientWidth")
	p.accessible("a large graph")
	p.photograph("mesh-graph")
	p.visit(h.URL() + "/projects/" + evilPath)
	p.sees("There is no such project")
	p.fill("#search", evil)
	p.sees("Nothing found")
	if got := p.eval("String(attacks) + document.querySelectorAll('img, script:not([src]), main script').length"); got != "00" {
		t.Errorf("text of users became part of the page: %s", got)
	}
	p.quiet()
}

// evilPath is evil as a part of an address.
const evilPath = `%3Cimg%20src=x%20onerror=attacked()%3E/%22%3E%3Cscript%3Eattacked()%3C%2Fscript%3E`

// The page of a project shows its load balancers with their members.
func TestThePageShowsLoadBalancers(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", balanced(2, porttest.Reserve(t), "one", "", ""))
	p := signedIn(t, h.Client)
	p.visit(h.URL() + "/projects/admin/shop")
	p.until("both members are up", "[...document.querySelectorAll('[data-balancer=front] [data-member]')].filter((m) => m.innerText.includes('up')).length === 2")
	p.until("connections are counted", "[...document.querySelectorAll('[data-balancer=front] [data-member] td:last-child')].every((c) => c.innerText === '0')")
	p.accessible("load balancers")
	p.photograph("balancers")
	h.must(h.Scale(t.Context(), "shop", map[string]string{"web": "1"}))
	p.until("one member is left", "document.querySelectorAll('[data-balancer=front] [data-member]').length === 1")
	p.quiet()
}

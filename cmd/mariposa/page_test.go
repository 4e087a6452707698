package main_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// signedIn opens the page, and signs in as the caller of a client.
func signedIn(t *testing.T, c *client.Client) *tab {
	t.Helper()
	p := newTab(t)
	link, _, err := c.CreateLink(t.Context(), "")
	must(t, err)
	p.visit(link)
	p.until("a person is signed in", "document.querySelector('.you')")
	return p
}

func TestAPersonSignsInToThePageAndOut(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	p := newTab(t)
	p.visit(h.URL() + "/")
	p.sees("Use a token instead") // not a 401
	p.quiet()

	// The link that dev prints works once.
	link := ""
	h.await("dev prints a link", func() bool {
		link = regexp.MustCompile(`http://\S+/#sign-in=\S+`).FindString(h.out.String())
		return link != ""
	})
	p.visit(link)
	p.sees("Nothing runs here yet")
	if at := p.eval("location.href"); at != h.URL()+"/" {
		t.Errorf("the address is %s: the secret of the link stays in the history", at)
	}
	if p.eval("document.cookie") != "" {
		t.Errorf("scripts can read the cookie")
	}
	p.reload()
	p.sees("Nothing runs here yet")
	p.quiet()
	p.click(".you summary")
	p.press("Sign out")
	p.sees("Use a token instead")
	p.reload()
	p.sees("Use a token instead")
	p.quiet()
	p.visit(link)
	p.sees("this link was used before")

	// With a password.
	h.fed("correct horse battery\n", "user", "password", "admin", "--stdin")
	p.fill("input[name=user]", "admin")
	p.fill("input[name=password]", "wrong horse battery")
	p.press("Sign in")
	p.sees("the user name or the password is wrong")
	p.fill("input[name=password]", "correct horse battery")
	p.keys("Enter")
	p.sees("Nothing runs here yet")

	// Another password ends the session while the page is open.
	h.fed("staple battery horse\n", "user", "password", "admin", "--stdin")
	p.sees("Use a token instead")
	p.press("Use a token instead")
	p.fill("input[name=token]", h.admin)
	p.keys("Enter")
	p.sees("Nothing runs here yet")
	p.click(".you summary")
	p.press("Sign out")
	p.sees("Use a password instead")
	p.visit(strings.TrimSpace(h.ok("open")))
	p.sees("Nothing runs here yet")
	p.quiet("401") // of the refused attempts and the ended session
}

const pageManifest = `services:
  web: {compute_type: dummy, scale: 4, update: {min_healthy: 0}, environment: {NOTE: "<img src=x onerror=alert(1)>"}}
  db: {compute_type: dummy, update: {min_healthy: 0}}
`

// cells counts the cells of a service by the names of their shapes.
func cells(service, shape string) string {
	return "document.querySelectorAll('[data-service=" + service + "] .grid .cell." + shape + "').length"
}

func TestThePageFollowsAProject(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "2")
	p := signedIn(t, h.Client)
	p.sees("Nothing runs here yet")
	h.create("shop", pageManifest)
	p.until("the project appears and converges", "document.querySelector('[data-project=shop][data-status=converged]')")
	p.shot("overview")

	// By keyboard alone: search, open, and look at an instance.
	p.keys("/")
	p.until("the search has the focus", "document.activeElement.id === 'search'")
	p.command("Input.insertText", map[string]any{"text": "sho"}, nil)
	p.keys("Enter")
	p.until("the project is open", "location.pathname === '/projects/admin/shop' && "+cells("web", "ok")+" === 4")
	p.eval("document.querySelector('[data-service=web] .grid').focus()")
	p.keys("ArrowRight", "ArrowRight", "Enter")
	p.sees("A dummy has no output.")
	p.until("the environment is text", "document.querySelector('.panel details pre')?.textContent.includes('<img src=x') && !document.querySelector('img')")
	p.keys("Escape")
	p.until("the panel is closed", "!document.querySelector('.panel')")

	// A killed instance is seen and replaced.
	list, err := h.AllInstances(t.Context(), client.InstanceFilter{Project: "shop", Service: "web"})
	must(t, err)
	p.kill(h, list.Instances[0])
	p.until("the instance is replaced", cells("web", "ok")+" === 4")

	p.showsUnmanaged(h)
	p.linksReasons(h)

	// Scale: the page says what it will do first.
	p.click("[data-service=web] [aria-label='One more']")
	p.sees("1 instance will start.")
	p.press("Scale to 5")
	p.until("there are five", cells("web", "ok")+" === 5")
	p.fill("[data-service=web] input", "2")
	p.sees("3 instances will stop.")
	p.keys("Enter")
	p.until("there are two", cells("web", "ok")+" === 2 && document.querySelectorAll('[data-service=web] .grid .cell').length === 2")

	// Freeze, thaw, stop and start, each after a sheet that says what happens.
	p.press("Freeze…")
	p.sees("Mariposa changes nothing in this project until you thaw it")
	p.confirm("Freeze")
	p.until("the project is frozen", "document.querySelectorAll('[data-service][data-status=frozen]').length === 2")
	p.press("Thaw…")
	p.confirm("Thaw")
	p.until("the project is thawed", "document.querySelectorAll('[data-service][data-status=converged]').length === 2")
	p.press("Stop…")
	p.sees("3 instances will stop, dependents first.")
	p.confirm("Keep as it is")
	p.until("the sheet is closed", "!document.querySelector('dialog')")
	p.press("Stop…")
	p.confirm("Stop")
	p.until("nothing runs", cells("web", "ok")+" === 0 && "+button("Start…"))
	p.press("Start…")
	p.confirm("Start")
	p.until("it runs again", cells("web", "ok")+" === 2 && "+cells("db", "ok")+" === 1")
	p.quiet()
}

// showsUnmanaged checks that instances which belong to no service are shown, and what can be done with them.
func (p *tab) showsUnmanaged(h *devServer) {
	p.t.Helper()
	h.must(h.CreateInstance(p.t.Context(), "shop", "tool", map[string]any{"compute_type": "dummy"}))
	state := func(shape string) string {
		return "document.querySelector('[data-unmanaged=tool] .cell." + shape + "')"
	}
	p.until("it is listed", state("ok"))
	p.photograph("unmanaged")
	p.click("[data-unmanaged=tool] button")
	p.pressIn(".panel", "Stop…")
	p.confirm("Stop")
	p.until("it is stopped", state("off"))
	p.pressIn(".panel", "Start…")
	p.confirm("Start")
	p.until("it runs again", state("ok"))
	p.pressIn(".panel", "Remove…")
	p.confirm("Remove")
	p.until("it is gone", "!document.querySelector('[data-unmanaged]')")
	p.closed() // else the key would close the sheet
	p.keys("Escape")
	p.until("the panel is closed", "!document.querySelector('.panel')")
}

// linksReasons checks that reasons lead to what they name, and to nothing else.
func (p *tab) linksReasons(h *devServer) {
	p.t.Helper()
	h.create("slow", "services: {queue: {compute_type: dummy, dummy: {wait_secs: 600}}, web: {compute_type: dummy, depends_on: [queue]}, que: {compute_type: dummy}, ing: {compute_type: dummy}}\n")
	p.visit(h.URL() + "/projects/admin/slow")
	links := "[...document.querySelectorAll('[data-service=web] .reason a')]"
	p.until("the reason names what is waited for", links+".some((a) => a.innerText === 'queue' || a.innerText.startsWith('queue.1'))")
	p.shot("links")
	if got := p.eval(links + ".filter((a) => !/^queue(\\.1.*)?$/.test(a.innerText)).map((a) => a.innerText).join()"); got != "" {
		p.t.Errorf("parts of words are links: %s", got)
	}
	p.visit(h.URL() + "/projects/admin/slow/graph")
	p.until("nodes of the graph have cells", "document.querySelector('[data-gnode=queue] .cell.start') && document.querySelector('[data-gnode=que] .cell.ok')")
	p.photograph("graph-cells")
	p.look(1280, 800, "light")
	p.until("the reason in the graph leads to the service", clicked("document.querySelector('.waiting a[data-seek*=queue], .waiting a[data-instance]')"))
	p.until("it is shown", "document.querySelector('.panel h2')?.innerText.startsWith('queue.1') || location.pathname === '/projects/admin/slow' && document.querySelector('[data-service=queue]')")
	p.visit(h.URL() + "/projects/admin/shop")
	p.until("the project is open", cells("web", "ok")+" === 4")
}

// kill kills an instance, and returns how long it takes until the page shows that.
func (p *tab) kill(h *devServer, i contract.Instance) time.Duration {
	p.t.Helper()
	p.eval(`window.gone = 0; new MutationObserver((_, o) => { if (!document.querySelector('.cell.ok[data-name="` + i.Name + `"]')) { window.gone = Date.now(); o.disconnect() } })
		.observe(document.querySelector('[data-service=` + i.ServiceName + `] .grid'), {subtree: true, attributes: true, childList: true})`)
	killed := time.Now()
	h.must(h.ActOnInstance(p.t.Context(), i.ID, "crash"))
	p.until("the page shows that "+i.Name+" is gone", "window.gone")
	return time.Duration(int64(atoi(p.eval("String(window.gone)")))-killed.UnixMilli()) * time.Millisecond
}

// A killed instance is visible within 300 ms. On a busy machine, the server and the browser may
// get no processor for longer, so the best of many attempts counts.
func TestThePageShowsAKilledInstanceAtOnce(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("shop", "services: {web: {compute_type: dummy, scale: 20, reschedule: {after: 0}, update: {min_healthy: 0}}}\n")
	h.converged("shop", "web", 20)
	p := signedIn(t, h.Client)
	p.visit(h.URL() + "/projects/admin/shop")
	p.until("twenty run", cells("web", "ok")+" === 20")
	list, err := h.AllInstances(t.Context(), client.InstanceFilter{Project: "shop"})
	must(t, err)
	var all []time.Duration
	for _, i := range list.Instances {
		took := p.kill(h, i)
		if all = append(all, took); took <= 300*time.Millisecond {
			t.Logf("visible after %v", all)
			p.quiet()
			return
		}
		p.until("it is replaced", cells("web", "ok")+" === 20")
	}
	t.Errorf("no killed instance was visible within 300 ms: %v", all)
}

func TestThePageContinuesRevertsAndCancelsRollouts(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "2")
	h.create("shop", "services: {web: {compute_type: dummy, scale: 3, update: {min_healthy: 0}}}\n")
	h.converged("shop", "web", 3)
	p := signedIn(t, h.Client)
	p.visit(h.URL() + "/projects/admin/shop")
	p.until("three run", cells("web", "ok")+" === 3")
	update := func(environment, more string) {
		h.must(h.UpdateManifest(t.Context(), "shop", []byte("services: {web: {compute_type: dummy, scale: 3, environment: {V: "+environment+"}, update: {min_healthy: 0"+more+"}}}\n"), client.Update{Force: true}))
	}
	old := "document.querySelectorAll('[data-service=web] .grid .cell.ok.old').length"
	update("two", ", canary: 1")
	p.until("the canary is held", "document.querySelector('[data-service=web][data-status=held]') && "+old+" === 2")
	p.shot("held")
	p.press("Continue by 1")
	p.sees("Then the rollout is held again, with 1 instance left.")
	p.confirm("Continue by 1")
	p.until("one is left", "document.querySelector('[data-service=web][data-status=held]') && "+old+" === 1")
	p.press("Revert")
	p.confirm("Revert")
	p.until("it is reverted", "document.querySelector('[data-service=web][data-status=converged]') && "+old+" === 0 && "+cells("web", "ok")+" === 3")
	update("three", ", canary: 1")
	p.until("the next canary is held", "document.querySelector('[data-service=web][data-status=held]')")
	p.press("Continue")
	p.confirm("Continue")
	p.until("it is rolled out", "document.querySelector('[data-service=web][data-status=converged]') && "+old+" === 0")

	// A rollout that fails too often stops, and can be tried again or reverted.
	h.must(h.UpdateManifest(t.Context(), "shop", []byte("services: {web: {compute_type: dummy, scale: 3, dummy: {fail_prop: \"yes\"}, update: {min_healthy: 0}}}\n"), client.Update{Force: true}))
	const stopped = "document.querySelector('[data-service=web][data-status=failed]')"
	p.until("the rollout has stopped", stopped)
	p.press("Retry")
	p.sees("Mariposa tries again to bring web to version ")
	p.confirm("Retry")
	p.until("it is tried again", "!"+stopped)
	p.until("the rollout has stopped again", stopped)
	p.press("Revert")
	p.confirm("Revert")
	p.until("the last good version is back", "document.querySelector('[data-service=web][data-status=converged]') && "+cells("web", "ok")+" === 3")

	// A rollout that takes long is cancelled; the sheet says what happens, and then how to go on.
	h.must(h.UpdateManifest(t.Context(), "shop", []byte("services: {web: {compute_type: dummy, scale: 3, dummy: {wait_secs: 600}}}\n"), client.Update{Force: true}))
	p.press("Steps")
	p.until("the steps are shown", "document.querySelector('.steps li')")
	p.press("Cancel…")
	p.sees("After that, ")
	p.shot("cancel")
	p.confirm("Cancel the task")
	p.sees("The task is cancelled.")
	p.sees("mariposa ")
	p.confirm("Close")
	p.until("the project is frozen", "document.querySelector('[data-service=web][data-status=frozen]')")
	p.quiet()
}

// Nobody sees a button that would be refused.
func TestThePageShowsTheButtonsOfARole(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("shop", pageManifest)
	h.converged("shop", "web", 4)
	h.must(h.CreateInstance(t.Context(), "shop", "tool", map[string]any{"compute_type": "dummy"}))
	for role, want := range map[string]struct{ tabs, buttons, fields, unmanaged string }{
		"viewer": {"", "tool,Close", "0", "Close"}, "deployer": {"Change", "Copy…,tool,Close", "0", "Close"},
		"operator": {"Change", "Freeze…,Stop…,Copy…,−,+,−,+,tool,Restart…,Replace…,Close", "2", "Close,Restart…,Stop…,Remove…"},
	} {
		made, err := h.CreateToken(t.Context(), contract.NewToken{Name: role, Role: mariposa.Role(role)})
		must(t, err)
		c, err := client.New(client.Options{URL: h.URL(), Token: made.Secret})
		must(t, err)
		p := signedIn(t, c)
		p.visit(h.URL() + "/projects/admin/shop")
		p.until("all run", cells("web", "ok")+" === 4 && document.querySelector('[data-unmanaged=tool] .cell.ok')")
		p.click("[data-service=web] .grid .cell")
		p.sees("Last log lines")
		p.until("menus are open", "[...document.querySelectorAll('main details')].every((d) => (d.open = true))")
		buttons := p.eval("[...document.querySelectorAll('main button')].map((b) => b.innerText).join()")
		sorted := func(list string) string {
			return strings.Join(slices.Sorted(slices.Values(strings.Split(list, ","))), ",")
		}
		if sorted(buttons) != sorted(want.buttons) {
			t.Errorf("a %s sees the buttons %s", role, buttons)
		}
		if got := p.eval("String(document.querySelectorAll('main input').length)"); got != want.fields {
			t.Errorf("a %s sees %s fields", role, got)
		}
		if got := p.eval("[...document.querySelectorAll('.tabs a')].map((a) => a.innerText).filter((t) => t === 'Change').join()"); got != want.tabs {
			t.Errorf("a %s sees the tabs %q", role, got)
		}
		p.click("[data-unmanaged=tool] button")
		p.until("the instance has the buttons of a "+role, "document.querySelector('.panel h2').innerText === 'tool' && [...document.querySelectorAll('.panel button')].map((b) => b.innerText).join() === "+quote(want.unmanaged))
		if want.tabs == "" { // the editor would ask the server for plans
			p.visit(h.URL() + "/projects/admin/shop/change")
			p.sees("You need the deployer role to change this project.")
		}
		p.quiet()
	}
}

func TestThePageFitsPhonesBothSchemesAndTheKeyboard(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "3")
	h.create("shop", strings.ReplaceAll(pageManifest, "scale: 4", "scale: 80"))
	h.create("reports", "services: {report: {compute_type: dummy, scale: 3, dummy: {fail_prop: \"yes\"}}}\n")
	h.create("wide", "services: {web: {compute_type: dummy, scale: 60, update: {min_healthy: 0}}}\n")
	h.converged("shop", "web", 80)
	h.converged("wide", "web", 60)
	p := signedIn(t, h.Client)
	p.until("trouble comes first", "document.querySelector('.row')?.dataset.project === 'reports'")
	p.sees("1 needs attention")
	for _, c := range []struct{ path, shows string }{
		{"/", "[data-project=reports] .cell.fail"}, {"/projects/admin/shop", "[data-service=web] .cell.ok"}, {"/queue", ".task"}, {"/nodes", "[data-node=dummy-3]"}, {"/events", ".events li"},
	} {
		for _, scheme := range []string{"light", "dark"} {
			p.look(360, 740, scheme)
			p.visit(h.URL() + c.path)
			p.until(c.path+" is shown", "document.querySelector("+quote(c.shows)+")")
			if w := p.eval("String(document.documentElement.scrollWidth)"); w != "360" {
				t.Errorf("%s is %s px wide on a phone of 360 px", c.path, w)
			}
		}
	}
	p.shot("phone")
	p.look(1280, 800, "dark")
	p.visit(h.URL() + "/")
	strip := "[...document.querySelectorAll('[data-project=wide] .slots .cell')]"
	p.until("60 instances are on one line", strip+".length === 60 && new Set("+strip+".map((c) => c.offsetTop)).size === 1 && "+strip+"[0].offsetWidth >= 4")
	p.shot("strip")
	for key, path := range map[string]string{"q": "/queue", "n": "/nodes", "e": "/events", "p": "/"} {
		p.keys("g", key)
		p.until("g "+key+" opens "+path, "location.pathname === "+quote(path))
	}
	p.keys("g", "p", "j", "j")
	p.until("the second project is marked", "document.querySelector('.row.at')?.dataset.project === 'shop'")
	p.keys("?")
	p.sees("Keyboard shortcuts")
	p.keys("Escape")
	p.until("the sheet is closed", "!document.querySelector('dialog')")
	p.keys("Enter")
	p.until("the project is open", "location.pathname === '/projects/admin/shop'")
	p.visit(h.URL() + "/projects/admin/nothing")
	p.sees("There is no such project")
	p.quiet()
}

// A page that is open while the server is killed says so, and goes on with the next one.
func TestThePageOutlivesItsServer(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("shop", pageManifest)
	h.converged("shop", "web", 4)
	p := signedIn(t, h.Client)
	p.visit(h.URL() + "/projects/admin/shop")
	p.until("four run", cells("web", "ok")+" === 4")
	h.kill()
	p.sees("The connection to the server is lost")
	at := strings.TrimPrefix(h.URL(), "http://")
	h.args = append(h.args, "--listen", at) // the last one counts
	h.start()
	p.until("it is live again", "!document.querySelector('.problem')")
	h.must(h.Scale(t.Context(), "shop", map[string]string{"web": "5"}))
	p.until("five run", cells("web", "ok")+" === 5")
	p.quiet("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "503", "ERR_SOCKET_NOT_CONNECTED")
}

// A person creates a project by pasting a manifest, changes it, and goes back.
func TestThePageCreatesAndChangesProjects(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	p := signedIn(t, h.Client)
	p.press("Paste a manifest")
	p.fill("input[name=name]", "shop")
	const manifest = "services:\n  db: {compute_type: dummy, update: {min_healthy: 0}}\n  web:\n    compute_type: dummy\n    scale: 2\n    depends_on: [db]\n" +
		"    environment: {MODE: \"{{ .meta.mode }}\"}\n    update: {min_healthy: 0}\nmetadata: {mode: {required: true}}\n"
	p.paste(strings.Replace(manifest, "scale:", "scael:", 1))
	p.sees("Line 5: services.web.scael unknown key")
	p.until("the line is marked", editorRoot+".querySelector('.cm-gutterElement.wrong')?.textContent.trim() === '5' && "+editorRoot+".querySelector('.cm-line .wrong')?.title.includes('unknown key')")
	p.until("a faulty manifest cannot be submitted", "document.querySelector('button.primary').disabled")
	p.shot("editor")

	// By keyboard: go to the fault, change the line, and leave with Escape and Tab.
	p.press("Line 5")
	p.keys("?", "Tab") // they belong to the text
	p.until("keys change the text", editorText+".includes('      ?scael: 2')")
	p.keys("Escape", "Tab")
	p.until("the focus has left the editor", "document.activeElement && document.activeElement.id !== 'manifest'")
	p.paste(manifest)
	p.sees("The manifest needs these values.")
	p.fill("textarea[name=value-mode]", "calm")
	p.eval("document.querySelector('textarea[name=value-mode]').blur()")
	p.press("Create: start 3")
	p.until("the project runs", "location.pathname === '/projects/admin/shop' && "+cells("web", "ok")+" === 2")

	p.press("Graph")
	p.until("the graph is in layers", "parseInt(document.querySelector('[data-gnode=web]')?.style.left) > parseInt(document.querySelector('[data-gnode=db]')?.style.left) && document.querySelector('.canvas path')")
	p.press("Change")
	p.until("the manifest is there", editorRoot+"?.querySelector('.cm-content') && "+editorText+" === "+quote(manifest))
	p.until("it has colors", "new Set([..."+editorRoot+".querySelectorAll('.cm-line span')].map((e) => getComputedStyle(e).color)).size >= 3")
	p.paste(strings.Replace(manifest, "MODE:", "STYLE:", 1))
	p.sees("web is replaced, 2 instances")
	p.fill("input[name=message]", "<b>rename</b> it")
	p.press("Deploy: start 2, stop 2")
	p.until("the page of the project is back", "location.pathname === '/projects/admin/shop'")
	p.press("Versions")
	p.sees("<b>rename</b> it")
	p.until("the second version is in force", "document.querySelector('[data-version=\"2\"] .tag')?.innerText === 'in force'")
	p.press("Changes")
	p.sees("environment.STYLE")
	h.converged("shop", "web", 2)
	p.press("Revert to this…")
	p.confirm("Revert")
	p.until("the third version is in force", "document.querySelector('[data-version=\"3\"] .tag')?.innerText === 'in force'")
	for _, path := range []string{"change", "graph", "versions"} {
		p.look(360, 740, "light")
		p.visit(h.URL() + "/projects/admin/shop/" + path)
		p.until(path+" is shown", "document.querySelector('#manifest, [data-gnode=web], [data-version=\"3\"]')")
		if w := p.eval("String(document.documentElement.scrollWidth)"); w != "360" {
			t.Errorf("%s is %s px wide on a phone of 360 px", path, w)
		}
	}
	p.quiet("400 (Bad Request)") // of the faulty manifest
}

// The lines of all instances of a service are shown as they are written, as text.
func TestThePageFollowsLogs(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", `services:
  talk: {compute_type: process, scale: 2, update: {min_healthy: 0}, command: [sh, -c, 'echo "<img src=x onerror=alert(1)>"; printf "\033[31mred\033[0m \033]0;title\007here \377!\n"; n=0; while :; do n=$((n+1)); echo line $n; sleep 1; done']}
`)
	h.converged("shop", "talk", 2)
	p := signedIn(t, h.Client)
	p.visit(h.URL() + "/projects/admin/shop/logs")
	p.sees("<img src=x onerror=alert(1)>")
	p.until("both instances are heard", "new Set([...document.querySelectorAll('.lines .quiet')].map((e) => e.innerText)).size === 2 && !document.querySelector('img')")
	texts := "[...document.querySelectorAll('.lines .text')].map((e) => e.innerText)"
	p.until("new lines appear, each once", "(() => { const all = "+texts+".filter((t) => t === 'line 4'); return all.length === 2 })()")
	p.until("colors and titles are left out, and bytes that are no text are replaced", texts+".includes('red here \ufffd!')")
	if got := p.eval(texts + ".filter((t) => t === 'line 1').length"); got != "2" {
		t.Errorf("line 1 is shown %s times for two instances", got)
	}
	p.shot("logs")
	p.fill(".logs input[type=search]", "LINE 2")
	p.until("lines are filtered", texts+".every((t) => t.includes('line 2')) && "+texts+".length >= 2")
	p.look(360, 740, "dark")
	if w := p.eval("String(document.documentElement.scrollWidth)"); w != "360" {
		t.Errorf("logs are %s px wide on a phone of 360 px", w)
	}
	p.visit(h.URL() + "/projects/admin/shop")
	p.click("[data-service=talk] .grid .cell")
	p.until("the panel shows the log", "document.querySelector('.panel .log')?.textContent.includes('line 1')")
	p.quiet()
}

// A drain says first which instances would move.
func TestThePageDrainsNodes(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "2")
	h.create("shop", pageManifest)
	h.converged("shop", "web", 4)
	p := signedIn(t, h.Client)
	p.keys("g", "n")
	p.click("[data-node=dummy-1] .acts button")
	p.until("the sheet says what will happen", "document.querySelector('dialog[open]')?.innerText.includes('The node gets no new instances until you undrain it.')")
	p.confirm("Drain")
	p.until("the node is drained", "document.querySelector('[data-node=dummy-1]')?.innerText.includes('drained') && document.querySelector('[data-node=dummy-1]').innerText.includes('0 instances')")
	p.press("Undrain…")
	p.confirm("Undrain")
	p.until("the node takes instances again", "document.querySelector('[data-node=dummy-1] .acts button')?.innerText === 'Drain…'")
	p.quiet()
}

// The timeline shows who was in a slot before, and how that ended.
func TestThePageShowsATimeline(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("shop", pageManifest+`  talk:
    compute_type: process
    command: [sleep, "1000"]
    healthchecks: [{type: command, command: [sh, -c, "test ! -e sick || { echo it is sick; exit 1; }"], poll: 0.2, unhealthy_poll: 0.1, timeout: 20, retries: 1}]
`)
	h.converged("shop", "talk", 1)
	p := signedIn(t, h.Client)
	p.visit(h.URL() + "/projects/admin/shop/timeline")
	p.until("every slot has a bar", "document.querySelectorAll('[data-slot] .tbar').length === 6")
	p.until("the task has a bracket", "document.querySelector('.bracket.completed .words')?.innerText.startsWith('start')")
	list, err := h.AllInstances(t.Context(), client.InstanceFilter{Project: "shop", Service: "web"})
	must(t, err)
	victim := list.Instances[0]
	h.must(h.ActOnInstance(t.Context(), victim.ID, "crash"))
	p.until("the slot has a failed bar, a mark and its successor",
		"(() => { const bars = [...document.querySelectorAll('[data-slot="+quote(victim.Slot)+"] .tbar')]; return bars.length === 2 && bars[0].classList.contains('failed') && !bars[1].classList.contains('failed') && document.querySelector('[data-slot="+quote(victim.Slot)+"] .tmark.fail') })()")
	h.ok("instance", "exec", "-j", "shop", "talk.1", "--", "touch", "sick")
	p.until("a failed check has a mark with its reason", "document.querySelector('.tmark.ill')?.title.includes('it is sick')")
	p.shot("timeline")
	p.showsChecks(h)
	p.visit(h.URL() + "/projects/admin/shop/timeline")
	p.until("the timeline is there again", "document.querySelector('[data-slot] .tbar')")

	// The wheel zooms at the pointer, dragging moves, and so do keys.
	span := "Number(document.querySelector('.tlanes').dataset.span)"
	isNow := "document.querySelector('.tlanes').hasAttribute('data-now')"
	before := p.eval(span)
	mouse := func(kind string, x int, more map[string]any) {
		p.t.Helper()
		params := map[string]any{"type": kind, "x": x, "y": p.number("document.querySelector('.ticks .lane').getBoundingClientRect().y + 10"), "button": "left", "buttons": 1, "clickCount": 1}
		for k, v := range more {
			params[k] = v
		}
		p.command("Input.dispatchMouseEvent", params, nil)
	}
	p.trying("the wheel zooms in", span+" < "+before, func() {
		mouse("mouseWheel", 600, map[string]any{"deltaX": 0, "deltaY": -300, "buttons": 0, "button": "none"})
	})
	p.trying("dragging shows what was earlier", "!"+isNow, func() {
		mouse("mousePressed", 400, nil)
		mouse("mouseMoved", 500, nil)
		mouse("mouseMoved", 700, nil)
		mouse("mouseReleased", 700, nil)
	})
	p.press("Back to now")
	p.until("now is at the right edge", isNow+" && document.querySelector('.ticks .now').innerText === 'now'")
	p.eval("document.querySelector('.tlanes').focus()")
	p.keys("ArrowLeft")
	p.until("an arrow moves", "!"+isNow)
	p.keys("End", "-", "-")
	p.until("keys zoom out", isNow+" && "+span+" > "+before)
	p.keys("Home")
	p.until("everything is shown", span+" === Number(document.querySelector('.tlanes').dataset.fits)")
	p.press("6 h")
	p.until("the range is longer", "document.querySelector('[aria-pressed=true]')?.innerText === '6 h' && document.querySelectorAll('[data-slot] .tbar').length >= 7")
	p.eval("[...document.querySelectorAll('[data-slot] .tbar:not(.failed)')][0].click()")
	p.sees("Last log lines")
	p.look(360, 740, "dark")
	if w := p.eval("String(document.documentElement.scrollWidth)"); w != "360" {
		t.Errorf("the timeline is %s px wide on a phone of 360 px", w)
	}
	p.quiet()
}

// showsChecks checks that the panel of an instance follows the results of its health checks.
func (p *tab) showsChecks(h *devServer) {
	p.t.Helper()
	p.visit(h.URL() + "/projects/admin/shop")
	p.until("the successor runs, too", cells("talk", "ok")+" === 1")
	p.click("[data-service=talk] .grid .cell.ok")
	check := "document.querySelector('.panel [data-check]')"
	p.until("its check passes", "/command sh.*\\n?.*healthy for \\d+ (s|min)/s.test("+check+"?.innerText)")
	name := p.eval("document.querySelector('.panel h2').innerText")
	h.ok("project", "freeze", "shop", "--wait") // nothing replaces it
	h.ok("instance", "exec", "-j", "shop", name, "--", "touch", "sick")
	p.until("its check fails, with the reason", check+"?.querySelector('.cell.ill') && "+check+".innerText.includes('unhealthy for') && "+check+".querySelector('.reason').innerText.includes('it is sick')")
	p.accessible("the results of health checks")
	p.photograph("checks")
	p.look(1280, 800, "light")
}

// A person works in a shell inside an instance. It ends with its command, and says so; it also says
// when the connection breaks.
func TestThePageOpensAShell(t *testing.T) {
	t.Parallel()
	h, name := sleeping(t)
	made, err := h.CreateToken(t.Context(), contract.NewToken{Name: "screen", Role: "deployer"})
	must(t, err)
	deployer, err := client.New(client.Options{URL: h.URL(), Token: made.Secret})
	must(t, err)
	p := signedIn(t, deployer)
	p.visit(h.URL() + "/projects/admin/shop")
	p.click("[data-service=web] .grid .cell.ok")
	p.sees("Last log lines")
	if p.eval("!!("+button("Open a shell")+")") != "false" {
		t.Error("a deployer sees a button for a shell, which would be refused")
	}

	p = signedIn(t, h.Client)
	p.visit(h.URL() + "/projects/admin/shop")
	p.click("[data-service=web] .grid .cell.ok")
	p.press("Open a shell")
	p.sees("Confirm that it is you.") // a link is no proof, and commands can read secrets
	p.fill("input[name=proof]", h.admin)
	p.confirm("Confirm")
	ready := "document.querySelector('.shell[data-phase=open]') && document.activeElement?.closest('.screen')"
	p.until("the shell has the focus", ready)
	rows := "document.querySelector('.xterm-rows').innerText.replaceAll('\u00a0', ' ')"
	prompt := "/[#$]\\s*$/.test(" + rows + ".trim())"
	for deadline := time.Now().Add(limit); p.eval(prompt) != "true" && time.Now().Before(deadline); {
		p.keys("Enter")                    // a terminal that is being set up may drop the first output
		time.Sleep(200 * time.Millisecond) // there is no signal to wait for: poll
	}
	p.until("the shell waits for input", prompt)
	line := func(text string) {
		p.t.Helper()
		p.eval(`(() => {
			const data = new DataTransfer();
			data.setData("text/plain", ` + quote(text) + `);
			document.querySelector(".screen textarea").dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
		})()`)
		p.keys("Enter")
	}
	line(`echo "$MARIPOSA_NAME" $((6*7)); printf '\033[38;2;10;200;30mgreen\033[0m <b>\n'; stty size`)
	p.until("the shell answers", rows+".includes("+quote(name+" 42")+") && "+rows+".includes('green <b>')")
	p.until("text has the color that the command set", "[...document.querySelectorAll('.xterm-rows span')].some((e) => e.innerText === 'green' && e.style.color)")
	p.shot("shell")
	// The terminal has the size of the window.
	p.look(700, 900, "dark")
	for began := time.Now(); ; { // the command may run before the new size arrives
		line("clear; stty size")
		p.until("the terminal shows its size", "/^\\d+ \\d+$/m.test("+rows+")")
		if p.eval("String(Number("+rows+".match(/^\\d+ (\\d+)$/m)?.[1] ?? 1000) < 90)") == "true" {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("the terminal has the size of before: %s", p.eval(rows))
		}
	}
	p.look(1280, 800, "light")
	// Keys go to the command; Shift+Tab leaves the terminal.
	p.keys("?", "g", "q")
	p.until("the shell gets the keys", rows+".includes('?gq') && location.pathname === '/projects/admin/shop'")
	p.command("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9, "modifiers": 8}, nil)
	p.until("the focus has left the terminal", "document.activeElement?.innerText === 'End the shell'")
	p.click(".screen textarea")
	p.eval("document.querySelector('.screen textarea').focus()")
	line("")
	line("exit 7")
	p.sees("The command ended with exit code 7.")
	p.until("the audit log has it", "fetch('/v1/audit?action=instance.exec').then((r) => r.text()).then((t) => t.includes('/bin/sh'))")

	p.until("it opens again", clicked(buttonIn(".shell", "Open again"))+" || "+ready)
	p.until("the shell has the focus", ready)
	p.press("Queue")
	p.until("the shell stays open on other pages", "location.pathname === '/queue' && document.querySelector('.shell[data-phase=open]')")
	p.quiet()
	h.kill()
	p.sees("The connection broke, and the command was terminated.")
	p.until("it is closed", clicked(buttonIn(".shell", "Close"))+" || !document.querySelector('.shell')")
}

// Charts show the last hours: what should run and ran, starts and failures, and the load of nodes. After a
// restart, what was before is a gap.
func TestThePageShowsCharts(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("shop", pageManifest)
	h.converged("shop", "web", 4)
	list, err := h.AllInstances(t.Context(), client.InstanceFilter{Project: "shop", Service: "web"})
	must(t, err)
	h.must(h.ActOnInstance(t.Context(), list.Instances[0].ID, "crash"))
	p := signedIn(t, h.Client)
	p.visit(h.URL() + "/projects/admin/shop/charts")
	p.until("the numbers are those of the service", "['4 of 4 running', '5 starts, 1 failure'].every((t) => document.querySelector('[data-chart=web]')?.innerText.includes(t))")
	p.until("charts are drawn", "document.querySelectorAll('[data-chart=web] canvas').length === 2 && document.querySelector('[data-chart=web] .plot').ariaLabel === 'web: 4 of 4 instances run'")
	p.shot("charts")
	p.look(360, 740, "dark")
	p.press("6 h")
	p.until("the range is longer", "document.querySelector('[aria-pressed=true]').innerText === '6 h'")
	if w := p.eval("String(document.documentElement.scrollWidth)"); w != "360" {
		t.Errorf("charts are %s px wide on a phone of 360 px", w)
	}
	p.look(1280, 800, "light")
	p.keys("g", "n")
	p.press("Load")
	p.until("the load of the node is drawn", "document.querySelector('[data-node=dummy-1] canvas') && document.querySelector('[data-node=dummy-1] .plot:last-child').ariaLabel.startsWith('dummy-1 has ')")
	p.shot("charts-node")
	p.quiet()

	h.kill()
	h.start()
	h.await("the service is known again", func() bool {
		got, err := h.ProjectHistory(t.Context(), "shop", 15)
		if err != nil || len(got.Services) != 2 {
			return false
		}
		web := got.Services[1]
		known := 0
		for i, n := range web.Running {
			at := got.From.Add(time.Duration(i*got.IntervalSecs) * time.Second)
			if n != nil && at.Add(time.Duration(got.IntervalSecs)*time.Second).Before(got.Since) {
				t.Fatalf("%d instances are said to have run at %s, before the server was started at %s", *n, at, got.Since)
			}
			if n != nil && *n == 4 {
				known++
			}
		}
		return known > 0
	})
}

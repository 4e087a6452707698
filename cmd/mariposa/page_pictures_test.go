package main_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"mariposa/client"
)

// The pictures of the page in the documentation. `make pictures` puts them there.
func TestThePicturesOfTheDocumentation(t *testing.T) {
	t.Parallel()
	dir := cmp.Or(os.Getenv("MARIPOSA_PICTURES"), t.TempDir())
	h := newDevServer(t, "--dummy-nodes", "4")
	fast := func(scale int) string {
		return fmt.Sprintf("{compute_type: dummy, scale: %d, update: {min_healthy: 0}}", scale)
	}
	h.create("billing", "services: {api: "+fast(4)+", db: "+fast(1)+"}\n")
	h.create("fleet", "services: {edge: "+fast(240)+"}\n")
	h.create("mail", "services: {queue: "+fast(3)+", sender: "+fast(6)+"}\n")
	h.create("reports", "services: {worker: {compute_type: dummy, scale: 3, dummy: {fail_prop: \"yes\"}}, ui: "+fast(2)+"}\n")
	shop := func(version string) string {
		return "services:\n  web: {compute_type: dummy, scale: 12, depends_on: [api], environment: {VERSION: \"" + version + "\"}, update: {min_healthy: 0, canary: 3}}\n" +
			"  api: {compute_type: dummy, scale: 6, depends_on: [db], update: {min_healthy: 0}}\n  db: {compute_type: dummy, update: {min_healthy: 0}}\n"
	}
	h.create("shop", shop("13"))
	h.converged("shop", "web", 12)
	h.converged("fleet", "edge", 240)
	h.must(h.UpdateManifest(t.Context(), "shop", []byte(shop("14")), client.Update{Force: true, Message: "Faster search"}))
	h.create("search", "services: {index: {compute_type: dummy, scale: 20, dummy: {wait_secs: 600}}, ui: "+fast(2)+"}\n")
	p := signedIn(t, h.Client)
	p.look(1280, 720, "light")
	p.until("the canary is held, and a project backs off", "document.querySelector('[data-project=shop][data-status=held]') && document.querySelector('[data-project=reports][data-status=backing-off]')")
	if gap := p.number("document.querySelector('.row').getBoundingClientRect().top - document.querySelector('.headline').getBoundingClientRect().bottom"); gap > 80 {
		t.Errorf("there are %v px between the title and the first project, although there are many events", gap)
	}
	p.picture(filepath.Join(dir, "page.webp"))
	p.visit(h.URL() + "/projects/admin/shop")
	p.until("the canary is held", "document.querySelector('[data-service=web][data-status=held]') && "+cells("web", "ok")+" === 12")
	p.look(1280, 720, "dark")
	p.picture(filepath.Join(dir, "page-project.webp"))
	p.quiet()
}

// picture writes a screenshot to a file.
func (p *tab) picture(file string) {
	p.t.Helper()
	var r struct {
		Data []byte `json:"data"`
	}
	p.command("Page.captureScreenshot", map[string]any{"format": "webp", "quality": 90}, &r)
	write(p.t, file, r.Data)
}

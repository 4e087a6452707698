package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// After a restart with a changed file, `dev --deploy` applies the change. It does not
// restore a file that was submitted before, because that would revert newer changes.
func TestDeployAppliesAChangedFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.yaml")
	manifest := func(value string) {
		write(t, file, []byte("services:\n  web: {compute_type: dummy, scale: 2, environment: {A: "+value+"}, update: {min_healthy: 0}}\n"))
	}
	manifest("one")
	h := newDevServer(t, "--deploy", file)
	h.converged("shop", "web", 2)
	again := func() {
		t.Helper()
		h.kill()
		h.start()
		h.await("the project to be there", func() bool { return strings.Contains(h.out.String(), "shop") })
	}
	newest := func() int {
		t.Helper()
		all, err := h.Versions(t.Context(), "shop")
		must(t, err)
		return all.Versions[0].Number
	}
	again()
	if n := newest(); n != 1 {
		t.Errorf("the same file made version %d", n)
	}
	manifest("two")
	again()
	h.await("the changed file to be applied", func() bool { return newest() == 2 })
	h.converged("shop", "web", 2)
	if said := h.out.String(); !strings.Contains(said, "has changed: it is now version 2 of shop") {
		t.Errorf("it says\n%s", said)
	}
	other := filepath.Join(filepath.Dir(file), "other.yaml")
	text, err := os.ReadFile(file)
	must(t, err)
	write(t, other, []byte(strings.ReplaceAll(string(text), "two", "three")))
	h.ok("project", "update", "shop", "-m", other, "--force", "--wait")
	again()
	h.await("it to say so", func() bool {
		return strings.Contains(h.out.String(), "stays as it is; to return to the file: mariposa -j shop project update -m "+file+" --force")
	})
	if n := newest(); n != 3 {
		t.Errorf("version %d is the newest", n)
	}
}

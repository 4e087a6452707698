package main_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// These tests cover versions of manifests and metadata as users see them.

const shop = `# the shop, as it always was
services:
  web:   { compute_type: process,   command: [sleep, "1000"],
           environment: {MODE: "{{ .meta.mode }}", WORD: %s}, update: {min_healthy: 0} }   # odd, but ours
metadata:
  mode: {default: "test"}
  key: {secret: true}
`

const shopValues = `# kept as it is
mode:   production   # for now
"key": 'it''s a secret'
number: 0x1F
`

func TestManifestsAndValuesAreKeptByteForByteAndNobodyOverwritesAnother(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	word := func() string {
		_, pid := h.one("shop")
		return environ(t, pid)["WORD"]
	}
	one, two, three := fmt.Sprintf(shop, "one"), fmt.Sprintf(shop, "two"), fmt.Sprintf(shop, "three")
	h.ok("project", "create", "shop", "-m", fileOf(t, one), "--wait")
	h.ok("meta", "import", "-m", fileOf(t, shopValues), "-f")
	if got := h.ok("meta", "export", "--reveal"); got != shopValues {
		t.Errorf("the values come back as\n%s", got)
	}
	if got := h.ok("meta", "export"); !strings.Contains(got, "••••") || strings.Contains(got, "it''s") || !strings.Contains(got, "# for now") {
		t.Errorf("masked, the values are\n%s", got)
	}
	if got := h.ok("project", "version", "get", "1"); got != one {
		t.Errorf("the manifest comes back as\n%s", got)
	}
	base, err := h.Project(t.Context(), "shop")
	if err != nil || base.Number != 2 {
		t.Fatalf("%+v, %v", base, err)
	}

	// Two users start from the same version.
	h.ok("project", "update", "-m", fileOf(t, two), "--previous", base.Version, "--wait")
	_, errs, code := h.mariposa("", "project", "update", "-m", fileOf(t, three), "--previous", base.Version)
	if code != 1 || !strings.Contains(errs, "is 3 (") || word() != "two" {
		t.Errorf("the second of two: exit %d, %s", code, errs)
	}
	h.ok("project", "update", "-m", fileOf(t, three), "--force", "--wait")
	if w := word(); w != "three" {
		t.Errorf("it runs %s", w)
	}
	if diff := h.ok("project", "version", "diff", "1", "4"); !strings.Contains(diff, "-           environment: {MODE: \"{{ .meta.mode }}\", WORD: one}") || !strings.Contains(diff, "+mode: production") || strings.Contains(diff, "it's") {
		t.Errorf("the difference:\n%s", diff)
	}
	h.ok("project", "revert", "1", "--wait")
	if w := word(); w != "one" {
		t.Errorf("reverted, it runs %s", w)
	}
	all, err := h.Versions(t.Context(), "shop")
	if err != nil || len(all.Versions) != 5 || all.Versions[0].Cause != mariposa.CauseRevert || !slices.Contains(all.Versions[0].Tags, "latest") {
		t.Errorf("%+v, %v", all, err)
	}
	h.kill()
	h.start()
	if again, err := h.Versions(t.Context(), "shop"); err != nil || fmt.Sprint(again) != fmt.Sprint(all) {
		t.Errorf("after kill -9 the versions are %+v, %v", again, err)
	}
}

func TestOldVersionsAreForgottenButForThoseInUse(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--keep-versions", "3")
	manifest := func(n int) string {
		return fmt.Sprintf("services: {web: {compute_type: process, command: [sleep, '1000'], environment: {N: '%d', M: '{{ .meta.m }}'}}}\nmetadata: {m: {secret: true, generate: 10}}", n)
	}
	h.create("shop", manifest(1))
	h.converged("shop", "web", 1)
	h.must(h.Act(t.Context(), "shop", contract.Action{Action: "freeze"})) // the first version keeps running
	for n := 2; n <= 9; n++ {
		h.must(h.UpdateManifest(t.Context(), "shop", []byte(manifest(n)), client.Update{Force: true}))
		if n == 3 {
			h.must(h.AddTag(t.Context(), "shop", "good", "3"))
		}
	}
	all, err := h.Versions(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	var numbers []int
	for _, v := range all.Versions {
		numbers = append(numbers, v.Number)
	}
	for _, kept := range []int{9, 3, 1} {
		if !slices.Contains(numbers, kept) {
			t.Errorf("version %d is forgotten: %v", kept, numbers)
		}
	}
	if len(numbers) > 6 {
		t.Errorf("%d versions are kept: %v", len(numbers), numbers)
	}
	if i, _ := h.one("shop"); !slices.Contains(i.Environment, "N=1") {
		t.Errorf("what runs: %v", i.Environment)
	}
	h.kill()
	h.start()
	if i, _ := h.one("shop"); !slices.Contains(i.Environment, "N=1") {
		t.Errorf("what runs after kill -9: %v", i.Environment)
	}
}

func TestManyPeopleChangeMetadataAtOnceAndNothingIsLost(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", "services: {d: {compute_type: dummy}}\nmetadata: {n: {type: integer, default: 0}, list: {default: ''}}")
	const people, times = 5, 4
	var all sync.WaitGroup
	for who := range people {
		all.Go(func() {
			for range times {
				if _, err := h.CountMetadata(t.Context(), "shop", "n", 1); err != nil {
					t.Error(err)
				}
				h.append(fmt.Sprintf("%d ", who))
			}
		})
	}
	all.Wait()
	n, err := h.MetadataKey(t.Context(), "shop", "n", false)
	if err != nil || n.Value != fmt.Sprint(people*times) {
		t.Errorf("%d people counted %d times: %+v, %v", people, times, n, err)
	}
	list, err := h.MetadataKey(t.Context(), "shop", "list", false)
	if err != nil {
		t.Fatal(err)
	}
	for who := range people {
		if got := strings.Count(list.Value, fmt.Sprintf("%d ", who)); got != times {
			t.Errorf("%d of %d words of person %d are there: %q", got, times, who, list.Value)
		}
	}
	if status, _ := h.answer(http.MethodPut, "/v1/projects/shop/metadata/big", strings.Repeat("x", 1<<20), http.Header{"Content-Type": {"text/plain"}}); status != http.StatusOK {
		t.Errorf("a value of 1 MiB: %d", status)
	}
	if status, text := h.answer(http.MethodPut, "/v1/projects/shop/metadata/big", strings.Repeat("x", 1<<20+1), http.Header{"Content-Type": {"text/plain"}}); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a value of 1 MiB and a byte: %d %s", status, text)
	}
}

// append adds a word to the value of a key, with a CAS from a previous read.
func (h *devServer) append(word string) {
	h.t.Helper()
	for {
		now, err := h.MetadataKey(h.t.Context(), "shop", "list", false)
		if err != nil {
			h.t.Error(err)
			return
		}
		cas := now.CAS
		if !now.Set {
			cas = "0"
		}
		_, err = h.SetMetadata(h.t.Context(), "shop", "list", contract.MetadataValue{Value: fmt.Appendf(nil, "%q", now.Value+word)}, client.KeyChange{CAS: cas})
		if mariposa.CodeOf(err) == mariposa.Conflict {
			continue // another writer was faster
		}
		if err != nil {
			h.t.Error(err)
		}
		return
	}
}

package manifest_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa/manifest"
)

func TestOneServiceIsChangedAndAllOtherLinesStay(t *testing.T) {
	t.Parallel()
	const doc = "# ours\nservices:\n  # the front\n  web: # here\n    compute_type: dummy\n    scale: 3 # three\n\n  db: {compute_type: dummy}\nmetadata: {a: {}}\n"
	for _, c := range []struct{ name, service, def, want string }{
		{"replaced", "web", "compute_type: dummy\nscale: 4\n", "# ours\nservices:\n  # the front\n  web:\n    compute_type: dummy\n    scale: 4\n  db: {compute_type: dummy}\nmetadata: {a: {}}\n"},
		{"replaced by JSON", "db", `{"compute_type": "dummy", "scale": 2}`, "# ours\nservices:\n  # the front\n  web: # here\n    compute_type: dummy\n    scale: 3 # three\n\n  db:\n    compute_type: dummy\n    scale: 2\nmetadata: {a: {}}\n"},
		{"added", "new", "compute_type: dummy", "# ours\nservices:\n  # the front\n  web: # here\n    compute_type: dummy\n    scale: 3 # three\n\n  db: {compute_type: dummy}\n  new:\n    compute_type: dummy\nmetadata: {a: {}}\n"},
		{"removed", "web", "", "# ours\nservices:\n  # the front\n  db: {compute_type: dummy}\nmetadata: {a: {}}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := manifest.SetService([]byte(doc), c.service, []byte(c.def))
			if c.def == "" {
				got, err = manifest.RemoveService([]byte(doc), c.service)
			}
			if err != nil || string(got) != c.want {
				t.Errorf("%v\n%s", err, got)
			}
		})
	}
}

func TestManifestsInBracesAreWrittenAnew(t *testing.T) {
	t.Parallel()
	got, err := manifest.SetService([]byte(`{"services": {"web": {"compute_type": "dummy"}}}`), "db", []byte("compute_type: dummy\nenvironment: {A: '1'}\n"))
	const want = "services:\n  web:\n    compute_type: dummy\n  db:\n    compute_type: dummy\n    environment:\n      A: \"1\"\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err := manifest.RemoveService([]byte("services: {web: {compute_type: dummy}}\n"), "web"); err != nil || string(got) != "services: {}\n" {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err := manifest.SetService([]byte("services: {}\n"), "web", []byte("compute_type: dummy")); err != nil || string(got) != "services:\n  web:\n    compute_type: dummy\n" {
		t.Errorf("%v\n%s", err, got)
	}
	for _, bad := range []string{"[", "- a", "a: b: c"} {
		if _, err := manifest.SetService([]byte("services: {}\n"), "web", []byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := manifest.RemoveService([]byte("services: {}\n"), "web"); err == nil {
		t.Error("what is not there was removed")
	}
	if _, err := manifest.SetService([]byte("services: {}\n"), "No Name", []byte("a: b")); err == nil {
		t.Error("a name that is none was taken")
	}
}

func TestWhateverTheManifestOnlyTheOneServiceDiffers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		doc := []byte(rapid.SampledFrom([]string{"services:\n", "# c\nservices:   # s\n", "metadata: {k: {}}\nservices:\n"}).Draw(rt, "head"))
		names := []string{"a", "b", "c"}
		for _, name := range names {
			doc = append(doc, strings.ReplaceAll(rapid.SampledFrom([]string{
				"  NAME: {compute_type: dummy}\n", "  # before\n  NAME:\n    compute_type: dummy # after\n\n",
				"  NAME:\n    compute_type: dummy\n    environment:\n      - |-\n       A=b\n        c\n",
			}).Draw(rt, name), "NAME", name)...)
		}
		if rapid.Bool().Draw(rt, "tail") {
			doc = append(doc, "networks: {}\n# the end"...)
		}
		which := rapid.SampledFrom(append(names, "new")).Draw(rt, "which")
		was, err := manifest.Parse(doc)
		if err != nil {
			rt.Fatal(err)
		}
		next, err := manifest.SetService(doc, which, []byte("compute_type: dummy\nscale: 7\n"))
		if err != nil {
			rt.Fatal(err)
		}
		is, err := manifest.Parse(next)
		if err != nil {
			rt.Fatalf("%v\n%s", err, next)
		}
		for _, d := range manifest.Diff(was, is) {
			if d.Service != which && d.Change != manifest.Unchanged {
				rt.Fatalf("%s changed too:\n%s", d.Service, next)
			}
		}
		if s := is.ByName[which]; s == nil || *s.Scale != 7 {
			rt.Fatalf("it did not come in:\n%s", next)
		}
	})
}

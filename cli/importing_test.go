package cli

import (
	"strings"
	"testing"

	"mariposa/manifest"
)

// An import says what it did not take over, and why.
func TestAnImportExplainsKeysWithoutAValue(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, groupManifest)
	f := s.proxy(t)
	const null = "the value of k is null: write a value, \"\" for an empty one, or remove the key with `mariposa -j hello meta rm k`"
	for _, c := range []struct{ file, said string }{
		{"k: null\n", "nothing to import"},
		{"k:\nmode: calm\n", "added mode"},
	} {
		r := (&run{f: f, stdin: c.file}).do(t, "-j", "hello", "meta", "import", "-m", "-")
		r.expect(exitOK, strings.Contains(r.stdout, c.said), strings.Contains(r.stderr, null))
	}
	for _, file := range []string{"", "\n", "# no values\n", "{}\n"} {
		r := (&run{f: f, stdin: file}).do(t, "-j", "hello", "meta", "import", "-m", "-")
		r.expect(exitOK, strings.Contains(r.stdout, "nothing to import"), r.stderr == "")
	}
	for _, file := range []string{"k: " + manifest.Mask + "\n", "mode: calm\nk: " + manifest.Mask + "\n"} {
		r := (&run{f: f, stdin: file}).do(t, "-j", "hello", "meta", "import", "-m", "-")
		r.expect(exitError, strings.Count(r.stderr, "the mask of a hidden value") == 1)
	}
	s.again(t, groupManifest)
	r := (&run{f: f, stdin: "k: " + manifest.Mask + "\n"}).do(t, "-j", "hello", "meta", "import", "-m", "-")
	r.expect(exitError, strings.Count(r.stderr, "the mask of a hidden value") == 1)
}

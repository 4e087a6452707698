package cli

import (
	"strings"
	"testing"
)

// A value that is not text is refused before anything is sent: JSON would silently turn
// invalid bytes into other characters.
func TestValuesThatAreNotTextAreRefused(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, groupManifest)
	const binary = "a\xffb"
	home := t.TempDir()
	keep(t, home, "binary", binary)
	keep(t, home, "large", strings.Repeat("\xff", 1<<20+1))
	keep(t, home, "m.yaml", "services: {web: {compute_type: dummy}} # "+binary+"\n")
	keep(t, home, "d.yaml", "compute_type: dummy # "+binary+"\n")
	keep(t, home, "v.yaml", "mode: calm\n")
	for _, c := range []struct {
		name, args, stdin, said string
	}{
		{"a file", "-j hello meta set mode --from-file HOME/binary", "", "metadata.mode: must be UTF-8 text"},
		{"standard input", "-j hello meta set mode -", binary, "metadata.mode: must be UTF-8 text"},
		{"a large file", "-j hello meta set mode --from-file HOME/large", "", "metadata key mode has 1048577 bytes"},
		{"a definition", "-j hello instance create x -m HOME/d.yaml", "", "UTF-8"},
		{"a manifest with values", "project create new -m HOME/m.yaml --metadata HOME/v.yaml", "", "not UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := s.proxy(t)
			r := &run{f: f, home: home, stdin: c.stdin}
			r.do(t, strings.Fields(strings.ReplaceAll(c.args, "HOME", home))...)
			asked := f.requests()
			r.expect(exitError, strings.Contains(r.stderr, c.said), !strings.Contains(asked, "PUT"), !strings.Contains(asked, "POST"))
		})
	}
}

package mariposa

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLabelsOfImagesAreShortAndSafeToShow(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                   "",
		"1.4.2":              "1.4.2",
		" 1.4\n2\t":          "1.4 2",
		"\x1b[31mred\x07":    "[31mred",
		"1.4\u202e2.1\u200f": "1.42.1",
		"a\xff\u0000b\ufffd": "ab",
		"wersja-ż":           "wersja-ż",
		"\u0085\u2028x":      "x",
	} {
		if got := LabelsOf(map[string]string{labelVersion: text, labelRevision: text}); got != (ImageLabels{Version: want, Revision: want}) {
			t.Errorf("%q becomes %+v, want %q", text, got, want)
		}
	}
	for _, long := range []string{strings.Repeat("ż", 1<<20), strings.Repeat("x", 129), strings.Repeat("\x1b", 1<<20) + "x"} {
		got := LabelsOf(map[string]string{labelRevision: long})
		if len(got.Revision) > maxImageLabel || !utf8.ValidString(got.Revision) || got.Version != "" {
			t.Errorf("%d bytes become %q", len(long), got.Revision)
		}
		if again := got.Clean(); again != got {
			t.Errorf("%q becomes %q when it is cleaned again", got.Revision, again.Revision)
		}
	}
}

package manifest

import (
	"bytes"
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The previous release computed these digests of testdata/stored.yaml. With other
// digests, running instances would count as outdated.
func TestWhatEarlierReleasesStoredMeansTheSame(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("testdata/stored.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(doc); err == nil {
		t.Error("it can be submitted")
	}
	p, err := ParseStored(doc)
	if err != nil {
		t.Fatal(err)
	}
	if db, web := p.ByName["db"].Digest, p.ByName["web"].Digest; db != "8e234fdc6d63a0a0055b613472c5e42c" || web != "376e4baeb94b28895b76ddb64ccab9b8" {
		t.Errorf("digests: db %s, web %s", db, web)
	}
	modern := Modernize(doc)
	want, err := os.ReadFile("testdata/stored-modern.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(modern, want) {
		t.Errorf("became\n%s", modern)
	}
	edited, err := SetService(modern, "cache", []byte("compute_type: dummy"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := Parse(edited); err != nil || len(p.Services) != 3 {
		t.Errorf("with a service more: %v in\n%s", err, edited)
	}
}

func TestValuesThatEarlierReleasesStoredStayReadable(t *testing.T) {
	t.Parallel()
	v, err := UnmarshalValues([]byte(`{"document":"a: {{ x }} # c\nb: 1\n"}`))
	if err != nil {
		t.Fatal(err)
	}
	if a, _ := v.Get("a"); a.Text != "{{ x }}" || string(v.Document) != "a: \"{{ x }}\" # c\nb: 1\n" {
		t.Errorf("%+v of %q", a, v.Document)
	}
}

func TestModernizeLeavesAloneWhatItCannotHelp(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a: [\"{{ .x }}\", b?]\nc: [", "a: {{ .x }}\nb: \ue041\n", "a: b {{ .x }} c?\n", "a: {{ \"x\" }}\n", ""} {
		if got := Modernize([]byte(text)); string(got) != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func FuzzModernize(f *testing.F) {
	for _, text := range []string{"a: {{ .x }}\n  y # c\n", "{a: [{{ .x }}, b?, 'c?', \"{{ .d }}\"]}", "{{ .a }}: |\n  {{ .b }}\n\t\nc: {{.d}}\r\n", "a: [\n  {{ é }},\n  \"\\ud83d\\ude00?\", b?c]"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		modern := Modernize(doc)
		if bytes.Equal(modern, doc) {
			return
		}
		if _, faults := read(doc); len(faults) == 0 {
			t.Errorf("%q was changed to %q", doc, modern)
		}
		root, faults := read(modern)
		if len(faults) > 0 {
			t.Fatalf("%q became %q: %v", doc, modern, faults)
		}
		hidden, _ := read(needsQuotes.ReplaceAllFunc(blankLine.ReplaceAll(doc, []byte("$1$2")), hideUnprintable))
		if other, _ := read(needsQuotes.ReplaceAllFunc(doc, hideUnprintable)); other != nil {
			hidden = other
		}
		if show(asTexts(root)) != show(asTexts(hidden)) {
			t.Errorf("%q became %q, which says %s", doc, modern, show(root))
		}
	})
}

// asTexts makes every scalar a text, since an interpolation in quotes is one.
func asTexts(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.ScalarNode {
		n.Tag, n.Value = "!!str", string(revealHidden([]byte(n.Value)))
	}
	for _, below := range n.Content {
		asTexts(below)
	}
	return n
}

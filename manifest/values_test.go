package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"pgregory.net/rapid"

	"mariposa"
)

var someDay = time.Date(2026, 11, 5, 12, 0, 0, 0, time.UTC)

func mustImport(t testing.TB, v *Values, doc string) *Values {
	t.Helper()
	next, err := v.Import([]byte(doc), someDay)
	if err != nil {
		t.Fatalf("%v\n%s", err, listing(err))
	}
	return next
}

func mustSet(t testing.TB, v *Values, key, text string, secret bool) *Values {
	t.Helper()
	next, err := v.Set(key, text, secret, someDay)
	if err != nil {
		t.Fatalf("%v\n%s", err, listing(err))
	}
	return next
}

func textsOf(v *Values) map[string]string {
	texts := map[string]string{}
	for _, key := range v.Keys() {
		texts[key] = v.ByKey[key].Text
	}
	return texts
}

func TestValuesKeepTheirSpelling(t *testing.T) {
	t.Parallel()
	doc := "# ours\nmode: production\nratio: 1.10\nport: 0080\non: True\nquoted: \"a\\tb\"\nempty: ''\nunset:\nalso: ~\ncert: |\n  line 1\n   line 2\n\nfolded: >-\n  a\n  b\na.b-c_1: x # why\n"
	v, err := ReadValues([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"mode": "production", "ratio": "1.10", "port": "0080", "on": "True", "quoted": "a\tb", "empty": "",
		"cert": "line 1\n line 2\n", "folded": "a b", "a.b-c_1": "x",
	}
	if got := textsOf(v); !maps.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if string(v.Document) != doc {
		t.Error("the document was changed")
	}
	for _, empty := range []string{"", "# nothing\n", "{}", "---\n...\n", "null"} {
		if v, err := ReadValues([]byte(empty)); err != nil || len(v.ByKey) != 0 {
			t.Errorf("%q: %v, %v", empty, v, err)
		}
	}
}

func TestFaultsOfValuesHaveLinesAndQuoteNothing(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, doc, want string }{
		{"a list for a document", "- hunter2\n", "Invalid      line 1: metadata: must be a mapping of names to values, not a list"},
		{"a text for a document", "hunter2\n", "Invalid      line 1: metadata: must be a mapping of names to values, not a string"},
		{"a nested mapping", "a: 1\nb:\n  hunter2: x\n", "Invalid      line 2: metadata.b: must be a string, a number, true or false, not a mapping; write nested values as one string after a |"},
		{"a list", "a: [hunter2]\n", "Invalid      line 1: metadata.a: must be a string, a number, true or false, not a list; write nested values as one string after a |"},
		{"a name with spaces", "a: 1\npass hunter2: 1\n", "Invalid      line 2: metadata: a key must consist of letters, digits, _ and -, with single dots between them, so that {{ .meta.name }} can refer to it"},
		{"a key twice", "a: hunter2\na: hunter2\n", "Duplicate    line 2: metadata.a: is set twice, first on line 1; remove one"},
		{"a stray word", "a: \"x\" hunter2\n", "Syntax       line 1: this is neither a key nor part of the value above; check the indentation, and quote the whole value if text follows a complete value"},
		{"a line that is no key", "a: 1\nhunter2\n", "Syntax       line 2: a key is not followed by a colon and a space; add them, or check the indentation"},
		{"a value that begins oddly", "a: @hunter2\n", "Syntax       line 1: a value cannot begin with this character; quote it"},
		{"an unknown escape", "a: \"\\hunter2\"\n", "Syntax       line 1: unknown escape sequence; write \\\\ for a backslash, or use single quotes"},
		{"a stray word in braces", "{a: \"x\" hunter2}\n", "Syntax       line 1: the brace opened here is never closed, or a comma is missing inside it"},
		{"an alias", "a: *hunter2\n", "Syntax       line 1: YAML aliases are not supported; write the value itself"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := ReadValues([]byte(tt.doc))
			if got := listing(err); !strings.HasPrefix(got, "InvalidArgument: the metadata has an error: ") || !strings.Contains(got, "\n"+tt.want+"\n") {
				t.Errorf("got\n%s", got)
			}
			if strings.Contains(listing(err), "hunter2") {
				t.Error("it quotes the document")
			}
		})
	}
}

func TestValuesHaveASize(t *testing.T) {
	t.Parallel()
	most := strings.Repeat("x", MaxValue)
	v := mustSet(t, nil, "a", most, true)
	if got, _ := v.Get("a"); got.Text != most {
		t.Error("the largest value is not kept")
	}
	if again, err := v.Import(v.Document, someDay); err != nil || again != v {
		t.Errorf("the largest value cannot be read again: %v", err)
	}
	_, err := v.Set("a", most+"x", true, someDay)
	_, imported := v.Import([]byte("a: "+most+"x\n"), someDay)
	_, read := ReadValues(bytes.Repeat([]byte("# comment\n"), MaxValues/10+1))
	_, second := mustSet(t, mustSet(t, v, "b", most, false), "c", most, false).Set("d", most, false, someDay)
	var keys strings.Builder
	for i := range MaxKeys {
		fmt.Fprintf(&keys, "k%d:\n", i)
	}
	_, third := mustImport(t, nil, keys.String()).Set("one.more", "x", false, someDay)
	_, fourth := ReadValues([]byte(keys.String() + "one.more:\n"))
	for i, err := range []error{err, imported, read, second, third, fourth} {
		if mariposa.CodeOf(err) != mariposa.TooLarge || len(err.Error()) > 200 {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestWhatNoDocumentCanHoldIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ key, text string }{
		{"", "x"},
		{"a b", "x"},
		{"a..b", "x"},
		{"{{", "x"},
		{"é", "x"},
		{strings.Repeat("a", 300), "x"},
		{"a", "hunter2\x00"},
		{"a", "hunter2\xff"},
		{"a", Mask},
	} {
		_, err := (*Values)(nil).Set(tt.key, tt.text, false, someDay)
		if mariposa.CodeOf(err) != mariposa.InvalidArgument || len(faultsOf(err)) != 1 || strings.Contains(listing(err), "hunter2") {
			t.Errorf("%q, %q: %v", tt.key, tt.text, err)
		}
	}
}

func TestSetChangesOneValueAndNoOtherByte(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, doc, key, text, want string }{
		{"the first of all", "", "a", "x", "a: x\n"},
		{"a plain value", "a: 1 # one\nb: 2\n", "a", "x", "a: x # one\nb: 2\n"},
		{"a quoted value", "a: 'it''s'   # one\nb: 2\n", "a", "x", "a: x   # one\nb: 2\n"},
		{"a value that was not set", "a:\nb: # two\n", "b", "x", "a:\nb: x # two\n"},
		{"a null", "a: ~\n", "a", "x", "a: x\n"},
		{"a block becomes a word", "a: |\n  one\n  two\n\n# b\nb: 2\n", "a", "x", "a: x\n\n# b\nb: 2\n"},
		{"a kept block becomes a word", "a: |+\n  one\n\nb: 2\n", "a", "x", "a: x\nb: 2\n"},
		{"an empty block", "a: |\nb: 2\n", "a", "x", "a: x\nb: 2\n"},
		{"a word becomes a block", "a: x # gone\nb: 2\n", "a", "one\n two\n", "a: |\n  one\n   two\nb: 2\n"},
		{"a block without a last line end", "a: x\n", "a", "one\ntwo", "a: |-\n  one\n  two\n"},
		{"a block that begins with spaces", "a: x", "a", "  one\ntwo\n", "a: |2\n    one\n  two\n"},
		{"a block before a comment that would fall into it", "a: x\n  # comment\nb: 2\n", "a", "one\ntwo\n", "a: \"one\\ntwo\\n\"\n  # comment\nb: 2\n"},
		{"a value of several lines", "a: one\n  two\n  three # x\nb: 2\n", "a", "x", "a: x # x\nb: 2\n"},
		{"a value on the next line", "a:\n  one\nb: 2\n", "a", "x", "a:\n  x\nb: 2\n"},
		{"a new key", "a: 1\n# end\n", "b", "x", "a: 1\n# end\nb: x\n"},
		{"a new key behind a last line without end", "a: 1", "b", "x", "a: 1\nb: x\n"},
		{"a new key beside a block that ends with the document", "a: |\n  one", "b", "x", "b: x\na: |\n  one"},
		{"a new key before the end marker", "---\na: 1\n...\n# end\n", "b", "x", "---\na: 1\nb: x\n...\n# end\n"},
		{"indented keys", "  a: 1\n  b: 2\n", "c", "one\ntwo\n", "  a: 1\n  b: 2\n  c: |\n    one\n    two\n"},
		{"other line ends", "a: 1\r\nb: 2\r\n", "c", "one\ntwo\n", "a: 1\r\nb: 2\r\nc: |\r\n  one\r\n  two\r\n"},
		{"other line ends before the value", "a: 1\r\nb: two\r\n  lines\r\nc: 3\r\n", "b", "x", "a: 1\r\nb: x\r\nc: 3\r\n"},
		{"a byte order mark", "\ufeffa: 1\n", "a", "x", "\ufeffa: x\n"},
		{"JSON", `{"a": 1, "b": "x"}`, "a", "two", `{"a": "two", "b": "x"}`},
		{"JSON on lines", "{\n  \"a\": 1\n}\n", "b", "true", "{\n  \"a\": 1,\n  \"b\": true\n}\n"},
		{"JSON on one line", `{"a": 1}`, "b", "007", `{"a": 1, "b": "007"}`},
		{"empty braces", "{ }", "b", "x", `{ "b": "x"}`},
		{"a key without a value in braces", "{a, b: }", "a", "1", "{a: 1, b: }"},
		{"a word that other readers take for a boolean", "a: x\n", "a", "yes", "a: \"yes\"\n"},
		{"a text that looks like nothing", "a: x\n", "a", "null", "a: \"null\"\n"},
		{"the empty text", "a: x\n", "a", "", "a: \"\"\n"},
		{"a comment sign", "a: x\n", "a", "x #y", "a: \"x #y\"\n"},
		{"an interpolation", "a: x\n", "a", "{{ .scale }}", "a: \"{{ .scale }}\"\n"},
		{"a control character", "a: x\n", "a", "\x1b[2J\r", "a: \"\\u001b[2J\\r\"\n"},
		{"a document that says nothing at all", "null\n", "a", "x", "a: x\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := mustSet(t, mustImport(t, nil, tt.doc), tt.key, tt.text, false)
			if string(v.Document) != tt.want {
				t.Errorf("got  %q\nwant %q", v.Document, tt.want)
			}
			if got, _ := v.Get(tt.key); got.Text != tt.text {
				t.Errorf("it says %q", got.Text)
			}
		})
	}
}

func TestDeleteTakesOneKeyAndNoOtherByte(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, doc, key, want string }{
		{"a key", "a: 1\n# b\nb: 2 # two\n# c\nc: 3\n", "b", "a: 1\n# b\n# c\nc: 3\n"},
		{"the first", "a: 1\nb: 2\n", "a", "b: 2\n"},
		{"the last", "a: 1\nb: 2", "b", "a: 1\n"},
		{"the only one", "---\na: 1\n...\n", "a", "---\n...\n"},
		{"one that is null", "a:\nb: 2\n", "a", "b: 2\n"},
		{"one that is not there", "a: 1\n", "b", "a: 1\n"},
		{"a block", "a: |\n  one\n\n  two\n\nb: 2\n", "a", "\nb: 2\n"},
		{"one behind a block that would take the comment in", "a: |\n  one\nb: 2\n  # comment\nc: 3\n", "b", "a: |\n  one\nc: 3\n"},
		{"one behind a block that would take the blank lines in", "a: |+\n  one\nb: 2\n\n\n", "b", "a: |+\n  one\n"},
		{"other line ends", "a: 1\r\nb: 2\r\nc: 3\r\n", "b", "a: 1\r\nc: 3\r\n"},
		{"behind a byte order mark", "\ufeffa: 1\nb: 2\n", "a", "\ufeffb: 2\n"},
		{"the first in braces", `{"a": 1, "b": 2}`, "a", `{"b": 2}`},
		{"the last in braces", `{"a": 1, "b": 2}`, "b", `{"a": 1}`},
		{"the only one in braces", "{a: 1,}", "a", "{}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := mustImport(t, nil, tt.doc).Delete(tt.key)
			if string(v.Document) != tt.want {
				t.Errorf("got  %q\nwant %q", v.Document, tt.want)
			}
			if _, still := v.Get(tt.key); still {
				t.Error("it is still there")
			}
		})
	}
	if v := (*Values)(nil).Delete("a"); v != nil {
		t.Error("nothing became something")
	}
}

// anyDocument draws a document in one of the many styles that people use.
func anyDocument(t *rapid.T) string {
	if rapid.IntRange(0, 4).Draw(t, "braces") == 0 {
		var entries []string
		for _, key := range anyKeys(t) {
			entries = append(entries, rapid.SampledFrom([]string{key, quoted(key)}).Draw(t, "key")+": "+rapid.SampledFrom([]string{"1", "x y", `"q"`, "'s'", "~", "true", "\n x"}).Draw(t, "value"))
		}
		return "{" + strings.Join(entries, rapid.SampledFrom([]string{", ", ",\n  ", " ,\n# c\n"}).Draw(t, "between")) + rapid.SampledFrom([]string{"}", "\n}\n", "} # end\n"}).Draw(t, "end")
	}
	var b strings.Builder
	indent := strings.Repeat(" ", rapid.IntRange(0, 2).Draw(t, "indent"))
	b.WriteString(rapid.SampledFrom([]string{"", "# head\n", "---\n", "\ufeff", "\n\n"}).Draw(t, "head"))
	for _, key := range anyKeys(t) {
		b.WriteString(indent + key + ":" + rapid.SampledFrom([]string{
			" 1\n", " x # c\n", "\n", " # c\n", " ~\n", " 'a''b'\n", " \"a\\\n      b\"\n", " one\n     two\n\n     three\n", "\n     next\n",
			" |\n     block\n      more\n", " |+\n     keep\n\n\n", " |-\n     strip\n\n", " >\n     fold\n     ed\n", " |4\n        in\n", " |\n", " \"\"\n",
		}).Draw(t, "value"))
		b.WriteString(rapid.SampledFrom([]string{"", "", "\n", "# c\n", "     # deep\n"}).Draw(t, "behind"))
	}
	feet := []string{"", "", "# end"}
	if strings.Contains(b.String(), ":") { // the marker must not be the only content
		feet = append(feet, "...\n")
	}
	text := b.String() + rapid.SampledFrom(feet).Draw(t, "foot")
	if rapid.IntRange(0, 3).Draw(t, "cut") == 0 {
		text = strings.TrimSuffix(text, "\n")
	}
	return strings.ReplaceAll(text, "\n", rapid.SampledFrom([]string{"\n", "\n", "\r\n", "\r"}).Draw(t, "line end"))
}

var someKeys = []string{"a", "b", "c", "d.e", "-", "---", "null", "1", "true", "x-y_z"}

func anyKeys(t *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(someKeys), 0, 6, rapid.ID).Draw(t, "keys")
}

func anyText(t *rapid.T) string {
	if rapid.Bool().Draw(t, "free") {
		return strings.ReplaceAll(rapid.String().Draw(t, "text"), "\x00", "")
	}
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", " ", "\n", "\t", "\r", "#", ":", ": ", "- ", "'", "\"", "\\", "{", "}", "{{", "|", "~", "1", "é", "\u2028", "\ufeff", "\x7f", "---", "..."}), 0, 8)
	return strings.Join(parts.Draw(t, "parts"), "")
}

// entryLines returns the bytes of each entry of a document, from its key to the end of
// its value.
func entryLines(t *rapid.T, doc []byte) map[string]string {
	pg, err := readValuesDocument(doc)
	if err != nil {
		t.Fatalf("%q cannot be read: %v", doc, err)
	}
	lines := map[string]string{}
	for _, e := range pg.entries {
		lines[e.key.Value] = string(doc[e.at:e.to])
	}
	return lines
}

func TestAnySequenceOfChangesLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, err := (*Values)(nil).Import([]byte(anyDocument(t)), someDay)
		if err != nil {
			t.Fatalf("%v", err)
		}
		want := textsOf(v)
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			before, key := v, rapid.SampledFrom(someKeys).Draw(t, "key")
			if rapid.IntRange(0, 2).Draw(t, "step") == 0 {
				v = v.Delete(key)
				delete(want, key)
			} else {
				text := anyText(t)
				if v, err = v.Set(key, text, rapid.Bool().Draw(t, "secret"), someDay); err != nil {
					t.Fatalf("%q: %v", text, err)
				}
				want[key] = text
			}
			checkStep(t, before, v, key, want)
		}
	})
}

func checkStep(t *rapid.T, before, v *Values, key string, want map[string]string) {
	again, err := ReadValues(v.Document)
	if err != nil || !maps.Equal(textsOf(again), want) || !maps.Equal(textsOf(v), want) {
		t.Fatalf("%q became %q, which says %q, %v\nwant %q", before.Document, v.Document, textsOf(again), err, want)
	}
	was, is := entryLines(t, before.Document), entryLines(t, v.Document)
	for other, lines := range was {
		if other != key && is[other] != lines {
			t.Fatalf("%s was %q and is %q: %q became %q", other, lines, is[other], before.Document, v.Document)
		}
		if other != key && v.ByKey[other] != before.ByKey[other] {
			t.Fatalf("%s was %+v and is %+v", other, before.ByKey[other], v.ByKey[other])
		}
	}
	if kept, err := JoinValues(v.Split()); err != nil || !bytes.Equal(kept.Document, v.Document) || !maps.Equal(kept.ByKey, v.ByKey) || kept.Last != v.Last {
		t.Fatalf("kept as %+v, %v\nwant %+v", kept, err, v)
	}
	masked, err := ReadValues(v.Masked(Mask))
	if err != nil {
		t.Fatalf("masked, %q became %q: %v", v.Document, v.Masked(Mask), err)
	}
	for key, value := range v.ByKey {
		if shown := masked.ByKey[key].Text; (shown == Mask) != value.Secret || !value.Secret && shown != value.Text {
			t.Fatalf("%s is shown as %q", key, shown)
		}
	}
	if back, err := v.Import(masked.Document, someDay); err != nil || !maps.Equal(back.ByKey, v.ByKey) {
		t.Fatalf("masked and back again is %+v, %v", back, err)
	}
}

// Other YAML readers must read the same texts, because people use their values elsewhere
// too.
func TestOtherReadersSeeTheSameTexts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := anyText(t)
		v, err := (*Values)(nil).Set("k", text, false, someDay)
		if err != nil {
			t.Fatal(err)
		}
		j, err := (&Values{Document: []byte("{}")}).Set("k", text, false, someDay)
		if err != nil {
			t.Fatal(err)
		}
		var fromJSON map[string]any
		if err := json.Unmarshal(j.Document, &fromJSON); err != nil {
			t.Fatalf("%q is not JSON: %v", j.Document, err)
		}
		if s, ok := fromJSON["k"].(string); ok && s != text {
			t.Fatalf("%q reads %q in %q", text, s, j.Document)
		}
		var fromYAML map[string]any
		if err := yaml.Unmarshal(v.Document, &fromYAML); err != nil {
			t.Fatalf("%q: %v", v.Document, err)
		}
		if s, ok := fromYAML["k"].(string); ok && s != text {
			t.Fatalf("%q reads %q in %q", text, s, v.Document)
		}
	})
}

func TestCASAndTimeMoveWithTheTextAlone(t *testing.T) {
	t.Parallel()
	later := someDay.Add(time.Hour)
	one := mustImport(t, nil, "a: 1\nb: 2\n")
	two, err := one.Import([]byte("# again\nb: 3\na: 1\nc: 4\n"), later)
	if err != nil {
		t.Fatal(err)
	}
	if two.ByKey["a"] != one.ByKey["a"] || two.ByKey["b"].CAS <= one.ByKey["b"].CAS || two.ByKey["b"].Changed != later || two.ByKey["c"].CAS == 0 {
		t.Errorf("got %+v", two.ByKey)
	}
	gone := two.Delete("b")
	back := mustSet(t, gone, "b", "3", false)
	if back.ByKey["b"].CAS <= two.ByKey["b"].CAS {
		t.Error("a key that came back has an old CAS")
	}
	if same, err := back.Set("b", "3", false, later); err != nil || same != back {
		t.Error("setting the same again is a change")
	}
	secret := mustSet(t, back, "b", "3", true)
	if secret.ByKey["b"].CAS <= back.ByKey["b"].CAS || !bytes.Equal(secret.Document, back.Document) {
		t.Error("making it secret is no change, or one of the document")
	}
	if open := mustSet(t, secret, "b", "5", false); !open.ByKey["b"].Secret {
		t.Error("a secret is open")
	}
	if open := mustImport(t, secret, "b: 6\n"); !open.ByKey["b"].Secret {
		t.Error("an imported secret is open")
	}
}

func TestBecomeMakesOldValuesCurrentAgain(t *testing.T) {
	t.Parallel()
	old := mustSet(t, mustImport(t, nil, "# one\na: 1\nb: 2\n"), "s", "hunter2", true)
	now := mustSet(t, old.Delete("b").Delete("s"), "c", "3", false)
	got := now.Restore(old, someDay.Add(time.Hour))
	if !bytes.Equal(got.Document, old.Document) || !maps.Equal(textsOf(got), textsOf(old)) || !got.ByKey["s"].Secret {
		t.Errorf("got %q, %+v", got.Document, got.ByKey)
	}
	if got.ByKey["a"] != old.ByKey["a"] || got.ByKey["b"].CAS <= now.Last || got.Last < got.ByKey["b"].CAS {
		t.Errorf("got %+v", got.ByKey)
	}
	if none := now.Restore(nil, someDay); len(none.ByKey) != 0 || none.Last != now.Last {
		t.Errorf("got %+v", none)
	}
}

func TestAMaskIsNoValueOfANewKey(t *testing.T) {
	t.Parallel()
	v := mustSet(t, mustImport(t, nil, "a: 1\n"), "s", "hunter2", true)
	_, err := v.Import([]byte("s: ••••\nt: '••••'\n"), someDay)
	if f := faultsOf(err); len(f) != 1 || f[0].Field != "metadata.t" || f[0].Line != 2 {
		t.Error(listing(err))
	}
	if back := mustImport(t, v, "# new\ns: ••••\na: 2\n"); back.ByKey["s"] != v.ByKey["s"] || back.ByKey["a"].Text != "2" || !strings.Contains(string(back.Document), "# new") {
		t.Errorf("got %q", back.Document)
	}
}

func TestSecretsAreListedLongestFirst(t *testing.T) {
	t.Parallel()
	v := mustImport(t, nil, "open: x\n")
	for i, text := range []string{"ab", "abc", "", "ab", "zz"} {
		v = mustSet(t, v, fmt.Sprint("s", i), text, true)
	}
	if got := v.Secrets(); !slices.Equal(got, []string{"abc", "ab", "zz"}) {
		t.Errorf("got %q", got)
	}
}

func TestCountingGoesFromTheDefault(t *testing.T) {
	t.Parallel()
	p := mustParse(t, "services: {}\nmetadata: {n: {type: integer, default: 5}, s: {secret: true}}")
	v, err := (*Values)(nil).Add(p, "n", 2, someDay)
	if err != nil || v.ByKey["n"].Text != "7" {
		t.Fatalf("%+v, %v", v, err)
	}
	if v, err = v.Add(p, "other", -3, someDay); err != nil || v.ByKey["other"].Text != "-3" {
		t.Fatalf("%+v, %v", v, err)
	}
	if v, err = v.Add(p, "s", 1, someDay); err != nil || !v.ByKey["s"].Secret {
		t.Fatalf("%+v, %v", v, err)
	}
	for _, text := range []string{"hunter2", "9223372036854775807", ""} {
		if _, err := mustSet(t, v, "n", text, false).Add(p, "n", 1, someDay); mariposa.CodeOf(err) != mariposa.InvalidArgument || strings.Contains(listing(err), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestDiffOfValuesMasksSecrets(t *testing.T) {
	t.Parallel()
	old := mustSet(t, mustImport(t, nil, "a: 1\nb: 2\nc: 3\n"), "s", "hunter2", true)
	new := mustSet(t, mustImport(t, old, "a: 1\nb: 4\ns: hunter3\nd: 5\n"), "t", "hunter4", true)
	want := []ValueChange{
		{Key: "b", Kind: ValueChanged, Before: "2", After: "4"},
		{Key: "c", Kind: ValueRemoved, Before: "3"},
		{Key: "d", Kind: ValueAdded, After: "5"},
		{Key: "s", Kind: ValueChanged, Before: Mask, After: Mask, Secret: true},
		{Key: "t", Kind: ValueAdded, After: Mask, Secret: true},
	}
	if got := DiffValues(old, new); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := DiffValues(nil, nil); got != nil {
		t.Errorf("got %+v", got)
	}
	if got := DiffValues(new, nil); len(got) != 5 || got[0].Kind != ValueRemoved {
		t.Errorf("got %+v", got)
	}
}

func TestStoredValuesThatAreNoneAreAnError(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", "{", "[]", `{"document":"- a"}`} {
		if _, err := UnmarshalValues([]byte(data)); err == nil {
			t.Errorf("%q is read", data)
		}
		if _, err := JoinValues([]byte("{}"), [][]byte{[]byte(`{"document":"b: 1\n"}`), []byte(data)}); err == nil {
			t.Errorf("%q is read as a part", data)
		}
	}
}

func TestAChangeOfOneKeyChangesOnePartOfManyValues(t *testing.T) {
	t.Parallel()
	var doc strings.Builder
	doc.WriteString("# before the first\n")
	for i := range 5000 {
		fmt.Fprintf(&doc, "key_%d: %s # said of %d\n", i, strings.Repeat("x", 1+i*7919%900), i)
	}
	v, err := (*Values)(nil).Import([]byte(doc.String()), someDay)
	if err != nil {
		t.Fatal(err)
	}
	_, before := v.Split()
	if n := len(before); n < 50 || n > 300 {
		t.Fatalf("%d bytes are in %d parts", doc.Len(), n)
	}
	for _, key := range []string{"key_0", "key_2500", "key_4999", "key_new"} {
		next, err := v.Set(key, "other", true, someDay)
		if err != nil {
			t.Fatal(err)
		}
		_, after := next.Split()
		written := 0
		for _, part := range after {
			if !slices.ContainsFunc(before, func(old []byte) bool { return bytes.Equal(old, part) }) {
				written += len(part)
			}
		}
		if written == 0 || written > 2*maxPart {
			t.Errorf("a change of %s writes %d bytes of %d anew", key, written, doc.Len())
		}
		if kept, err := JoinValues(next.Split()); err != nil || !bytes.Equal(kept.Document, next.Document) || !maps.Equal(kept.ByKey, next.ByKey) || kept.Last != next.Last {
			t.Errorf("%s: it is not what it was, %v", key, err)
		}
	}
}

func FuzzReadValues(f *testing.F) {
	for _, doc := range []string{
		"", "a: 1\n", "a: |\n  x\n\nb: >-\n  y", "{\"a\": \"\\u00e9\", b: }", "\ufeff---\r\na: 'x'\r\n...", "a: {{ .x }}\n", "a: [1]\n", "a: &x 1\nb: *x\n", "a:\n  b\n# c\n",
	} {
		f.Add([]byte(doc), "a", "x")
	}
	f.Fuzz(func(t *testing.T, doc []byte, key, text string) {
		v, err := (*Values)(nil).Import(doc, someDay)
		if err != nil {
			return
		}
		if !bytes.Equal(v.Document, doc) {
			t.Fatal("the document was changed")
		}
		next, err := v.Set(key, text, true, someDay)
		if err != nil {
			return
		}
		want := textsOf(v)
		want[key] = text
		if again, err := ReadValues(next.Document); err != nil || !maps.Equal(textsOf(again), want) {
			t.Fatalf("%q became %q, which says %q, %v", doc, next.Document, textsOf(again), err)
		}
		delete(want, key)
		gone := next.Delete(key)
		if again, err := ReadValues(gone.Document); err != nil || !maps.Equal(textsOf(again), want) {
			t.Fatalf("%q became %q, which says %q, %v", next.Document, gone.Document, textsOf(again), err)
		}
		if masked, err := ReadValues(next.Masked(Mask)); err != nil || masked.ByKey[key].Text != Mask {
			t.Fatalf("%q is shown as %q", next.Document, next.Masked(Mask))
		}
	})
}

package document

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"pgregory.net/rapid"

	"mariposa"
)

// show writes a tree on one line: scalars by kind and text.
func show(n *Node) string {
	switch n.Kind {
	case List:
		parts := make([]string, len(n.Items))
		for i, item := range n.Items {
			parts[i] = show(item)
		}
		return "[" + strings.Join(parts, " ") + "]"
	case Map:
		parts := make([]string, len(n.Entries))
		for i, e := range n.Entries {
			parts[i] = fmt.Sprintf("%s:%s", e.Key, show(e.Value))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case String:
		return fmt.Sprintf("%q", n.Text)
	case Null:
		return "-"
	case Refused:
		return "!"
	}
	return n.Text
}

var readable = []struct{ name, text, want string }{
	{"a block mapping", "a: 1\nb: x\n", `{a:1 b:"x"}`},
	{"a mapping in a mapping", "a:\n  b:\n    c: 1\n  d: 2\n", `{a:{b:{c:1} d:2}}`},
	{"a list under a key, indented", "a:\n  - x\n  - y\nb: 1\n", `{a:["x" "y"] b:1}`},
	{"a list under a key, in its column", "a:\n- x\n- y\nb: 1\n", `{a:["x" "y"] b:1}`},
	{"mappings in a list", "- a: 1\n  b: 2\n- c: 3\n", `[{a:1 b:2} {c:3}]`},
	{"lists in a list", "- - a\n  - b\n- c\n", `[["a" "b"] "c"]`},
	{"a value below its dash", "-\n  a: 1\n-\n- b\n", `[{a:1} - "b"]`},
	{"keys without values", "a:\nb:\n  c:\n", `{a:- b:{c:-}}`},
	{"flow collections", "a: [1, 'two', \"three\", {b: c, d: [e]}]\n", `{a:[1 "two" "three" {b:"c" d:["e"]}]}`},
	{"a flow collection over lines with comments", "a: [ # open\n  1,\n  2, # two\n]\nb: 1\n", `{a:[1 2] b:1}`},
	{"JSON", `{"a":[1,2.5,true,null],"b":{"c":"d\n\u00e9\ud83d\ude00"}}`, `{a:[1 2.5 true -] b:{c:"d\né😀"}}`},
	{"JSON over lines", "{\n\t\"a\": 1,\n\t\"b\": [\n\t]\n}\n", `{a:1 b:[]}`},
	{"interpolations in brackets", "a: [MODE={{ .meta.mode }}, DB={{ .services.db.address }}:5432]\n", `{a:["MODE={{ .meta.mode }}" "DB={{ .services.db.address }}:5432"]}`},
	{"an interpolation as a plain value", "a: {{ .scale }}\nb: x {{ .a }} y\n", `{a:"{{ .scale }}" b:"x {{ .a }} y"}`},
	{"an interpolation in braces", "a: {b: {{ .x }}}\n", `{a:{b:"{{ .x }}"}}`},
	{"comments", "# top\na: 1 # one\n# between\nb: x#y\n  # deep\nc: 'd' # e\n", `{a:1 b:"x#y" c:"d"}`},
	{"a plain text over lines", "a: x\n  y\n\n  z\nb: 1\n", "{a:\"x y\\nz\" b:1}"},
	{"a quoted text over lines", "a: \"x\n  y\n\n  z \\\n  w\"\n", "{a:\"x y\\nz w\"}"},
	{"single quotes", "a: 'it''s'\nb: ''\n", `{a:"it's" b:""}`},
	{"a literal text", "a: |\n  x\n   y\n\n  z\n\nb: 1\n", "{a:\"x\\n y\\n\\nz\\n\" b:1}"},
	{"a literal text without its last line end", "a: |-\n  x\n\n", `{a:"x"}`},
	{"a literal text with all its line ends", "a: |+\n  x\n\n\nb: 1\n", "{a:\"x\\n\\n\\n\" b:1}"},
	{"a literal text with a given indentation", "a: |2\n    x\n  y\n", "{a:\"  x\\ny\\n\"}"},
	{"a folded text", "a: >\n  x\n  y\n\n  z\n    w\n  v\n", "{a:\"x y\\nz\\n  w\\nv\\n\"}"},
	{"an empty literal text", "a: |\nb: 1\n", `{a:"" b:1}`},
	{"a literal text in a list", "- |\n  x\n- y\n", "[\"x\\n\" \"y\"]"},
	{"words that only YAML 1.1 takes for booleans", "a: no\nb: yes\nc: on\n", `{a:"no" b:"yes" c:"on"}`},
	{"numbers and what is none", "[1, -2, +3, 1.5, 1e3, .5, 1.2.3, 0x1F, 1_000, 12:30, -, 007]", ""},
	{"colons and hashes inside words", "a: http://x:80/#y\nb: x:y\n", `{a:"http://x:80/#y" b:"x:y"}`},
	{"carriage returns", "a: 1\r\nb:\r\n  - x\r\n", `{a:1 b:["x"]}`},
	{"a byte order mark", "\ufeffa: 1\n", `{a:1}`},
	{"document markers", "# c\n---\na: 1\n...\n# end\n", `{a:1}`},
	{"no line end at the end", "a: b", `{a:"b"}`},
	{"quoted keys", "\"a b\": 1\n'c': 2\n", `{a b:1 c:2}`},
	{"nothing but comments", "# x\n\n", `-`},
	{"trailing commas", "a: [1, 2,]\nb: {c: 1,}\n", `{a:[1 2] b:{c:1}}`},
	{"keys with spaces", "a b: c d\n", `{a b:"c d"}`},
}

func TestReadsWhatPeopleWrite(t *testing.T) {
	t.Parallel()
	for _, tt := range readable {
		if tt.want == "" {
			continue // only for the comparison
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			node, faults := Read([]byte(tt.text))
			if len(faults) > 0 {
				t.Fatalf("faults: %v", faults)
			}
			if got := show(node); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestRefusesWithTheLine(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		line       int
		say        string
	}{
		{"a tab that indents", "a:\n\tb: 1\n", 2, "tab"},
		{"a mapping behind a value", "a: b: c\n", 1, "colon"},
		{"a key indented too far", "a: 1\n b: 2\n", 2, "indentation"},
		{"a key indented too far below a mapping", "a:\n  b: 1\n   c: 2\n", 3, "indentation"},
		{"a list entry out of line", "a:\n  - x\n - y\n", 3, "indent"},
		{"an open bracket", "a: 1\nb: [1,\n  2\n", 2, "never closed"},
		{"an open brace", "b: {x: 1\n", 1, "never closed"},
		{"an open quote", "a: 1\nb: \"x\n\nc: 1\n", 2, "never closed"},
		{"a key after a list", "- a\nb: 1\n", 2, "indentation"},
		{"a text where a key should be", "a: 1\nb\n", 2, "colon"},
		{"text behind quotes", "a: 'x' y\n", 1, "follows a complete value"},
		{"an unknown escape", "a: \"\\q\"\n", 1, "escape"},
		{"half an escape", "a: \"\\u12\"\n", 1, "hexadecimal"},
		{"an escaped NUL", "a: \"\\0\"\n", 1, "escape"},
		{"an escaped NUL in hexadecimal", "a: \"\\x00\"\n", 1, "does not exist"},
		{"half a wide character", "a: \"\\ud83d\"\n", 1, "does not exist"},
		{"a wide character with a wrong half", "a: \"\\ud800\\u0041\"\n", 1, "does not exist"},
		{"a list behind its key", "a: - b\n", 1, "list"},
		{"a key in a list in brackets", "a: [b: 1]\n", 1, "braces"},
		{"a missing comma", "a: [\"b\" \"c\"]\n", 1, "comma"},
		{"an empty entry in brackets", "a: [1,,2]\n", 1, "missing"},
		{"two documents", "a: 1\n---\nb: 2\n", 2, "second document"},
		{"text after the end", "a: 1\n...\nb: 2\n", 3, "second document"},
		{"a directive", "%YAML 1.2\n---\na: 1\n", 1, "directive"},
		{"a reserved character", "a: @b\n", 1, "begin"},
		{"a complex key", "? a\n: b\n", 1, "?"},
		{"a NUL", "a: 1\nb: \x00\n", 2, "U+0000"},
		{"an escape character", "a: 1\nb: \x1b[31m\n", 2, "U+001B"},
		{"bytes that are not UTF-8", "a: 1\n\nb: \xff\xfe\n", 3, "UTF-8"},
		{"a list entry among keys", "k: v\n- a: 1\n", 2, "list entry"},
		{"a missing key", ": a\n", 1, "key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			node, faults := Read([]byte(tt.text))
			if node != nil || len(faults) != 1 {
				t.Fatalf("got %v and faults %v", node, faults)
			}
			if f := faults[0]; f.Line != tt.line || !strings.Contains(f.Message, tt.say) || f.Code != mariposa.FaultSyntax {
				t.Errorf("got %q (%s), want line %d and %q", f, f.Code, tt.line, tt.say)
			}
		})
	}
}

func TestStepsOverWhatItRefuses(t *testing.T) {
	t.Parallel()
	node, faults := Read([]byte("a: &x 1\nb: *x\nc: !!str 2\nd: {<<: *x, e: [*x, &y z]}\n<<: *x\nf: &z\n  g: 1\nh:\n  - &q\n    i: 1\n  - !t\n"))
	if node == nil {
		t.Fatal(faults)
	}
	want := `{a:1 b:! c:2 d:{<<:! e:[! "z"]} <<:! f:{g:1} h:[{i:1} -]}`
	if got := show(node); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	lines := ""
	for _, f := range faults {
		lines += fmt.Sprint(f.Line, " ")
	}
	if lines != "1 2 3 4 4 4 4 5 5 6 9 11 " {
		t.Errorf("lines %s", lines)
	}
}

func TestEveryNodeKnowsItsLine(t *testing.T) {
	t.Parallel()
	node, _ := Read([]byte("# c\na:\n  b: |\n    x\n    y\n  c: [1,\n    2]\nd:\n- e\n"))
	a, d := node.Entries[0], node.Entries[1]
	if a.Line != 2 || a.Value.Entries[0].Line != 3 || a.Value.Entries[1].Line != 6 || d.Line != 8 {
		t.Error("a key has the wrong line")
	}
	if a.Value.Entries[1].Value.Items[1].Line != 7 || d.Value.Items[0].Line != 9 {
		t.Error("an item has the wrong line")
	}
}

// hostile holds what must be answered quickly and cheaply, whatever the answer.
func hostile() map[string]string {
	const mb = 1 << 20
	var stairs strings.Builder
	for i := 0; stairs.Len() < mb; i++ {
		stairs.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	var wide strings.Builder
	for i := 0; wide.Len() < mb; i++ {
		fmt.Fprintf(&wide, "k%d: 1\n", i)
	}
	fill := func(s string) string { return strings.Repeat(s, mb/len(s)) }
	return map[string]string{
		"brackets": fill("["), "braces": fill("{"), "braces with keys": fill("{a: "), "brackets with texts": fill("[a,"),
		"dashes": fill("- "), "dash lines": fill("-\n"), "keys": fill("a: "), "key lines": fill("a:\n"), "stairs": stairs.String(), "wide": wide.String(),
		"quotes": fill("\""), "single quotes": fill("'"), "quote pairs": fill("'' "), "lists": "[" + fill("[],") + "]",
		"anchors": fill("&a "), "anchor lines": fill("&a\n"), "aliases": "[" + fill("*a,") + "]", "tags": fill("!a "),
		"open templates": "a: " + fill("{{"), "templates": "a: " + fill("{{ .a }}"), "open templates in a list": "[" + fill("a{{b "),
		"blank lines": "a: b" + fill("\n"), "comments": fill("#\n"), "literal": "a: |\n" + fill("  x\n"), "folded": "a: >\n" + fill("  x\n\n"),
		"plain lines": "a: b\n" + fill("  x\n"), "markers": fill("---\n"), "ends": fill("...\n"), "colons": fill(":"), "spaces": fill(" "),
		"question marks": fill("? "), "a blank line after each text": fill("- a\n\n"), "escapes": "a: \"" + fill("\\n"),
		"a bomb": "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n" + fill("d: [*c,*c]\n"),
	}
}

// The limit leaves room for a loaded machine and the race detector; anything
// quadratic would take minutes.
func TestHostileBytesCostLittle(t *testing.T) { // not parallel: it measures
	for name, text := range hostile() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			Read([]byte(text))
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 160<<20 {
				t.Errorf("allocated %d MB", used>>20)
			}
		})
	}
}

// plainValue turns a tree into what the library would make of it, as JSON.
func plainValue(n *Node) any {
	switch n.Kind {
	case List:
		list := []any{}
		for _, item := range n.Items {
			list = append(list, plainValue(item))
		}
		return list
	case Map:
		m := map[string]any{}
		for _, e := range n.Entries {
			m[e.Key] = plainValue(e.Value)
		}
		return m
	case Null:
		return nil
	case Bool:
		return strings.EqualFold(n.Text, "true")
	case Int, Float:
		return json.Number(n.Text)
	}
	return n.Text
}

// agree compares our reading with the library's where both accept a text.
func agree(t *testing.T, text string) {
	t.Helper()
	node, faults := Read([]byte(text))
	if node == nil || len(faults) > 0 {
		return
	}
	var theirs any
	if err := yaml.Unmarshal([]byte(text), &theirs); err != nil {
		return
	}
	if a, b := loosen(plainValue(node)), loosen(theirs); a != b {
		t.Errorf("of %q\nwe read   %s\nthey read %s", text, a, b)
	}
}

// loosen writes a value without the difference between a scalar and its text:
// which texts are numbers is decided differently by the library on purpose.
func loosen(v any) string {
	switch v := v.(type) {
	case map[string]any:
		out, _ := json.Marshal(func() map[string]string {
			m := map[string]string{}
			for k, x := range v {
				m[k] = loosen(x)
			}
			return m
		}())
		return string(out)
	case []any:
		parts := []string{}
		for _, x := range v {
			parts = append(parts, loosen(x))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case float64, int64, uint64, json.Number:
		return "number"
	case string:
		if v != "" && strings.Trim(v, "0123456789.+-_xXoOabcdefABCDEF") == "" {
			return "number"
		}
		return "text " + v
	}
	return fmt.Sprintf("%v", v)
}

func TestAgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	for _, tt := range readable {
		agree(t, strings.TrimPrefix(tt.text, "\ufeff")) // which it takes for part of a key
	}
}

// anyValue draws a tree of what manifests are made of.
func anyValue(t *rapid.T, depth int) any {
	text := rapid.StringOf(rapid.SampledFrom([]rune("ab z:#-,'\"[]{}&*!|>%@\\\n\té😀01.")))
	switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
	case depth > 0 && kind == 0:
		list := make([]any, rapid.IntRange(0, 4).Draw(t, "items"))
		for i := range list {
			list[i] = anyValue(t, depth-1)
		}
		return list
	case depth > 0 && kind <= 2:
		m := map[string]any{}
		for range rapid.IntRange(0, 4).Draw(t, "entries") {
			m[rapid.StringMatching("[a-z][a-z_ ]{0,5}[a-z]").Draw(t, "key")] = anyValue(t, depth-1)
		}
		return m
	case kind == 3:
		return rapid.Bool().Draw(t, "bool")
	case kind == 4:
		return rapid.IntRange(-1000, 1000).Draw(t, "int")
	}
	return text.Draw(t, "text")
}

func TestReadsBackWhatWasWrittenAsJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := anyValue(t, 4)
		for _, indent := range []string{"", "  ", "\t"} {
			text, err := json.MarshalIndent(want, "", indent)
			if err != nil {
				t.Fatal(err)
			}
			node, faults := Read(text)
			if len(faults) > 0 {
				t.Fatalf("of %s: %v", text, faults)
			}
			got, _ := json.Marshal(plainValue(node))
			if again, _ := json.Marshal(want); string(got) != string(again) {
				t.Fatalf("of %s we read %s", text, got)
			}
		}
	})
}

func TestNodesKnowTheirBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"a: 1 # c\nb: 'x y' \nc: \"z\"\n":           {"a", "1", "b", "'x y'", "c", "\"z\""},
		"a:\nb: # c\nc: ~\n":                        {"a", "", "b", "", "c", "~"},
		"\ufeffa: 1\r\nb: x\r\n  y # c\r\nc: 2\r\n": {"a", "1", "b", "x\r\n  y", "c", "2"},
		"---\na: |\n  x\n\n  y\n\nb: 1\n...\n":      {"a", "|\n  x\n\n  y", "b", "1"},
		"a: |+\n  x\n\nb: >- # c\n  y\n\n":          {"a", "|+\n  x\n", "b", ">- # c\n  y"},
		"a: |\nb:\n  next\n":                        {"a", "|", "b", "next"},
		"a: |\n  x":                                 {"a", "|\n  x"},
		"{a: 1, \"b\" : 'x' , c, d: ,e: x\n y}":     {"a", "1", "\"b\"", "'x'", "c", "", "d", "", "e", "x\n y"},
		"a: [1, 2] # c\nb: {c: d}\n":                {"a", "[1, 2]", "b", "{c: d}"},
	} {
		node, faults := Read([]byte(text))
		if len(faults) > 0 {
			t.Fatalf("%q: %v", text, faults)
		}
		var got []string
		for _, e := range node.Entries {
			rest := text[e.At:]
			got = append(got, rest[:strings.IndexAny(rest+":", ": ,}")], text[e.Value.Span.From:e.Value.Span.To])
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %q got  %q\nwant %q", text, got, want)
		}
	}
}

func TestHushedFaultsQuoteNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a: \"x\" zzz", "a: 1\nzzz", "a: @z", "a: \"\\z\"", "{a: \"x\" zzz}", "[zzz: x]", "a: 1\n zzz: x", "zzz", "a: [zzz", "a: &zzz 1", "a: !zzz 1",
	} {
		_, loud := Read([]byte(text))
		node, faults := ReadHushed([]byte(text))
		if len(faults) != len(loud) || (node == nil && len(faults) == 0) {
			t.Errorf("%q: %v and %v", text, loud, faults)
		}
		for _, f := range faults {
			if strings.Contains(f.Message, "z") {
				t.Errorf("%q: %s", text, f)
			}
		}
	}
}

func entriesOf(node *Node) []Entry {
	if node == nil {
		return nil
	}
	return node.Entries
}

func FuzzRead(f *testing.F) {
	for _, tt := range readable {
		f.Add([]byte(tt.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		node, faults := Read(data)
		if node == nil && len(faults) == 0 {
			t.Error("neither a document nor a fault")
		}
		for _, e := range entriesOf(node) {
			if s := e.Value.Span; e.At < 0 || e.Value.Kind < List && (s.From < e.At || s.To < s.From || s.To > len(data)) {
				t.Errorf("%q stands at %d, its value at %v, of %d", e.Key, e.At, s, len(data))
			}
		}
		lines := 1 + strings.Count(strings.ReplaceAll(string(data), "\r", "\n"), "\n")
		for _, fault := range faults {
			if fault.Line < 1 || fault.Line > lines {
				t.Errorf("fault on line %d of %d", fault.Line, lines)
			}
		}
	})
}

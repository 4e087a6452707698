package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"mariposa"
)

// show writes a tree on one line: scalars by kind and text.
func show(n *yaml.Node) string {
	var parts []string
	switch kindOf(n) {
	case kindList:
		for _, item := range n.Content {
			parts = append(parts, show(item))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case kindMap:
		for key, value := range entriesOf(n) {
			parts = append(parts, fmt.Sprintf("%s:%s", key.Value, show(value)))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case kindText:
		return fmt.Sprintf("%q", n.Value)
	case kindNull:
		return "-"
	case kindRefused:
		return "!"
	}
	return n.Value
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
	{"interpolations in brackets", "a: [\"MODE={{ .meta.mode }}\", 'DB={{ .services.db.address }}:5432']\n", `{a:["MODE={{ .meta.mode }}" "DB={{ .services.db.address }}:5432"]}`},
	{"an interpolation inside a plain value", "a: x {{ .a }} y\nb:\n  - c={{ .d }}\n", `{a:"x {{ .a }} y" b:["c={{ .d }}"]}`},
	{"a key behind a question mark", "? a\n: b\n", `{a:"b"}`},
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
	{"numbers and what is none", "[1, -2, +3, 1.5, 1e3, .5, 1.2.3, 12:30, 007, 2026-01-01]", `[1 -2 +3 1.5 1e3 .5 "1.2.3" "12:30" 007 "2026-01-01"]`},
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
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := show(readText(t, tt.text)); got != tt.want {
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
		{"a missing comma", "a: [\"b\" \"c\"]\n", 1, "comma"},
		{"an empty entry in brackets", "a: [1,,2]\n", 1, "missing"},
		{"two documents", "a: 1\n---\nb: 2\n", 2, "second document"},
		{"text after the end", "a: 1\n...\nb: 2\n", 3, "second document"},
		{"a directive", "%YAML 1.2\n---\na: 1\n", 1, "directive"},
		{"a reserved character", "a: @b\n", 1, "begin"},
		{"a NUL", "a: 1\nb: \x00\n", 2, "U+0000"},
		{"an escape character", "a: 1\nb: \x1b[31m\n", 2, "U+001B"},
		{"bytes that are not UTF-8", "a: 1\n\nb: \xff\xfe\n", 3, "UTF-8"},
		{"a list entry among keys", "k: v\n- a: 1\n", 2, "list item"},
		{"a missing key", ": a\n", 1, "key"},
		{"a line further down that is indented less", "a:\n  b:\n    c: 1\n\n    # more\n   d: 2\n  e: 3\n", 6, "indentation"},
		{"an open bracket at the end", "a: 1\nb: [\n\n", 2, "never closed"},
		{"a list as a key", "a: 1\n? [b]\n: c\n", 2, "cannot be a key"},
		{"an alias of nothing", "a: 1\nb: [c,\n  *d]\n", 3, "aliases"},
		{"what only some take for a line end", "a: 1\nb: \"x\u2028y\"\n", 2, "U+2028"},
		{"lists in lists without end", strings.Repeat("- ", 40) + "a\n", 1, "more than 32 levels deep"},
		{"brackets without end", "a:\n  " + strings.Repeat("[", 20_000), 2, "more than 32 levels deep"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			node, faults := read([]byte(tt.text))
			if node != nil || len(faults) != 1 {
				t.Fatalf("got %v and faults %v", node, faults)
			}
			if f := faults[0]; f.Line != tt.line || !strings.Contains(f.Message, tt.say) || f.Code != mariposa.FaultSyntax {
				t.Errorf("got %q (%s), want line %d and %q", f, f.Code, tt.line, tt.say)
			}
		})
	}
}

func TestAnInterpolationWithoutQuotesSaysToQuoteIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text   string
		line, column int
	}{
		{"a value", "a: 1\nb: {{ .scale }}\n", 2, 4},
		{"an entry of a list", "- a\n-   {{ .scale }}\n", 2, 5},
		{"a value in braces", "a: {b: {{ .x }}}\n", 1, 8},
		{"a value in brackets", "a: [é, {{ .x }}]\n", 1, 8},
		{"a part of a value in brackets", "a: [\"{{ .y }}\", MODE={{ .meta.mode }}]\n", 1, 22},
		{"a part of a value in braces", "a: {b: x{{ .x }}}\n", 1, 9},
		{"a value with something behind it", "a: {{ .x }}:80\n", 1, 4},
		{"an entry with something behind it", "b: 1\na:\n  - {{ .x }} y\n", 3, 5},
		{"brackets over lines", "a: [\n  '{{ .y }}', # {{ .z }}\n  b={{ .x }}\n]\nc: {{ .w }}\n", 3, 5},
		{"without spaces", "a: {{.x}}\n", 1, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, faults := read([]byte(tt.text))
			if len(faults) != 1 || faults[0].Line != tt.line || !strings.Contains(faults[0].Message, fmt.Sprintf("in column %d as a mapping; quote the whole value", tt.column)) {
				t.Errorf("got %v", faults)
			}
		})
	}
	for text, want := range map[string]mariposa.Fault{
		"a: [http://x/?b]\n":                           syntaxFault(1, fmt.Sprintf(quoteQuestion, 14)),
		"a: 1\nb: {c: \"d?\", # e?\n  path: /f?g=h}\n": syntaxFault(3, fmt.Sprintf(quoteQuestion, 11)),
	} {
		if _, faults := read([]byte(text)); len(faults) != 1 || faults[0] != want {
			t.Errorf("%q: %v, want %v", text, faults, want)
		}
	}
	for _, text := range []string{"a: [b, c: d\ne: x {{ .y }}\n", "a: [\"{{ .x }}\"\nb: {{ .c }} d\n", "a: 'x' y # {{ .z }}\n"} {
		if _, faults := read([]byte(text)); len(faults) != 1 || strings.Contains(faults[0].Message, "{{") {
			t.Errorf("%q: the wrong fault: %v", text, faults)
		}
	}
}

type panics struct{}

func (panics) Read([]byte) (int, error) { panic("a mistake of the library") }

func TestAPanicOfTheLibraryIsAFault(t *testing.T) {
	t.Parallel()
	_, err := decode(panics{})
	if !errors.Is(err, errLibrary) {
		t.Fatalf("got %v", err)
	}
	if _, problem := refusalOf(panics{}); problem != libraryFailed {
		t.Errorf("got %q", problem)
	}
}

func TestStepsOverWhatItRefuses(t *testing.T) {
	t.Parallel()
	node, faults := read([]byte("a: &x 1\nb: *x\nc: !!str 2\nd: {<<: *x, e: [*x, &y z]}\n<<: *x\nf: &z\n  g: 1\nh:\n  - &q\n    i: 1\n  - !t\nj: [k: 1]\n"))
	if node == nil {
		t.Fatal(faults)
	}
	want := `{a:1 b:! c:"2" d:{<<:! e:[! "z"]} <<:! f:{g:1} h:[{i:1} ""] j:[!]}`
	if got := show(node); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	lines := ""
	slices.SortStableFunc(faults, func(a, b mariposa.Fault) int { return a.Line - b.Line })
	for _, f := range faults {
		lines += fmt.Sprint(f.Line, " ")
	}
	if lines != "1 2 3 4 4 4 4 5 5 6 9 11 12 " {
		t.Errorf("lines %s", lines)
	}
}

func TestEveryNodeKnowsItsLine(t *testing.T) {
	t.Parallel()
	root := readText(t, "# c\na:\n  b: |\n    x\n    y\n  c: [1,\n    2]\nd:\n- e\n")
	a, d := root.Content[1], root.Content[3]
	if root.Content[0].Line != 2 || a.Content[0].Line != 3 || a.Content[2].Line != 6 || root.Content[2].Line != 8 {
		t.Error("a key has the wrong line")
	}
	if a.Content[3].Content[1].Line != 7 || d.Content[0].Line != 9 {
		t.Error("an item has the wrong line")
	}
}

// hostileBytes returns documents that must be read or refused quickly and cheaply.
func hostileBytes(size int) map[string]string {
	var stairs strings.Builder
	for i := 0; stairs.Len() < size; i++ {
		stairs.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	var wide strings.Builder
	for i := 0; wide.Len() < size; i++ {
		fmt.Fprintf(&wide, "k%d: 1\n", i)
	}
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	return map[string]string{
		"brackets": fill("["), "braces": fill("{"), "braces with keys": fill("{a: "), "brackets with texts": fill("[a,"),
		"dashes": fill("- "), "dash lines": fill("-\n"), "keys": fill("a: "), "key lines": fill("a:\n"), "stairs": stairs.String(), "wide": wide.String(),
		"quotes": fill("\""), "single quotes": fill("'"), "quote pairs": fill("'' "), "lists": "[" + fill("[],") + "]",
		"anchors": fill("&a "), "anchor lines": fill("&a\n"), "aliases": "[" + fill("*a,") + "]", "tags": fill("!a "),
		"open templates": "a: " + fill("{{"), "templates": "a: " + fill("{{ .a }}"), "open templates in a list": "[" + fill("a{{b "),
		"blank lines": "a: b" + fill("\n"), "comments": fill("#\n"), "literal": "a: |\n" + fill("  x\n"), "folded": "a: >\n" + fill("  x\n\n"),
		"plain lines": "a: b\n" + fill("  x\n"), "markers": fill("---\n"), "ends": fill("...\n"), "colons": fill(":"), "spaces": fill(" "),
		"question marks": fill("? "), "a blank line after each text": fill("- a\n\n"), "escapes": "a: \"" + fill("\\n"),
		"known aliases": "[&a x," + fill("*a,") + "]", "keys in braces": "{" + fill("a,") + "}", "comments behind values": fill("a: b #c\n"), "comments before values": fill("#c\n- b\n"),
		"comments below values": fill("a:\n  b: c\n#f\n\n"), "comments before a key": fill("# c\n\n") + "a: b\n", "questions": fill("?\n"), "a fault at the end": fill("a: b\n") + " - c\n",
		"a fault behind comments": "a: b\n- c\n" + fill("# c\n"), "a long key": fill("k") + ": 1\n", "long keys": fill(strings.Repeat("k", 1000) + ": 1\n"), "keys too long": fill(strings.Repeat("k", 2000) + ": 1\n"),
		"a fault behind a long line": "a: [" + fill("b, ") + "]\n- c\n", "indented comments": fill("a: b\n    # c\n"), "comments of growing depth": "a:\n" + fill(" b:\n  # c\n   # d\n"), "an open quote with line ends": "a: \"" + fill("b\n"),
		"questions in brackets": "a: [" + fill("b?, ") + "]\n", "a fault after many documents of comments": fill("# c\n\n# d\n\n") + "- a\nb: c\n", "a bomb": "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n" + fill("d: [*c,*c]\n"),
	}
}

// The limit leaves room for the race detector; anything quadratic would take minutes.
func TestHostileBytesCostLittle(t *testing.T) { // not parallel: it measures
	for name, text := range hostileBytes(MaxBytes / 4) {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := cpuTime()
			read([]byte(text))
			took := cpuTime() - start
			runtime.ReadMemStats(&after)
			if took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 {
				t.Errorf("allocated %d MB", used>>20)
			}
		})
	}
}

// anyValue draws a tree of the values that manifests contain.
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
			value, err := ReadJSON(text)
			if err != nil {
				t.Fatalf("of %s: %v", text, err)
			}
			got, _ := json.Marshal(value)
			if again, _ := json.Marshal(want); string(got) != string(again) {
				t.Fatalf("of %s we read %s", text, got)
			}
		}
	})
}

func TestValuesAreFoundInTheirBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"a: 1 # c\nb: 'x y' \nc: \"z\"\n":                     {"a", "1", "b", "'x y'", "c", "\"z\""},
		"a:\nb: # c\nc: ~\n":                                  {"a", "", "b", "", "c", "~"},
		"\ufeffa: 1\r\nb: x\r\n  y # c\r\nc: 2\r\n":           {"a", "1", "b", "x\r\n  y", "c", "2"},
		"---\na: |\n  x\n\n  y\n\nb: 1\n...\n":                {"a", "|\n  x\n\n  y", "b", "1"},
		"a: |+\n  x\n\nb: >- # c\n  y\n\n":                    {"a", "|+\n  x\n", "b", ">- # c\n  y"},
		"a: |\nb:\n  next\n":                                  {"a", "|", "b", "next"},
		"a: |\n  x":                                           {"a", "|\n  x"},
		"{a: 1, \"b\" : 'x' , c, d: ,e: x\n y}":               {"a", "1", "\"b\"", "'x'", "c", "", "d", "", "e", "x\n y"},
		"{\"a\": \"\\ud83d\\ude00 \\\\ud83d\", \"b\": \"é\"}": {"\"a\"", "\"\\ud83d\\ude00 \\\\ud83d\"", "\"b\"", "\"é\""},
		"a: |1 # c\n  x\n # y\n# z\nb: >+\n\n":                {"a", "|1 # c\n  x\n # y", "b", ">+\n"},
	} {
		pg, err := readValuesDocument([]byte(text))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		var got []string
		for _, e := range pg.entries {
			rest := text[e.at:]
			got = append(got, rest[:strings.IndexAny(rest+":", ": ,}")], text[e.from:e.to])
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %q got  %q\nwant %q", text, got, want)
		}
	}
}

func TestFaultsOfSyntaxQuoteNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a: \"x\" zzz", "a: 1\nzzz", "a: @z", "a: \"\\z\"", "{a: \"x\" zzz}", "[zzz: x]", "a: 1\n zzz: x", "zzz", "a: [zzz", "a: *zzz", "a: {zzz: {{ .zzz }}}", "a: [zzz{{ .zzz }}]", "a: &zzz 1", "a: !zzz 1",
	} {
		root, faults := read([]byte(text))
		if kindOf(cmp.Or(root, &yaml.Node{})) == kindMap && len(faults) == 0 {
			t.Errorf("%q is accepted", text)
		}
		for _, f := range faults {
			if strings.Contains(f.Message, "z") {
				t.Errorf("%q: %s", text, f)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, tt := range readable {
		f.Add([]byte(tt.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		root, faults := read(data)
		if root == nil && len(faults) == 0 {
			t.Error("neither a document nor a fault")
		}
		lines := 1 + strings.Count(strings.ReplaceAll(string(data), "\r", "\n"), "\n")
		for _, fault := range faults {
			if fault.Line < 1 || fault.Line > lines {
				t.Errorf("fault on line %d of %d", fault.Line, lines)
			}
		}
		pg, err := readValuesDocument(data)
		if err != nil {
			return
		}
		for _, e := range pg.entries {
			if e.at < 0 || e.from < e.at || e.to < e.from || e.to > len(data) {
				t.Errorf("%q stands at %d, its value at %v, of %d", e.key.Value, e.at, e.span, len(data))
			}
		}
	})
}

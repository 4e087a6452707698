package manifest

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"pgregory.net/rapid"
)

func TestManifestsThatCameAsJSONAreShownAsYAML(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, json, yaml string }{
		{"keys in their order", `{"services":{"web":{"scale":3,"compute_type":"dummy"},"db":{}}}`, "services:\n  web:\n    scale: 3\n    compute_type: dummy\n  db: {}\n"},
		{"lists", `{"a":["x",["y","z"],[],{"b":1,"c":[2]}]}`, "a:\n  - x\n  - - \"y\"\n    - z\n  - []\n  - b: 1\n    c:\n      - 2\n"},
		{"numbers as they were written", `{"a":[0,-1,0.50,1e3]}`, "a:\n  - 0\n  - -1\n  - 0.50\n  - 1e3\n"},
		{"words and numbers that are texts", `{"a":["yes","No","null","~","1.4","0x1f","","true"],"b":true,"c":null}`, "a:\n  - \"yes\"\n  - \"No\"\n  - \"null\"\n  - \"~\"\n  - \"1.4\"\n  - \"0x1f\"\n  - \"\"\n  - \"true\"\nb: true\nc: null\n"},
		{"names, paths and variables", `{"a":["shop/web:1.4","/bin/web","--port","MODE=a","x: y","a #b"," a"]}`, "a:\n  - shop/web:1.4\n  - /bin/web\n  - \"--port\"\n  - MODE=a\n  - \"x: y\"\n  - \"a #b\"\n  - \" a\"\n"},
		{"interpolations", `{"a":"{{ .meta.mode }}"}`, "a: \"{{ .meta.mode }}\"\n"},
		{"lines", `{"a":"one\n  two\n\nthree\n","b":["x\ny"],"c":"\nx","d":"x \ny","e":"x\n\n"}`, "a: |\n  one\n    two\n\n  three\nb:\n  - |-\n    x\n    y\nc: \"\\nx\"\nd: \"x \\ny\"\ne: \"x\\n\\n\"\n"},
		{"quotes and what cannot be seen", `{"a\"b":"\\ \u0007 \u2028 é 😀 \u007f"}`, "\"a\\\"b\": \"\\\\ \\a \\L é \\U0001F600 \\x7F\"\n"},
		{"nothing", `{}`, "{}\n"},
		{"YAML that called itself JSON", "a: 1 # one\n", "a: 1 # one\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := AsYAML([]byte(c.json)); string(got) != c.yaml {
				t.Errorf("got\n%s\nwanted\n%s", got, c.yaml)
			}
		})
	}
}

// texts draws texts that YAML could misinterpret, and any others.
var texts = rapid.OneOf(
	rapid.SampledFrom([]string{"no", "y", "1e3", "0o7", "-", "- a", "a: b", "a:", ":a", "#", "a #b", "<<", "---", "...", "'", `"`, "!x", "&x", "*x", "?", "%", "@", "`", "|", ">", ".5", ".inf", "12:30", "2026-01-01", "{{ .x }}", "[", "}", "a\nb", " a\nb", "a\n b\n", "\n", "a\tb", "\ta", "=", "+1", "a\r\nb"}),
	rapid.StringN(0, 20, -1), rapid.StringOfN(rapid.SampledFrom([]rune("ab: #-\n\"'\\{}[],|>&*!?%@1.~=\t")), 0, 8, -1),
)

func values() *rapid.Generator[any] {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		plain := rapid.OneOf(
			texts.AsAny(), rapid.Int().AsAny(), rapid.Float64Range(-1e6, 1e6).AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
		)
		if depth == 0 {
			return plain
		}
		return rapid.OneOf(plain, rapid.SliceOfN(value(depth-1), 0, 4).AsAny(), rapid.MapOfN(texts, value(depth-1), 0, 4).AsAny())
	}
	return value(4)
}

func TestGeneratedYAMLMeansWhatTheJSONMeant(t *testing.T) {
	t.Parallel()
	tried := 0
	rapid.Check(t, func(t *rapid.T) {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		if err := e.Encode(values().Draw(t, "document")); err != nil {
			t.Fatal(err)
		}
		root, faults := read(text.Bytes())
		if len(faults) > 0 {
			return // no manifest can contain this
		}
		tried++
		made := AsYAML(text.Bytes())
		again, faults := read(made)
		if len(faults) > 0 {
			t.Fatalf("%v in\n%s", faults, made)
		}
		if show(again) != show(root) {
			t.Fatalf("%s became\n%s", text.Bytes(), made)
		}
		var ours any
		if err := yaml.Unmarshal(made, &ours); err != nil {
			t.Fatalf("another reader: %v in\n%s", err, made)
		}
	})
	if tried == 0 {
		t.Error("no document was tried")
	}
}

func TestGeneratedYAMLHasTheSameDigests(t *testing.T) {
	t.Parallel()
	tried := 0
	rapid.Check(t, func(t *rapid.T) {
		word := func(name string) string {
			return strings.ReplaceAll(strings.ReplaceAll(texts.Draw(t, name), "{{", "{"), "\x00", "")
		}
		text, err := json.Marshal(map[string]any{"services": map[string]any{
			"web": map[string]any{
				"compute_type": "process", "command": []string{"run", word("argument")}, "scale": rapid.IntRange(0, 9).Draw(t, "scale"),
				"environment": map[string]string{"A": word("a"), "B": word("b")}, "tags": map[string]string{"role": word("tag")},
				"cpu": 0.5, "memory": "64m", "restart": "no", "update": map[string]any{"rolling": "25%"},
			},
			"db": map[string]any{"compute_type": "dummy", "dummy": map[string]any{"update_in_place_prop": word("prop")}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		before, err := Parse(text)
		if err != nil {
			return // no manifest may contain these words
		}
		tried++
		made := AsYAML(text)
		after, err := Parse(made)
		if err != nil {
			t.Fatalf("%v in\n%s", err, made)
		}
		for name, s := range before.ByName {
			if a := after.ByName[name]; a.Digest != s.Digest || a.Live != s.Live {
				t.Fatalf("%s is another in\n%s", name, made)
			}
		}
	})
	if tried == 0 {
		t.Error("no manifest was tried")
	}
}

// A key of several lines is written with a question mark. Its value must be readable by
// others too, which do not know blocks there.
func TestTheValueOfALongKeyIsOnOneLine(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{`[{"\n":"a\na"}]`, `[{"a\nb":{"c":["d\ne"]}}]`, `{"` + strings.Repeat("k", 200) + `":["a\na",{}]}`} {
		made := AsYAML([]byte(doc))
		var is, want any
		if err := yaml.Unmarshal(made, &is); err != nil {
			t.Errorf("another reader: %v in\n%s", err, made)
			continue
		}
		if err := json.Unmarshal([]byte(doc), &want); err != nil || !reflect.DeepEqual(is, want) {
			t.Errorf("%s is read as %v\n%s", doc, is, made)
		}
	}
}

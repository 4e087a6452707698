package compose

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/schema"
	"pgregory.net/rapid"

	"mariposa"
	"mariposa/manifest"
)

// mustHold fails the test unless a translation is an error for the user, or a valid
// manifest with notes that have lines.
func mustHold(t interface {
	Helper()
	Errorf(format string, args ...any)
}, text string, doc []byte, notes []Note, err error,
) {
	t.Helper()
	if err != nil {
		if mariposa.CodeOf(err) == mariposa.Internal {
			t.Errorf("%v\n%s", err, text)
		}
		return
	}
	if _, err := manifest.Parse(doc); err != nil {
		t.Errorf("%v\n%s\nof\n%s", err, doc, text)
	}
	lines := strings.Count(text, "\n") + strings.Count(text, "\r") + 1
	last := 0
	for _, n := range notes {
		if n.Line < last || n.Line > lines || n.Path == "" || n.Message == "" {
			t.Errorf("a note is out of order or incomplete: %+v\nof\n%s", n, text)
		}
		last = n.Line
	}
}

// Whatever the input is, the result is an error or a valid manifest.
func FuzzTranslate(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("services: {a: {image: \"\\x7f\", command: [\"\\0\"], labels: {\"\\u2028\": \"\\ufeff\"}}}")
	f.Add("services: {a: }")
	f.Add("a: &a [*a]\nservices: *a")
	f.Fuzz(func(t *testing.T, text string) {
		doc, notes, err := Translate(t.Context(), Input{Project: "shop", File: "compose.yaml", Dir: "/nowhere", Text: []byte(text)})
		mustHold(t, text, doc, notes, err)
	})
}

// anyValue generates values of all shapes, mostly such as keys of services have.
func anyValue() *rapid.Generator[any] {
	word := rapid.OneOf(
		rapid.SampledFrom([]string{"", "a", "A_b", "x-1", "/data", "/data/x/", "./f", "a:/b", "a:/b:ro", "80:80", "1-3", "53/udp", "1.5", "512m", "10s", "true", "no", "{{", "{{ .meta.x }}", "{{{", "$X", "${X:-y}", "$$", "service:a", "host", "K=v", "K", "on-failure:3", "always", "default", "\x7f", "\u2028", "ü", "\x00", "*", "web", "db"}),
		rapid.String(),
	)
	scalar := rapid.OneOf(rapid.Map(word, func(s string) any { return s }), rapid.Map(rapid.IntRange(-2, 70000), func(n int) any { return n }), rapid.Map(rapid.Bool(), func(b bool) any { return b }), rapid.Just[any](nil))
	list := rapid.Map(rapid.SliceOfN(scalar, 0, 4), func(all []any) any { return all })
	keys := rapid.OneOf(word, rapid.SampledFrom([]string{"source", "target", "type", "condition", "published", "file", "test", "limits", "resources", "replicas", "memory", "cpus", "driver", "external", "name", "aliases"}))
	mapping := rapid.Map(rapid.MapOfN(keys, rapid.OneOf(scalar, list), 0, 4), func(m map[string]any) any { return m })
	maps := rapid.Map(rapid.SliceOfN(mapping, 0, 3), func(all []any) any { return all })
	return rapid.OneOf(scalar, list, mapping, maps)
}

// typical generates values of the types that a key has, with any content.
func typical(key string) *rapid.Generator[any] {
	text := rapid.OneOf(rapid.SampledFrom([]string{"a", "/a/b", "/a/b/", "{{", "{{{ .meta.x }}", "a b", "1000:1000", "\x7f", "\u2028\ufeff", "\x00", "x=y", "10.0.0.1"}), rapid.String())
	texts := rapid.Map(rapid.SliceOfN(text, 0, 4), func(all []string) any { return all })
	one := func(values ...any) *rapid.Generator[any] { return rapid.SampledFrom(values) }
	switch key {
	case "environment", "labels":
		return rapid.Map(rapid.MapOfN(text, text, 0, 4), func(m map[string]string) any { return m })
	case "command", "entrypoint", "dns", "dns_search", "cap_add", "tmpfs":
		return texts
	case "working_dir", "user", "hostname", "container_name", "stop_signal":
		return rapid.Map(text, func(s string) any { return s })
	case "ports", "expose":
		return rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"80", "80:81", "80:82", "8000-8003:9000-9003", "127.0.0.1:1:2", "53:53/udp", "1-3:7"}), 0, 4), func(all []string) any { return all })
	case "volumes":
		return rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a:/a", "a:/a/b", "A_b:/c:ro", "/anonymous", "/a/b/c/", "./f:/f", "/:/root", "a:/"}), 0, 4), func(all []string) any { return all })
	case "networks":
		return one([]string{"a"}, []string{"A_b", "default"}, map[string]any{"a": map[string]any{"aliases": []string{"x"}}})
	case "secrets", "configs":
		return one([]string{"a"}, []any{map[string]any{"source": "open_braces", "target": "../x"}}, []string{"open_braces", "a"})
	case "deploy":
		return one(map[string]any{"replicas": 3}, map[string]any{"mode": "global", "update_config": map[string]any{"parallelism": 0, "order": "stop-first", "monitor": "1s"}}, map[string]any{"restart_policy": map[string]any{"condition": "on-failure", "max_attempts": 0}}, map[string]any{"resources": map[string]any{"limits": map[string]any{"cpus": "0.0001", "memory": "1"}}})
	case "restart":
		return one("no", "always", "on-failure", "on-failure:0", "on-failure:5", "unless-stopped", "x")
	case "depends_on":
		return one([]string{"web"}, map[string]any{"web": map[string]any{"condition": "service_completed_successfully"}})
	case "mem_limit", "shm_size":
		return one("512m", 1, "1.5g", "100000000t", -1)
	case "cpus":
		return one(0.1, 1e-9, 5000, -1, "2")
	case "scale":
		return one(0, 3, 100_000_000)
	case "stop_grace_period":
		return one("1m30s", "0s", "100000h")
	}
	return anyValue()
}

func TestAnyFileIsAnErrorOrAManifest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := slices.Sorted(maps.Keys(serviceRules))
	for _, key := range []string{"environment", "labels", "command", "ports", "volumes", "deploy", "working_dir", "user", "dns", "secrets", "networks"} {
		keys = append(keys, slices.Repeat([]string{key}, 10)...) // those that become part of the manifest more often
	}
	translated := 0
	rapid.Check(t, func(t *rapid.T) {
		svc := func(label string) map[string]any {
			all := map[string]any{"image": "x"}
			for i := range rapid.IntRange(0, 3).Draw(t, label+" keys") {
				key := rapid.SampledFrom(keys).Draw(t, fmt.Sprint(label, i))
				values := typical(key)
				if rapid.IntRange(0, 9).Draw(t, "shape") == 0 {
					values = anyValue()
				}
				all[key] = values.Draw(t, label+" "+key)
			}
			return all
		}
		file := map[string]any{"services": map[string]any{"web": svc("web"), rapid.SampledFrom([]string{"db", "D.B", "d_b", "d-b"}).Draw(t, "name"): svc("db")}}
		for _, top := range []string{"volumes", "networks", "secrets", "configs"} {
			file[top] = map[string]any{"a": nil, "default": nil, "A_b": map[string]any{}}
			if top == "secrets" || top == "configs" {
				file[top] = map[string]any{"a": map[string]any{"environment": "X"}, "open_braces": map[string]any{"file": "./f"}}
			}
		}
		text, err := json.MarshalIndent(file, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		doc, notes, err := Translate(t.Context(), Input{Project: "shop", File: "compose.yaml", Dir: dir, Text: text, Environment: map[string]string{"X": "{{x"}, Read: readFile})
		if err == nil {
			translated++
		}
		mustHold(t, string(text), doc, notes, err)
	})
	t.Logf("%d files were translated", translated)
	if translated == 0 {
		t.Error("no file was valid: the test checks nothing")
	}
}

// The specification of Compose files grows: a new key needs a decision here.
func TestEveryKeyOfComposeFilesHasARule(t *testing.T) {
	t.Parallel()
	var spec struct {
		Properties map[string]any `json:"properties"`
		Defs       map[string]struct {
			Properties map[string]any   `json:"properties"`
			AllOf      []map[string]any `json:"allOf"`
		} `json:"definitions"`
	}
	if err := json.Unmarshal([]byte(schema.Schema), &spec); err != nil {
		t.Fatal(err)
	}
	check := func(name string, keys map[string]any, rules map[string]rule) {
		if len(keys) == 0 {
			t.Errorf("%s: the schema has no keys, so this test reads it wrongly", name)
		}
		for key := range keys {
			if _, ok := rules[key]; !ok && !strings.HasPrefix(key, "x-") {
				t.Errorf("%s.%s has no rule", name, key)
			}
		}
	}
	check("the file", spec.Properties, topRules)
	for name, rules := range map[string]map[string]rule{"network": networkRules, "volume": volumeRules, "secret": fileRules, "config": fileRules, "deployment": deployRules} {
		check(name, spec.Defs[name].Properties, rules)
	}
	services := 0
	for name, def := range spec.Defs {
		if name == "service" || strings.HasSuffix(name, "_spec") {
			services += len(def.Properties)
			check(name, def.Properties, serviceRules)
		}
	}
	if services < 80 {
		t.Errorf("the schema has only %d keys of services, so this test reads it wrongly", services)
	}
}

// Files that are small and expand to much are refused, or translated, in bounded time.
func TestFilesThatExpandAreBounded(t *testing.T) {
	t.Parallel()
	bomb := func(first, next string, levels int) string {
		var b strings.Builder
		b.WriteString(first)
		for i := 1; i < levels; i++ {
			fmt.Fprintf(&b, next, i, i-1)
		}
		return b.String()
	}
	lists := bomb("x-0: &a0 [a, a]\n", "x-%[1]d: &a%[1]d [*a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d]\n", 20)
	merges := bomb("x-0: &a0 {a: b}\n", "x-%[1]d: &a%[1]d\n  <<: [*a%[2]d, *a%[2]d, *a%[2]d]\n", 40)
	extends := bomb("services:\n  s0: {image: x, privileged: true}\n", "  s%[1]d: {extends: {service: s%[2]d}}\n", 500)
	cycle := "services:\n  a: {extends: b}\n  b: {extends: a}\n---\nservices:\n  a: {extends: b}\n  b: {extends: a}\n"
	var variables, ports, deep strings.Builder
	variables.WriteString("services:\n  web:\n    image: x\n    environment:\n")
	for i := range 5_000 {
		fmt.Fprintf(&variables, "      V%d_PASSWORD: $UNSET%d\n", i, i)
	}
	ports.WriteString("services:\n  web:\n    image: x\n    ports:\n")
	for i := range 2_000 {
		fmt.Fprintf(&ports, "      - \"%d:%d\"\n", i+1, i+1)
	}
	deep.WriteString("services: {web: {image: x, command: ")
	deep.WriteString(strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + "}}")
	for name, text := range map[string]string{
		"lists": lists + "services: {web: {image: x}}\n", "used lists": lists + "services: {web: {image: x, command: *a19}}\n",
		"merges": merges + "services:\n  web:\n    <<: *a39\n    image: x\n", "chain": extends, "cycle": cycle,
		"variables": variables.String(), "ports": ports.String(), "range": "services: {web: {image: x, ports: [\"1-9999:1-9999\"], expose: [\"1-65535\"]}}",
		"depth": deep.String(), "itself": "x: &a [*a]\nservices: {web: {image: x}}\n", "too large": "# " + strings.Repeat("x", MaxBytes),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			doc, notes, err := Translate(t.Context(), Input{Project: "shop", File: "compose.yaml", Dir: "/nowhere", Text: []byte(text)})
			mustHold(t, text[:min(len(text), 1000)]+strings.Repeat("\n", strings.Count(text, "\n")), doc, notes, err)
			t.Logf("%s, %d notes, error: %.200v", time.Since(begun), len(notes), err)
			if took := time.Since(begun); took > 8*time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mariposa"
)

func declare(rules string) string { return "services: {}\nmetadata:\n  k: {" + rules + "}\n" }

func TestDeclarationsAreReadWithTheirDefaults(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `services: {}
metadata:
  plain:
  mode: {required: true, description: How it runs, choices: [fast, safe], default: safe}
  port: {type: integer, default: 8080, pattern: "[0-9]{2,5}"}
  password: {secret: true, generate: 32}
`)
	var names []string
	for _, m := range p.Metadata {
		names = append(names, m.Name)
	}
	if !slices.Equal(names, []string{"mode", "password", "plain", "port"}) {
		t.Errorf("got %v", names)
	}
	if m, _ := p.Declared("mode"); !m.Required || m.Description != "How it runs" || !slices.Equal(m.Choices, []string{"fast", "safe"}) || *m.Default != "safe" || m.Type != "string" {
		t.Errorf("got %+v", m)
	}
	if m, _ := p.Declared("port"); m.Type != "integer" || *m.Default != "8080" || m.Pattern != "[0-9]{2,5}" {
		t.Errorf("got %+v", m)
	}
	if m, _ := p.Declared("password"); !m.Secret || m.Generate != 32 || m.Default != nil {
		t.Errorf("got %+v", m)
	}
	if _, ok := p.Declared("other"); ok || !p.IsSecret("password") || p.IsSecret("mode") || (*Project)(nil).IsSecret("mode") {
		t.Error("what is declared, and what is secret")
	}
}

func TestDeclarationsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, rules, field, message string }{
		{"a secret with a default", "secret: true, default: hunter2", "metadata.k.default", "a secret cannot have a default"},
		{"a generator with a default", "generate: 8, default: x", "metadata.k.default", "keep one"},
		{"a generator with choices", "generate: 8, choices: [a, b]", "metadata.k.choices", "letters and digits"},
		{"a generator with a pattern", "generate: 8, pattern: x+", "metadata.k.pattern", "letters and digits"},
		{"a generator of numbers", "generate: 8, type: integer", "metadata.k.type", "letters and digits"},
		{"an unknown type", "type: float", "metadata.k.type", "must be string, integer or boolean"},
		{"a broken pattern", "pattern: 'a('", "metadata.k.pattern", "RE2"},
		{"an empty pattern", "pattern: ''", "metadata.k.pattern", "1 to 512 bytes"},
		{"a pattern that looks back", "pattern: '(a)\\1'", "metadata.k.pattern", "RE2"},
		{"a pattern that explodes", "pattern: '(a{30}){30}b{1000}'", "metadata.k.pattern", "simplify the pattern"},
		{"no choices", "choices: []", "metadata.k.choices", "at least one"},
		{"a choice twice", "choices: [a, a]", "metadata.k.choices[1]", "twice"},
		{"a choice of another type", "type: boolean, choices: [true, maybe]", "metadata.k.choices[1]", "true or false"},
		{"a choice against the pattern", "pattern: 'a+', choices: [a, b]", "metadata.k.choices[1]", "must match"},
		{"a default that is no choice", "choices: [a, b], default: c", "metadata.k.default", "must be a or b"},
		{"a default of another type", "type: integer, default: many", "metadata.k.default", "64-bit integer"},
		{"a default against the pattern", "pattern: 'a+', default: aab", "metadata.k.default", "must match"},
		{"a generator too long", "generate: 5000", "metadata.k.generate", "from 1 to 1024"},
		{"a nested default", "default: [a]", "metadata.k.default", "must be a string"},
		{"an unknown rule", "requird: true", "metadata.k.requird", `did you mean "required"?`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(declare(tt.rules)))
			f := faultsOf(err)
			if len(f) != 1 || f[0].Field != tt.field || f[0].Line != 3 || !strings.Contains(f[0].Message, tt.message) {
				t.Errorf("got\n%s", listing(err))
			}
		})
	}
}

func TestAManifestAsksForALimitedAmountOfWork(t *testing.T) {
	t.Parallel()
	for rules, most := range map[string]int{"generate: 8": 100, "pattern: '.{0,1000}'": 10} {
		text := func(n int) []byte {
			var b strings.Builder
			b.WriteString("services: {}\nmetadata:\n")
			for i := range n {
				fmt.Fprintf(&b, "  k%d: {%s}\n", i, rules)
			}
			return []byte(b.String())
		}
		if _, err := Parse(text(most)); err != nil {
			t.Errorf("%s: %v", rules, err)
		}
		_, err := Parse(text(most + 50))
		if f := faultsOf(err); len(f) != 1 || f[0].Code != mariposa.FaultTooLarge || f[0].Line != 3+most {
			t.Errorf("%s: %s", rules, listing(err))
		}
	}
}

func TestValuesAreHeldToTheirDeclaration(t *testing.T) {
	t.Parallel()
	tests := []struct {
		rules     string
		good, bad []string
	}{
		{"", []string{"", "x", "\n"}, nil},
		{"type: integer", []string{"0", "-7", "+7", "007", "9223372036854775807"}, []string{"", "x", "1.5", "1e3", "9223372036854775808", " 1"}},
		{"type: boolean", []string{"true", "False", "TRUE"}, []string{"", "yes", "1", "truth"}},
		{"choices: [a, b b, 1]", []string{"a", "b b", "1"}, []string{"", "b", "1.0"}},
		{"pattern: 'a|ab+'", []string{"a", "abb"}, []string{"", "b", "aba", "xa", "a\n"}},
		{"pattern: '^[a-z]+$'", []string{"abc"}, []string{"aBc", "abc\n"}},
		{"pattern: '\\Qa.b'", []string{"a.b"}, []string{"axb"}},
		{"pattern: 'x*'", []string{"", strings.Repeat("x", 16<<10)}, []string{strings.Repeat("x", 16<<10+1)}},
		{"type: integer, pattern: '[0-9]+', choices: [1, 22]", []string{"1", "22"}, []string{"3"}},
	}
	for _, tt := range tests {
		p := mustParse(t, declare(tt.rules))
		for _, text := range tt.good {
			if err := p.CheckValue("k", text); err != nil {
				t.Errorf("%s: %q is refused: %v", tt.rules, text, err)
			}
		}
		for _, text := range tt.bad {
			err := p.CheckValue("k", text)
			if f := faultsOf(err); mariposa.CodeOf(err) != mariposa.InvalidArgument || len(f) != 1 || f[0].Field != "metadata.k" {
				t.Errorf("%s: %q: %v", tt.rules, text, err)
			}
		}
		if err := p.CheckValue("undeclared", "anything"); err != nil {
			t.Error(err)
		}
	}
}

func TestCheckedValuesAreNeverShown(t *testing.T) {
	t.Parallel()
	p := mustParse(t, "services: {}\nmetadata: {a: {type: integer}, b: {secret: true, pattern: '[0-9]+'}, c: {choices: [x]}, d: {type: boolean}}")
	v := mustImport(t, nil, "# mine\na: hunter2\nb: hunter3\nd: true\nc: hunter4\n")
	err := p.CheckValues(v, nil)
	if got := listing(err); strings.Contains(got, "hunter") || len(faultsOf(err)) != 3 {
		t.Error(got)
	}
	for i, want := range []struct {
		field string
		line  int
	}{{"metadata.a", 2}, {"metadata.b", 3}, {"metadata.c", 5}} {
		if f := faultsOf(err)[i]; f.Field != want.field || f.Line != want.line {
			t.Errorf("got %s", f)
		}
	}
	if p.CheckValues(nil, nil) != nil || p.CheckValues(mustImport(t, nil, "a: 1\nother: x\n"), nil) != nil {
		t.Error("good values are refused")
	}
}

func TestMissingAreTheRequiredThatNothingProvides(t *testing.T) {
	t.Parallel()
	p := mustParse(t, "services: {}\nmetadata: {z: {required: true}, a: {required: true}, b: {required: true, default: x}, c: {required: true, generate: 8}, d: {}, e: {required: true}}")
	v := mustImport(t, nil, "e: ''\nz:\n")
	if got := p.Missing(v); !slices.Equal(got, []string{"a", "z"}) {
		t.Errorf("got %v", got)
	}
	if got := p.Missing(nil); !slices.Equal(got, []string{"a", "e", "z"}) {
		t.Errorf("got %v", got)
	}
	if text, ok := p.Value(v, "b"); !ok || text != "x" {
		t.Error("a default is no value")
	}
	if text, ok := p.Value(mustSet(t, v, "b", "y", false), "b"); !ok || text != "y" {
		t.Error("a default hides the value")
	}
	if _, ok := p.Value(v, "d"); ok {
		t.Error("what is not set has a value")
	}
}

func TestGenerateFillsGeneratorsAndNothingElse(t *testing.T) {
	t.Parallel()
	p := mustParse(t, "services: {}\nmetadata: {a: {generate: 3}, b: {generate: 5, secret: true}, c: {generate: 7}, d: {required: true}}")
	random := func(n int) string { return strings.Repeat("r", n) }
	v := mustImport(t, nil, "# mine\nc: kept\n")
	next, made, err := p.Generate(v, random, someDay)
	if err != nil || !slices.Equal(made, []string{"a", "b"}) {
		t.Fatalf("made %v, %v", made, err)
	}
	if string(next.Document) != "# mine\nc: kept\na: rrr\nb: rrrrr\n" || next.ByKey["a"].Secret || !next.ByKey["b"].Secret {
		t.Errorf("got %q, %+v", next.Document, next.ByKey)
	}
	if again, made, err := p.Generate(next, random, someDay); again != next || made != nil || err != nil {
		t.Errorf("made %v again, %v", made, err)
	}
	if first, made, err := p.Generate(nil, random, someDay); err != nil || len(made) != 3 || len(first.ByKey) != 3 {
		t.Errorf("made %v, %v", made, err)
	}
}

func TestDeclaredSecretsAreMarked(t *testing.T) {
	t.Parallel()
	p := mustParse(t, "services: {}\nmetadata: {a: {secret: true}, b: {}}")
	v := mustImport(t, nil, "a: hunter2 # a\nb: |\n  open\n")
	marked := v.WithSecretsMarked(p)
	if got := string(marked.Masked(Mask)); got != "a: •••• # a\nb: |\n  open\n" {
		t.Errorf("got %q", got)
	}
	if v.ByKey["a"].Secret || marked.ByKey["a"].CAS != v.ByKey["a"].CAS {
		t.Error("the values themselves were changed")
	}
	if marked.WithSecretsMarked(p) != marked || marked.WithSecretsMarked(nil) != marked || (*Values)(nil).WithSecretsMarked(p) != nil {
		t.Error("nothing to mark is a change")
	}
}

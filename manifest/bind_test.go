package manifest

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
)

// someMac is a keyed hash that is good enough for tests.
func someMac(parts ...string) string { return hash("key" + fmt.Sprintf("%q", parts)) }

const threeServices = `
services:
  api:
    compute_type: process
    command: [run, "{{ .meta.mode }}"]
    environment: {K: "{{ .meta.key }}", N: "{{ .meta.name }}"}
    mdata: {live: "{{ .meta.live }}{{ .meta.key }}"}
  db:
    compute_type: dummy
    files: {/run/secrets/db: "{{ .meta.key }}"}
    tags: {t: "{{ .meta.d.otted }}"}
    package: small
  web: {compute_type: dummy, mdata: {live: "{{ .meta.live }}"}}
metadata: {mode: {default: fast}, key: {secret: true}, name: {}, live: {}, d.otted: {default: x}, unused: {}}
`

func TestUsesListsWhatIsProvisioned(t *testing.T) {
	t.Parallel()
	p := mustParse(t, threeServices)
	for service, want := range map[string][2]string{
		"api": {"[key mode name]", "[key live]"}, "db": {"[d.otted key]", "[]"}, "web": {"[]", "[live]"}, "none": {"[]", "[]"},
	} {
		if got := [2]string{fmt.Sprint(p.Uses(service)), fmt.Sprint(p.UsesLive(service))}; got != want {
			t.Errorf("%s: got %v, want %v", service, got, want)
		}
	}
}

func TestBindSharesWhatNeedsNothing(t *testing.T) {
	t.Parallel()
	p := mustParse(t, threeServices)
	bound := Bind(p, nil, nil, nil, nil)
	if bound["web"] != p.ByName["web"] {
		t.Error("web was copied")
	}
	if got := bound["api"]; got == p.ByName["api"] || mariposa.FormOf(got.Digest) != p.ByName["api"].Digest || got.Digest == p.ByName["api"].Digest {
		t.Errorf("api is %+v", got)
	}
	if p.ByName["api"].Needs != nil || !slices.Equal(bound["api"].Needs, []string{"key", "name"}) || !slices.Equal(bound["db"].Needs, []string{"key"}) {
		t.Errorf("needs %v and %v", bound["api"].Needs, bound["db"].Needs)
	}
	if !slices.Equal(bound["api"].Secrets, []string{"key"}) {
		t.Errorf("of its needs, %v are secret", bound["api"].Secrets)
	}
	if one := BindService(p, p.ByName["api"], nil, nil, nil, nil); one.Digest != bound["api"].Digest {
		t.Error("alone it is another")
	}
}

func TestARequiredKeyIsNeededByEveryService(t *testing.T) {
	t.Parallel()
	p := mustParse(t, strings.Replace(threeServices, "unused: {}", "unused: {required: true}", 1))
	v := mustImport(t, nil, "key: k\nname: n\n")
	for name, svc := range Bind(p, v, nil, nil, someMac) {
		if !slices.Equal(svc.Needs, []string{"unused"}) {
			t.Errorf("%s needs %v", name, svc.Needs)
		}
	}
	for name, svc := range Bind(p, mustSet(t, v, "unused", "", false), nil, nil, someMac) {
		if len(svc.Needs) > 0 {
			t.Errorf("%s needs %v", name, svc.Needs)
		}
	}
}

func TestADefaultSpelledOutChangesNothing(t *testing.T) {
	t.Parallel()
	p := mustParse(t, "services: {a: {compute_type: dummy, tags: {t: '{{ .meta.mode }}'}}}\nmetadata: {mode: {default: fast}, other: {}}")
	unset := Bind(p, nil, nil, nil, nil)["a"].Digest
	for doc, same := range map[string]bool{"other: 1": true, "mode: fast": true, "mode: slow": false, "mode: ''": false} {
		if got := Bind(p, mustImport(t, nil, doc), nil, nil, someMac)["a"].Digest; (got == unset) != same {
			t.Errorf("%s: %s and %s", doc, got, unset)
		}
	}
}

func TestPackagesGiveTheSizesThatAServiceDoesNotSay(t *testing.T) {
	t.Parallel()
	small := mariposa.PackageSpec{Name: "small", Memory: 512 << 20, MilliCPU: 500, Disk: 1 << 30}
	bind := func(keys string, size mariposa.PackageSpec) *mariposa.Service {
		p := mustParse(t, in("package: small\n"+keys))
		return Bind(p, nil, map[string]mariposa.PackageSpec{"small": size}, nil, nil)["web"]
	}
	if got := bind("", small); got.Memory != 512<<20 || got.MilliCPU != 500 {
		t.Errorf("got %+v", got)
	}
	if got := bind("memory: 1g", small); got.Memory != 1<<30 || got.MilliCPU != 500 {
		t.Errorf("got %+v", got)
	}
	unknown := mustParse(t, in("package: other"))
	if got := Bind(unknown, nil, map[string]mariposa.PackageSpec{"small": small}, nil, nil)["web"]; got != unknown.ByName["web"] {
		t.Errorf("got %+v", got)
	}
	for name, tt := range map[string]struct {
		keys   string
		change func(*mariposa.PackageSpec)
		same   bool
	}{
		"memory":                   {"", func(s *mariposa.PackageSpec) { s.Memory++ }, false},
		"cores":                    {"", func(s *mariposa.PackageSpec) { s.MilliCPU++ }, false},
		"disk":                     {"", func(s *mariposa.PackageSpec) { s.Disk++ }, false},
		"memory of its own":        {"memory: 1g", func(s *mariposa.PackageSpec) { s.Memory++ }, true},
		"a family it does not use": {"", func(s *mariposa.PackageSpec) { s.Family = "x" }, true},
		"a family it uses":         {"tags: [\"f={{ .package.family }}\"]", func(s *mariposa.PackageSpec) { s.Family = "x" }, false},
		"its author":               {"", func(s *mariposa.PackageSpec) { s.Author = "x" }, true},
	} {
		other := small
		tt.change(&other)
		was, is := bind(tt.keys, small), bind(tt.keys, other)
		if (was.Digest == is.Digest) != tt.same || mariposa.FormOf(is.Digest) != is.Digest {
			t.Errorf("%s: %s and %s", name, was.Digest, is.Digest)
		}
	}
}

func digestsOf(bound map[string]*mariposa.Service) map[string]string {
	all := map[string]string{}
	for name, svc := range bound {
		all[name] = svc.Digest
	}
	return all
}

// anyProject draws a project whose services use some of its keys in some of their fields.
func anyProject(t *rapid.T) *Project {
	keys := []string{"a", "b", "c.d", "e"}
	var text strings.Builder
	text.WriteString("metadata:\n")
	for _, key := range keys {
		text.WriteString("  " + key + ": " + rapid.SampledFrom([]string{"{}", "{default: x}", "{secret: true}", "{required: true}"}).Draw(t, "rules") + "\n")
	}
	text.WriteString("services:\n")
	for i := range rapid.IntRange(1, 4).Draw(t, "services") {
		uses := func(field string) string {
			var refs string
			for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 3, rapid.ID).Draw(t, field) {
				refs += "{{ .meta." + key + " }}"
			}
			return refs
		}
		fmt.Fprintf(&text, "  s%d: {compute_type: dummy, command: [run, \"%s\"], environment: {A: \"%s\"}, files: {/f: \"%s\"}, tags: {t: \"%s\"}, mdata: {m: \"%s\"}}\n",
			i, uses("command"), uses("environment"), uses("files"), uses("tags"), uses("mdata"))
	}
	p, err := Parse([]byte(text.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	return p
}

func TestBindDependsOnTheUsedValuesAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := anyProject(t)
		keys := []string{"a", "b", "c.d", "e", "undeclared"}
		texts := rapid.MapOf(rapid.SampledFrom(keys), rapid.SampledFrom([]string{"", "x", "y", "e"})).Draw(t, "values")
		secret := map[string]bool{}
		for _, key := range keys {
			secret[key] = rapid.Bool().Draw(t, "secret")
		}
		build := func(order []string) *Values {
			v := &Values{}
			for _, key := range order {
				if text, ok := texts[key]; ok {
					v, _ = v.Set(key, text, secret[key], someDay)
				}
			}
			return v
		}
		v := build(keys)
		want := digestsOf(Bind(p, v, nil, nil, someMac))
		shuffled := slices.Clone(keys)
		rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed"))).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if got := digestsOf(Bind(p, build(shuffled), nil, nil, someMac)); !maps.Equal(got, want) {
			t.Fatalf("in another order: %v and %v", got, want)
		}
		key := rapid.SampledFrom(keys).Draw(t, "changed")
		next, err := v.Set(key, "another", false, someDay)
		if err != nil {
			t.Fatal(err)
		}
		checkUsers(t, p, key, want, digestsOf(Bind(p, next, nil, nil, someMac)))
		if was, set := p.Value(v, key); set {
			gone := next.Delete(key)
			if is, still := p.Value(gone, key); !still || is != was {
				checkUsers(t, p, key, want, digestsOf(Bind(p, gone, nil, nil, someMac)))
			}
		}
	})
}

// checkUsers checks that a change of a key changed the services that use it, and no
// others.
func checkUsers(t *rapid.T, p *Project, key string, was, is map[string]string) {
	for name := range was {
		if uses := slices.Contains(p.Uses(name), key); uses == (was[name] == is[name]) {
			t.Fatalf("%s uses %v: %s became %s when %s changed", name, p.Uses(name), was[name], is[name], key)
		}
		if mariposa.FormOf(was[name]) != mariposa.FormOf(is[name]) {
			t.Fatalf("the form of %s changed", name)
		}
	}
}

// A bound service without missing keys can be resolved.
func TestABoundServiceWithoutNeedsResolves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := anyProject(t)
		v := &Values{}
		for _, key := range rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c.d", "e"})).Draw(t, "set") {
			v, _ = v.Set(key, "x", false, someDay)
		}
		scope := someScope
		scope.Meta = func(key string) (string, bool) { return p.Value(v, key) }
		for name, svc := range Bind(p, v, nil, nil, someMac) {
			_, err := Resolve(svc, scope)
			if len(svc.Needs) == 0 && err != nil || err == nil && len(p.Missing(v)) == 0 && len(svc.Needs) > 0 {
				t.Fatalf("%s needs %v: %v", name, svc.Needs, err)
			}
			if _, err := ResolveMdata(svc, scope); err != nil {
				t.Fatal(err)
			}
		}
	})
}

package manifest

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
)

func TestReferencesAreDottedPathsAndNothingElse(t *testing.T) {
	t.Parallel()
	good := map[string][]string{
		"":                                 nil,
		"no braces } at { all }}":          nil,
		"{{ .a.b }}":                       {"a.b"},
		"{{.a}}":                           {"a"},
		"x{{\t.a.b-c_1 }}y{{ .d }}":        {"a.b-c_1", "d"},
		"{{ .services.db.environment.X }}": {"services.db.environment.X"},
	}
	for text, want := range good {
		refs, err := References(text)
		var got []string
		for _, r := range refs {
			got = append(got, r.Path)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	bad := []string{
		"{{", "{{ .a", "{{}}", "{{ }}", "{{ a }}", "{{ . }}", "{{ .a. }}", "{{ ..a }}", "{{ .a b }}", "{{ .a | b }}", "{{ if .a }}",
		"{{ .a\n}}", "{{{ .a }}", "{{ .é }}", "{{ `x` }}", "{{/* c */}}", "{{ ." + strings.Repeat("a", 300) + " }}",
	}
	for _, text := range bad {
		if refs, err := References(text); err == nil {
			t.Errorf("%q: got %v", text, refs)
		}
	}
}

var someScope = Scope{
	Project:   Identity{Name: "shop", UUID: "p-1", Version: "abc"},
	Service:   Identity{Name: "web", UUID: "s-1", Version: "def"},
	Scale:     3,
	Instance:  Instance{Name: "web.2", UUID: "i-1", Port: "20001"},
	Placement: Placement{CN: "cn-1", Rack: "r-1", DC: "east"},

	Package:      mariposa.PackageSpec{Name: "small", Family: "tiny", Memory: 1 << 30, Disk: 5 << 30},
	Organization: "acme",
	Meta:         func(key string) (string, bool) { return "value of " + key, key != "unset" },
	Other:        func(r mariposa.Ref) (string, bool) { return r.Service + " of " + r.Field + ".", r.Service != "unbound" },
}

func TestEverySupportedPathResolves(t *testing.T) {
	t.Parallel()
	svc := mustParse(t, in("memory: 512m\ncpu: 0.5\npackage: small")).ByName["web"]
	want := map[string]string{
		"project.name": "shop", "project.uuid": "p-1", "project.version": "abc",
		"service.name": "web", "service.uuid": "s-1", "service.version": "def",
		"package.ram": "512", "package.cpu": "0.5", "package.disk": "5120", "package.name": "small", "package.family": "tiny",
		"scale": "3", "meta.*": "value of *",
		"cns.svc.*": "*.svc.shop.acme.mariposa.internal", "cns.inst.*": "*.inst.shop.acme.mariposa.internal", "cns.prefix.*": "*.svc.shop.acme",
		"instance.name": "web.2", "instance.uuid": "i-1", "instance.port": "20001",
		"placement.instance.name": "web.2", "placement.instance.uuid": "i-1",
		"services.*":        "* of .",
		"placement.cn.uuid": "cn-1", "placement.rack.uuid": "r-1", "placement.dc.name": "east",
	}
	for _, path := range allPaths() {
		got, ok := someScope.value(svc, path)
		if !ok || got != want[path] || !knownPath(path) {
			t.Errorf("%s: got %q, %v", path, got, ok)
		}
	}
}

func TestResolveFillsInEnvironmentCommandAndTags(t *testing.T) {
	t.Parallel()
	text := strings.Replace(in("environment: [\"ID={{ .instance.uuid }}\", \"N={{ .scale }} of {{ .project.name }}\", X=y]\ntags: {at: \"{{ .placement.dc.name }}\"}\nports: [80]\nmemory: 1g\nrestart: always\nstop: {timeout: 3}"),
		"command: run", "command: run --name {{ .instance.name }}", 1)
	svc := mustParse(t, text).ByName["web"]
	w, err := Resolve(svc, someScope)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.Command, []string{"run", "--name", "web.2"}) {
		t.Errorf("command %q", w.Command)
	}
	if want := []mariposa.Variable{{Name: "ID", Value: "i-1"}, {Name: "N", Value: "3 of shop"}, {Name: "X", Value: "y"}}; !slices.Equal(w.Environment, want) {
		t.Errorf("environment %v", w.Environment)
	}
	if w.Tags[0].Value != "east" || w.Ports[0].Target != 80 || w.Memory != 1<<30 || w.Restart.Policy != mariposa.RestartAlways || w.StopTimeout.Seconds() != 3 {
		t.Errorf("workload %+v", w)
	}
	if svc.Environment[0].Value != "{{ .instance.uuid }}" {
		t.Error("the service itself was changed")
	}
	if !PerInstance(svc) {
		t.Error("its instances differ")
	}
}

func TestFilesAreResolvedLikeTheEnvironment(t *testing.T) {
	t.Parallel()
	svc := mustParse(t, in("files:\n  /run/key: \"{{ .meta.key }}\"\n  /etc/conf: |\n    at {{ .cns.svc.db }}\n    as {{ .cns.inst.web.2 }}\n")+"metadata: {key: {}}\n").ByName["web"]
	scope := someScope
	scope.Domain = "example.com"
	w, err := Resolve(svc, scope)
	if err != nil {
		t.Fatal(err)
	}
	want := []mariposa.Variable{
		{Name: "/run/key", Value: "value of key"},
		{Name: "/etc/conf", Value: "at db.svc.shop.acme.example.com\nas web.2.inst.shop.acme.example.com\n"},
	}
	if !slices.Equal(w.Files, want) {
		t.Errorf("got %q", w.Files)
	}
}

func TestAPackageSizesAWorkloadThatSaysNoSize(t *testing.T) {
	t.Parallel()
	svc := mustParse(t, in("package: small\ntags: [\"a={{ .package.ram }} {{ .package.cpu }} {{ .package.name }}\"]")).ByName["web"]
	w, err := Resolve(svc, someScope)
	if err != nil || w.Memory != 1<<30 || w.MilliCPU != 0 || w.Tags[0].Value != "1024 0 small" {
		t.Errorf("got %+v, %v", w, err)
	}
}

// A value that looks like an interpolation is not expanded: otherwise a user who may set
// metadata could read the values of other keys.
func TestValuesAreNotInterpolatedAgain(t *testing.T) {
	t.Parallel()
	svc := mustParse(t, in("environment: [\"A={{ .meta.key }}\"]\nmdata: {a: \"{{ .meta.key }}\"}")+"metadata: {key: {}}\n").ByName["web"]
	scope := someScope
	scope.Meta = func(string) (string, bool) { return "{{ .meta.other }}", true }
	w, err := Resolve(svc, scope)
	if err != nil || w.Environment[0].Value != "{{ .meta.other }}" {
		t.Errorf("got %+v, %v", w, err)
	}
	if live, err := ResolveMdata(svc, scope); err != nil || live[0].Value != "{{ .meta.other }}" {
		t.Errorf("got %+v, %v", live, err)
	}
}

func TestMdataHoldsWhatHasAValueNow(t *testing.T) {
	t.Parallel()
	svc := mustParse(t, in("mdata:\n  a: x\n  b: \"{{ .meta.unset }}\"\n  c: \"{{ .meta.key }} of {{ .instance.name }}\"")+"metadata: {key: {}, unset: {}}\n").ByName["web"]
	got, err := ResolveMdata(svc, someScope)
	if err != nil || !slices.Equal(got, []mariposa.Variable{{Name: "a", Value: "x"}, {Name: "c", Value: "value of key of web.2"}}) {
		t.Errorf("got %v, %v", got, err)
	}
	got, err = ResolveMdata(svc, Scope{})
	if err != nil || !slices.Equal(got, []mariposa.Variable{{Name: "a", Value: "x"}}) {
		t.Errorf("without values: got %v, %v", got, err)
	}
	if svc.Mdata[2].Value != "{{ .meta.key }} of {{ .instance.name }}" {
		t.Error("the service itself was changed")
	}
	broken := &mariposa.Service{Name: "web", Mdata: []mariposa.Variable{{Name: "a", Value: "{{ nonsense }}"}}}
	if _, err := ResolveMdata(broken, someScope); mariposa.CodeOf(err) != mariposa.InvalidArgument || !strings.Contains(err.Error(), "services.web.mdata.a") {
		t.Errorf("got %v", err)
	}
}

func TestWorkloadsAreSharedUnlessInstancesDiffer(t *testing.T) {
	t.Parallel()
	for keys, want := range map[string]bool{
		"scale: 1":                                          false,
		`environment: ["A={{ .project.name }}"]`:            false,
		`environment: ["A={{ .scale }}"]`:                   false,
		`environment: ["A={{ .instance.name }}"]`:           true,
		`tags: ["a={{ .placement.cn.uuid }}"]`:              true,
		`tags: ["a={{ .service.name }}{{.instance.uuid}}"]`: true,
		"files: {/a: \"{{ .instance.name }}\"}":             true,
		"files: {/a: \"{{ .cns.inst.web.2 }}\"}":            false,
		"files: {/a: \"{{ .cns.inst.private }}\"}":          true,
		"files: {/a: \"{{ .cns.svc.private }}\"}":           false,
		"mdata: {a: \"{{ .instance.name }}\"}":              false,
	} {
		if got := PerInstance(mustParse(t, in(keys)).ByName["web"]); got != want {
			t.Errorf("%s: got %v", keys, got)
		}
	}
}

func TestWhatCannotBeResolvedIsAnError(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"{{ .meta.unset }}", "{{ .services.unbound.id }}", "{{ nonsense }}"} {
		svc := &mariposa.Service{Name: "web", Environment: []mariposa.Variable{{Name: "A", Value: value}}}
		_, err := Resolve(svc, someScope)
		if mariposa.CodeOf(err) != mariposa.InvalidArgument || !strings.Contains(err.Error(), "services.web.environment.A") {
			t.Errorf("%s: got %v", value, err)
		}
	}
}

func FuzzInterpolate(f *testing.F) {
	for _, s := range []string{"", "a", "{{ .scale }}", "{{.project.name}}-{{ .instance.uuid }}", "{{", "}}{{", "{{ .a | b }}", "{{{{ .a }}}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		refs, err := References(text)
		svc := &mariposa.Service{Name: "web", Environment: []mariposa.Variable{{Name: "A", Value: text}}}
		w, resolveErr := Resolve(svc, someScope)
		if err != nil && resolveErr == nil {
			t.Fatalf("%q has no references (%v) and still resolves", text, err)
		}
		if err == nil && len(refs) == 0 && (resolveErr != nil || w.Environment[0].Value != text) {
			t.Fatalf("%q holds nothing and is changed", text)
		}
		for _, ref := range refs {
			if _, ok := someScope.value(svc, ref.Path); ok && !knownPath(ref.Path) {
				t.Fatalf("%q resolves and is not known", ref.Path)
			}
		}
	})
}

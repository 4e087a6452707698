package manifest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

func TestALargeManifestIsRefusedUnread(t *testing.T) { // not parallel: it measures
	data := []byte(strings.Repeat("a", 10<<20))
	allocs := testing.AllocsPerRun(1, func() {
		if _, err := Parse(data); mariposa.CodeOf(err) != mariposa.TooLarge {
			t.Errorf("got %v", err)
		}
	})
	if allocs > 20 {
		t.Errorf("%v allocations", allocs)
	}
}

// hostile returns manifests that are invalid, huge or both, and therefore expensive to
// check. TestHostileBytesCostLittle covers the syntax.
func hostile() map[string]string {
	fill := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < MaxBytes-200; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	web := "services:\n  web:\n    compute_type: dummy\n"
	return map[string]string{
		"brackets":                     strings.Repeat("[", MaxBytes),
		"braces":                       strings.Repeat("{", MaxBytes),
		"unknown keys":                 fill("k%d: 1\n"),
		"unknown keys of a service":    web + fill("    k%d: 1\n"),
		"the same key":                 web + fill("    scale: %d\n"),
		"a long key":                   web + "    " + strings.Repeat("k", 1<<19) + ": 1\n",
		"a long name":                  "services:\n  " + strings.Repeat("k", 1<<19) + ": {compute_type: dummy}\n",
		"unknown dependencies":         web + "    depends_on:\n" + fill("    - d%d\n"),
		"unknown services":             "services:\n" + fill("  s%[1]d: {compute_type: dummy, depends_on: [t%[1]d]}\n"),
		"unknown volumes":              web + "    volumes:\n" + fill("    - v%d:/x\n"),
		"undeclared metadata":          "metadata: {a: {}, b: {}}\n" + web + "    environment:\n" + fill("    - A%[1]d={{ .meta.c%[1]d }}\n"),
		"declared metadata":            "metadata:\n" + fill("  k%d: {}\n")[:1<<19] + "\n" + web + "    environment:\n" + fill("    - A%[1]d={{ .meta.k%[1]d }}\n")[:1<<18] + "\n",
		"variables of another service": "services:\n  a:\n    compute_type: dummy\n    environment:\n" + fill("    - A%d=\n")[:1<<19] + "\n  b:\n    compute_type: dummy\n    environment:\n" + fill("    - B%[1]d={{ .services.a.environment.A%[1]d }}\n")[:1<<18] + "\n",
		"services":                     "services:\n" + fill("  s%d:\n"),
		"a chain":                      "services:\n  s0: {compute_type: dummy}\n" + fill("  t%[1]d: {compute_type: dummy, depends_on: [t%[1]d]}\n"),
		"open interpolations":          web + "    environment:\n      A: '" + strings.Repeat("{{ ", 1<<18) + "'\n",
		"open braces in a command":     web + "    command: '" + strings.Repeat("{", 1<<19) + "'\n",
		"interpolations in a command":  web + "    command: '" + strings.Repeat("{{.scale}}", 1<<16) + "'\n",
		"a long size":                  web + "    memory: " + strings.Repeat("9", 1<<19) + "\n",
		"a long number":                web + "    cpu: 0." + strings.Repeat("9", 1<<19) + "\n",
		"wrong items":                  web + "    ports: [" + strings.Repeat("[],", 1<<18) + "]\n",
		"dots in a path":               web + "    files: {" + strings.Repeat("/", 1<<19) + ": x}\n",
		"patterns":                     "services: {}\nmetadata:\n" + fill("  k%d: {pattern: '(a{30}){30}'}\n"),
		"patterns of many classes":     "services: {}\nmetadata:\n" + fill("  k%d: {pattern: '"+strings.Repeat(`\p{L}`, 100)+"'}\n"),
		"defaults against patterns":    "services: {}\nmetadata:\n" + fill("  k%d: {pattern: '(a?){1000}', default: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab}\n"),
		"a long default":               "services: {}\nmetadata: {k: {pattern: '(a?){1000}', default: " + strings.Repeat("a", 1<<19) + "}}\n",
		"choices":                      "services: {}\nmetadata:\n  k:\n    choices:\n" + fill("    - c%d\n"),
		"files":                        web + "    files:\n" + fill("      /f%d: x\n"),
		"files in deep folders":        web + "    files:\n" + fill("      "+strings.Repeat("/a", 2000)+"/f%d: x\n"),
		"health checks":                web + "    healthchecks:\n" + strings.Repeat("    - {}\n", 1<<16),
	}
}

// The limit leaves room for the race detector; anything quadratic would take minutes.
func TestHostileManifestsCostLittle(t *testing.T) { // not parallel: it measures
	for name, text := range hostile() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := cpuTime()
			_, err := Parse([]byte(text))
			took := cpuTime() - start
			runtime.ReadMemStats(&after)
			if took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 256<<20 {
				t.Errorf("allocated %d MB", used>>20)
			}
			if n := len(faultsOf(err)); n > maxFaults+101 {
				t.Errorf("%d faults", n)
			}
			if len(listing(err)) > 1<<19 {
				t.Errorf("the answer has %d bytes", len(listing(err)))
			}
		})
	}
}

func TestHostileValuesCostLittle(t *testing.T) { // not parallel: it measures
	const size = MaxValues / 4 // enough to show costs that grow faster than the size
	fill := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < size-1000; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, doc := range map[string]string{
		"brackets":     strings.Repeat("[", size),
		"many keys":    fill("k%d: x\n"),
		"keys":         fill("k%d: " + strings.Repeat("x", MaxValues/MaxKeys) + "\n"),
		"keys to come": fill("k%d:\n"),
		"the same key": fill("k: %d\n"),
		"bad names":    fill("k %d: x\n"),
		"masks":        fill("k%d: ••••" + strings.Repeat(" ", MaxValues/MaxKeys) + "\n"),
		"line ends":    strings.Repeat("\r\n", size/2-1000) + "a: x\r\n",
		"many braces":  "{" + strings.TrimSuffix(fill("k%d: x,"), ",") + "}",
		"braces":       "{" + strings.TrimSuffix(fill("k%d: "+strings.Repeat("x", MaxValues/MaxKeys)+","), ",") + "}",
		"comments":     strings.Repeat("#\n", size/2),
		"blocks":       fill("k%d: |+\n" + strings.Repeat("  x\n", MaxValues/MaxKeys/4) + "\n"),
	} {
		t.Run(name, func(t *testing.T) {
			start := cpuTime()
			v, err := (*Values)(nil).Import([]byte(doc), someDay)
			if n := len(faultsOf(err)); n > maxFaults+101 {
				t.Errorf("%d faults", n)
			}
			if err == nil {
				v, err = v.Set("one.more", "x", true, someDay)
			}
			if err == nil {
				v.Masked(Mask)
				v.Delete("one.more")
			}
			if took := cpuTime() - start; took > 3*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestFaultsBeyondTheListedAreCounted(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("services: {}\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	_, err := Parse([]byte(b.String()))
	faults := faultsOf(err)
	if len(faults) != maxFaults+1 || !strings.Contains(faults[maxFaults].Message, "4000 more") || !strings.Contains(err.Error(), "5000 errors") {
		t.Errorf("%v and %d faults", err, len(faults))
	}
}

func TestOddButHarmlessBytesAreAccepted(t *testing.T) {
	t.Parallel()
	want := mustParse(t, "services:\n  web:\n    compute_type: dummy\n    scale: 2\n").ByName["web"].Digest
	for name, text := range map[string]string{
		"carriage returns":  "services:\r\n  web:\r\n    compute_type: dummy\r\n    scale: 2\r\n",
		"a byte order mark": "\ufeffservices:\n  web:\n    compute_type: dummy\n    scale: 2\n",
		"JSON":              `{"services":{"web":{"compute_type":"dummy","scale":2}}}`,
		"document markers":  "---\nservices: {web: {compute_type: dummy, scale: 2}}\n...\n",
		"no last line end":  "services: {web: {compute_type: dummy, scale: 2}}",
	} {
		if got := mustParse(t, text).ByName["web"]; got.Digest != want || *got.Scale != 2 {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func checkAnswer(t interface{ Errorf(string, ...any) }, data []byte) {
	p, err := Parse(data)
	switch {
	case (p == nil) == (err == nil):
		t.Errorf("project %v and error %v", p, err)
	case err == nil:
		if len(p.Order()) != len(p.Services) {
			t.Errorf("the order misses services")
		}
		for _, s := range p.Services {
			if _, err := Resolve(s, someScope); err != nil {
				t.Errorf("accepted, but does not resolve: %v", err)
			}
		}
		if len(Changed(Diff(p, p))) > 0 {
			t.Errorf("it differs from itself")
		}
	case mariposa.CodeOf(err) == mariposa.InvalidArgument && len(faultsOf(err)) == 0:
		t.Errorf("refused without a fault: %v", err)
	}
	for _, f := range faultsOf(err) {
		if f.Message == "" || f.Code == "" || f.Line < 0 {
			t.Errorf("half a fault: %+v", f)
		}
	}
}

// Random sequences of manifest keywords find more bugs than random bytes.
func TestParseAlwaysAnswers(t *testing.T) {
	t.Parallel()
	words := append(sortedKeys(serviceKeys), "services:", "\n", "\n  ", "\n    ", "\n      ", ": ", "- ", "[", "]", "{", "}", ", ", "web", "dummy", "process", "1", "-1", "1g", "25%", "true", "no", "''", "\"", "{{ .scale }}", "{{", "&a", "*a", "!!t", "#", "|", ">", "K=V", "metadata", "load_balancers")
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 60).Draw(t, "words"), rapid.SampledFrom([]string{"", " ", ": "}).Draw(t, "between"))
		checkAnswer(t, []byte(text))
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("services: {web: {compute_type: dummy}}"))
	f.Add([]byte(in("environment: [\"A={{ .instance.name }}\"]\nports: [\"80:81\"]\nrestart: on-failure:3\nupdate: {rolling: 25%}")))
	f.Add([]byte(`{"services":{"a":{"compute_type":"process","command":["x"]}}}`))
	f.Add([]byte("services:\n  a: &x\n    compute_type: dummy\n  b: *x\n"))
	f.Add([]byte("services:\n  a:\n    command: |\n      run\n       me\n"))
	f.Fuzz(func(t *testing.T, data []byte) { checkAnswer(t, data) })
}

package manifest

import (
	"strings"
	"testing"
)

func TestThePortIsMarkedUntilTheNodeKnowsIt(t *testing.T) {
	t.Parallel()
	const text = `services:
  web:
    compute_type: process
    command: [serve, "--listen=:{{ .instance.port }}"]
    ports: [8080]
    environment: {URL: "http://{{.instance.port}}{{ .instance.port }}/", X: "{{ .meta.x }}", PLAIN: a}
    files: {/etc/web: "port={{ .instance.port }} {{ .meta.x }}"}
metadata: {x: {}}
`
	svc := mustParse(t, text).ByName["web"]
	for _, x := range []string{"", "{{ .instance.port }}", "{{ .instance.port }}{{ .instance.port.1 }}", "{{ .instance.port", "}}{{ "} {
		scope := someScope
		scope.Instance.Port = ""
		scope.Meta = func(string) (string, bool) { return x, true }
		w, err := Resolve(svc, scope)
		if err != nil {
			t.Fatal(err)
		}
		w = w.WithPort(20001)
		if w.Command[1] != "--listen=:20001" || w.Environment[0].Value != "http://2000120001/" || w.Environment[1].Value != x || w.Files[0].Value != "port=20001 "+x || w.PortMark != "" {
			t.Errorf("with %q: %+v", x, w)
		}
	}
	known, err := Resolve(svc, someScope)
	if err != nil || known.PortMark != "" || known.Command[1] != "--listen=:20001" || known.WithPort(1) != known {
		t.Errorf("where it is known: %+v, %v", known, err)
	}
	if svc.Command[1] != "--listen=:{{ .instance.port }}" {
		t.Error("the service itself was changed")
	}
}

func TestAPortThatCannotBeKnownIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ rest, field, words string }{
		"no ports":   {"environment: {P: \"{{ .instance.port }}\"}", "services.web.environment.P", "but \"web\" has no ports; declare one under its ports:"},
		"in tags":    {"ports: [80]\n    tags: {p: \"{{ .instance.port }}\"}", "services.web.tags.p", "which is only known on the node; use it in command, environment or files"},
		"in mdata":   {"ports: [80]\n    mdata: {p: \"{{ .instance.port }}\"}", "services.web.mdata.p", "which is only known on the node"},
		"of another": {"environment: {P: \"{{ .instance.ports }}\"}", "services.web.environment.P", "which does not exist"},
	} {
		_, err := Parse([]byte("services:\n  web:\n    compute_type: process\n    command: x\n    " + c.rest + "\n"))
		faults := faultsOf(err)
		if len(faults) != 1 || faults[0].Field != c.field || faults[0].Line != 5+strings.Count(c.rest, "\n") || !strings.Contains(faults[0].Message, c.words) {
			t.Errorf("%s: %+v", name, faults)
		}
	}
}

package manifest

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
)

func TestASingleInstanceIsDefinedLikeAService(t *testing.T) {
	t.Parallel()
	of := mustParse(t, threeServices)
	for name, doc := range map[string]string{
		"YAML": "compute_type: process\ncommand: run {{ .meta.mode }}\nenvironment: [\"AT={{ .cns.svc.web }}\"]\nfiles: {/a: x}\n",
		"JSON": `{"compute_type": "process", "command": "run {{ .meta.mode }}", "environment": {"AT": "{{ .cns.svc.web }}"}, "files": {"/a": "x"}}`,
	} {
		svc, err := ParseService("shell", []byte(doc), of)
		if err != nil {
			t.Errorf("%s: %s", name, listing(err))
			continue
		}
		if svc.Name != "shell" || svc.Digest == "" || !slices.Equal(svc.Command, []string{"run", "{{ .meta.mode }}"}) || svc.Files[0].Name != "/a" {
			t.Errorf("%s: got %+v", name, svc)
		}
	}
	alone, err := ParseService("shell", []byte("compute_type: dummy\nscale:\n"), nil)
	if err != nil || alone.Compute != mariposa.ComputeDummy {
		t.Errorf("got %+v, %v", alone, err)
	}
}

func TestWhatASingleInstanceCannotHaveIsRefused(t *testing.T) {
	t.Parallel()
	of := mustParse(t, threeServices)
	tests := []struct {
		name, doc string
		of        *Project
		field     string
		message   string
	}{
		{"a scale", "compute_type: dummy\nscale: 2", of, "scale", "single instance"},
		{"an update", "compute_type: dummy\nupdate: {rolling: x}", of, "update", "single instance"},
		{"a dependency", "compute_type: dummy\ndepends_on: [nothing]", of, "depends_on", "single instance"},
		{"a reschedule", "compute_type: dummy\nreschedule: {never: true}", of, "reschedule", "single instance"},
		{"a schedule", "compute_type: dummy\nschedule: '0 3 * * *'", of, "schedule", "single instance"},
		{"an unknown key", "compute_type: dummy\nimge: x", of, "imge", `did you mean "image"?`},
		{"a process without a command", "compute_type: process", of, "command", "needs a command"},
		{"undeclared metadata", "compute_type: dummy\ntags: {a: \"{{ .meta.mood }}\"}", of, "tags.a", `did you mean "mode"?`},
		{"metadata of no project", "compute_type: dummy\ntags: {a: \"{{ .meta.mode }}\"}", nil, "tags.a", "not declared"},
		{"a service that is not there", "compute_type: dummy\ntags: {a: \"{{ .cns.svc.weeb }}\"}", of, "tags.a", `did you mean "web"?`},
		{"the instance itself as a service", "compute_type: dummy\ntags: {a: \"{{ .cns.svc.shell }}\"}", of, "tags.a", "does not exist"},
		{"a list", "- a", of, "", "must be a mapping"},
		{"broken YAML", "a: [", of, "", "never closed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseService("shell", []byte(tt.doc), tt.of)
			f := faultsOf(err)
			if len(f) != 1 || f[0].Field != tt.field || !strings.Contains(f[0].Message, tt.message) || !strings.HasPrefix(err.Error(), "the definition has an error: ") {
				t.Errorf("got\n%s", listing(err))
			}
		})
	}
	if _, err := ParseService("No Name", []byte("compute_type: dummy"), nil); len(faultsOf(err)) != 1 {
		t.Error(listing(err))
	}
	if _, err := ParseService("a", make([]byte, MaxBytes+1), nil); mariposa.CodeOf(err) != mariposa.TooLarge {
		t.Error(err)
	}
}

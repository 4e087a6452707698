package manifest

import (
	"strings"
	"testing"
)

func TestAWorkingDirectoryIsAnAbsolutePath(t *testing.T) {
	t.Parallel()
	text := func(dir string) string {
		return "services:\n  web:\n    compute_type: process\n    command: x\n    working_dir: " + dir + "\n"
	}
	for _, dir := range []string{"/srv/web", "/", "/a b"} {
		svc := mustParse(t, text(dir)).ByName["web"]
		w, err := Resolve(svc, Scope{})
		if err != nil || svc.WorkingDir != dir || w.WorkingDir != dir {
			t.Errorf("%s became %q, %q, %v", dir, svc.WorkingDir, w.WorkingDir, err)
		}
	}
	for dir, words := range map[string]string{
		"srv/web": "must be an absolute path", "/srv/../etc": "must be an absolute path", "/srv/": "must be an absolute path",
		"\"/srv/{{ .service.name }}\"": "cannot contain an interpolation", "[/srv]": "must be a string",
	} {
		_, err := Parse([]byte(text(dir)))
		faults := faultsOf(err)
		if len(faults) != 1 || faults[0].Field != "services.web.working_dir" || faults[0].Line != 5 || !strings.Contains(faults[0].Message, words) {
			t.Errorf("%s: %+v", dir, faults)
		}
	}
	one, two := mustParse(t, text("/srv")).ByName["web"], mustParse(t, text("/opt")).ByName["web"]
	if one.Digest == two.Digest {
		t.Error("another directory needs no new instance")
	}
}

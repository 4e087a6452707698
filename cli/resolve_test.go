package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// Projects may have instances with the same name. With a project, an instance is looked up
// in that project only; a whole id is unique.
func TestAnInstanceIsLookedUpWithinItsProject(t *testing.T) {
	t.Parallel()
	s, home := newTeamServer(t), t.TempDir()
	keep(t, home, "FILE", "compute_type: dummy\n")
	keep(t, home, "MANIFEST", oneWeb)
	do := func(line string) *run {
		t.Helper()
		return (&run{home: home, env: map[string]string{"MARIPOSA_URL": s.url, "MARIPOSA_TOKEN": s.token}}).do(t, strings.Fields(line)...)
	}
	file := filepath.Join(home, "FILE")
	for _, project := range []string{"hello", "other"} {
		do("project create " + project + " -m " + filepath.Join(home, "MANIFEST")).expect(exitOK)
		do("-j " + project + " instance create shell -m " + file).expect(exitOK)
		s.awaitDocument("/v1/instances?project="+project+"&state=running", `"name": ?"shell"`)
	}
	do("-j other instance create lone -m " + file).expect(exitOK)
	s.awaitDocument("/v1/instances/lone", `"state": ?"running"`)

	do("-j hello instance stop shell").expect(exitOK)
	s.awaitDocument("/v1/instances?project=hello&state=stopped", `"name": ?"shell"`)
	s.awaitDocument("/v1/instances?project=other&state=running", `"name": ?"shell"`)
	do("instance stop other/shell").expect(exitOK)
	s.awaitDocument("/v1/instances?project=other&state=stopped", `"name": ?"shell"`)

	lone, err := s.Instance(t.Context(), "lone")
	must(t, err)
	for _, word := range []string{"lone", "hello/lone"} {
		r := do("-j hello instance stop " + word)
		r.expect(exitError, strings.Contains(r.stderr, "in project hello"), strings.Contains(r.stderr, "instance list"))
	}
	for _, line := range []string{"-j other instance show lone", "-j hello instance show " + lone.ID, "instance show lone", "-j hello instance show other/lone"} {
		r := do(line)
		r.expect(exitOK, strings.Contains(r.stdout, "lone"))
	}
}

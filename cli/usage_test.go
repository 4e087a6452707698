package cli

import (
	"strings"
	"testing"
)

// Flags that contradict each other, flags and arguments that would silently select
// everything or something else, and text that is not UTF-8 are usage errors. No server is asked.
func TestFlagsThatMakeNoSenseAreUsageErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		said string
	}{
		{[]string{"project", "stop", "shop", "--service", ""}, "--service has an empty value"},
		{[]string{"project", "stop", "shop", "--service", "web,"}, "--service has an empty value"},
		{[]string{"project", "stop", "shop", "--version="}, "--version has an empty value"},
		{[]string{"project", "reprovision", "shop", "--node", ""}, "--node has an empty value"},
		{[]string{"project", "reprovision", "shop", "--instance", ""}, "--instance has an empty value"},
		{[]string{"node", "purge", "node1", "--instance", ""}, "--instance has an empty value"},
		{[]string{"project", "stop", "-j", ""}, "--project has an empty value"},
		{[]string{"project", "stop", "shop", "-o", ""}, "--org has an empty value"},
		{[]string{"project", "revert", "", "-j", "shop"}, "the argument is empty"},
		{[]string{"project", "revert", "shop", ""}, "argument 2 is empty"},
		{[]string{"project", "delete", ""}, "the argument is empty"},
		{[]string{"project", "delete", "--", ""}, "the argument is empty"},
		{[]string{"project", "show", ""}, "the argument is empty"},
		{[]string{"node", "show", ""}, "the argument is empty"},
		{[]string{"org", "rm", ""}, "the argument is empty"},
		{[]string{"queue", "terminate", "", "--yes"}, "the argument is empty"},
		{[]string{"instance", "exec", "", "--", "true"}, "the argument is empty"},
		{[]string{"-j", "shop", "meta", "set", "", "x"}, "the argument is empty"},
		{[]string{"-j", "shop", "ps", "web", ""}, "argument 2 is empty"},
		{[]string{"-j", "shop", "instance", "create", "x", "--compute-type", "dummy", "-e", "A=x\xffy"}, "the value of --env is not valid UTF-8"},
		{[]string{"-j", "shop", "instance", "create", "x", "--compute-type", "dummy", "--", "echo", "\xff"}, "argument 3 is not valid UTF-8"},
		{[]string{"token", "create", "t\xff"}, "argument 1 is not valid UTF-8"},
		{[]string{"node", "join-token", "--name", "j\xff"}, "the value of --name is not valid UTF-8"},
		{[]string{"project", "revert", "shop", "1", "--message", "a\xff"}, "the value of --message is not valid UTF-8"},
		{[]string{"-j", "shop", "meta", "set", "mode", "a\xff"}, "argument 2 is not valid UTF-8"},
		{[]string{"-j", "shop", "meta", "set", "color=blue", "mode=a\xff"}, "argument 2 is not valid UTF-8"},
		{[]string{"project", "reprovision", "shop", "--all", "--service", "web"}, "cannot be combined with --service"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			r := (&run{env: map[string]string{"MARIPOSA_URL": nobody, "MARIPOSA_TOKEN": secret}}).do(t, c.args...)
			r.expect(exitUsage, strings.Contains(r.stderr, c.said))
		})
	}
}

// A variable of the environment is checked like its flag. Paths and values can be anything
// that the system allows.
func TestTheEnvironmentIsCheckedAndPathsAreNot(t *testing.T) {
	t.Parallel()
	r := (&run{env: map[string]string{"MARIPOSA_URL": nobody, "MARIPOSA_TOKEN": secret, "MARIPOSA_ORG": "a\xff"}}).do(t, "state")
	r.expect(exitUsage, strings.Contains(r.stderr, "the value of MARIPOSA_ORG is not valid UTF-8"))
	f := newTeamServer(t)
	f.again(t, groupManifest)
	home := t.TempDir()
	keep(t, home, "m\xff.yaml", groupManifest)
	(&run{f: f.proxy(t), home: home}).do(t, "project", "plan", "hello", "-m", home+"/m\xff.yaml").expect(exitOK)
	(&run{f: f.proxy(t), home: home}).do(t, "-j", "hello", "meta", "set", "empty", "").expect(exitOK)
}

// An update that is based on a version that does not exist says so. Tags name versions, too.
func TestAnUpdateIsBasedOnAVersionThatExists(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb, oneWeb+"# two\n")
	for _, c := range []struct {
		previous string
		code     int
		said     string
	}{
		{"bogus", exitError, `project hello has no version "bogus": use a version number`},
		{"99", exitError, `project hello has no version "99": use a version number`},
		{"1", exitError, "somebody else has changed the project"},
		{"current", exitOK, "hello: version 3"},
	} {
		r := (&run{f: s.proxy(t), stdin: oneWeb + "# three\n"}).do(t, "project", "update", "hello", "-m", "-", "--previous", c.previous)
		r.expect(c.code, strings.Contains(r.stdout+r.stderr, c.said), c.code == exitOK || r.stdout == "")
	}
}

// The plan of a project that does not exist yet refuses what its creation would refuse.
func TestThePlanOfANewProjectIsCheckedLikeItsCreation(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for _, c := range []struct{ args, said string }{
		{"Bad_Name", "the name of the project must be 1 to 63 lower-case letters"},
		{"01a1e6ba-6d80-7813-9d74-72697b7120c4", "must not look like an id"},
		{"nope -o nosuch", "nosuch"},
	} {
		for _, verb := range []string{"plan", "create"} {
			args := append([]string{"project", verb}, strings.Fields(c.args)...)
			r := (&run{f: s.proxy(t), stdin: groupManifest}).do(t, append(args, "-m", "-")...)
			r.expect(exitError, strings.Contains(r.stderr, c.said), r.stdout == "")
		}
	}
	r := (&run{f: s.proxy(t), stdin: groupManifest}).do(t, "project", "plan", "nope", "-o", "acme", "-m", "-")
	r.expect(exitOK, strings.Contains(r.stderr, "project nope does not exist yet"), strings.Contains(r.stdout, "STEP"))
}

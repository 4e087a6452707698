package cli

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"mariposa/client"
	"mariposa/contract"
)

// On a narrow terminal no line is too long, and nothing is left out.
func TestTheStateFitsANarrowTerminal(t *testing.T) {
	t.Parallel()
	f := realWorld(t).proxy(t)
	for _, columns := range []int{40, 50} {
		r := (&run{f: f, tty: true, env: map[string]string{"COLUMNS": strconv.Itoa(columns)}}).do(t, "state", "--no-color")
		for line := range strings.Lines(r.stdout) {
			if cells(strings.TrimSuffix(line, "\n")) > columns {
				t.Errorf("at %d columns: %q", columns, line)
			}
		}
		r.expect(exitOK, strings.Contains(r.stdout, "hello/web\n"), strings.Contains(r.stdout, "converging"), strings.Contains(r.stdout, "node2"))
	}
}

// A plan that changes only networks and volumes is not empty.
func TestAPlanCountsNetworksAndVolumes(t *testing.T) {
	t.Parallel()
	const shared = "networks: {inner: {}}\nvolumes: {data: {}, logs: {}}\n"
	f := newHello(t, oneWeb).proxy(t)
	r := (&run{f: f, stdin: oneWeb + shared}).do(t, "project", "plan", "hello", "-m", "-")
	r.expect(exitOK, strings.Contains(r.stdout, "network inner"), strings.Contains(r.stderr, "changes of 1 network and 2 volumes; nothing was changed"), !strings.Contains(r.stderr, "nothing to do"))
	r = (&run{f: f, stdin: strings.ReplaceAll(oneWeb, "dummy,", "dummy, scale: 2,") + shared}).do(t, "project", "plan", "hello", "-m", "-")
	r.expect(exitOK, strings.Contains(r.stderr, "1 step if all succeed; changes of 1 network and 2 volumes; nothing was changed"))
}

// An empty list says in which organization it looked, and how to list all.
func TestAnEmptyListOfProjectsNamesItsOrganization(t *testing.T) {
	t.Parallel()
	f, home := newTeamServer(t).proxy(t), t.TempDir()
	for _, c := range []struct {
		args, env, said string
	}{
		{"project list", "", "no projects yet: create one"},
		{"-o acme project list", "", "no projects in organization acme yet: create one with `mariposa -o acme project create"},
		{"project list", "acme", "unset MARIPOSA_ORG"},
		{"org set acme", "", ""},
		{"project list", "", "no projects in organization acme yet: create one with `mariposa project create NAME -m FILE`; to list those of all organizations, unset the default with `mariposa org unset`"},
	} {
		r := (&run{f: f, home: home, env: map[string]string{"MARIPOSA_ORG": c.env}}).do(t, strings.Fields(c.args)...)
		r.expect(exitOK, strings.Contains(r.stderr, c.said))
	}
}

// The steps of a plan have reasons unless these only repeat the scales.
func TestAPlanDoesNotRepeatTheScales(t *testing.T) {
	t.Parallel()
	f := newHello(t, oneWeb).proxy(t)
	r := (&run{f: f, stdin: strings.ReplaceAll(oneWeb, "dummy,", "dummy, scale: 2,")}).do(t, "project", "plan", "hello", "-m", "-")
	r.expect(exitOK, strings.Contains(r.stdout, "web.2"), !strings.Contains(r.stdout, "REASON"), !strings.Contains(r.stdout, "scale is 2"))
	r = (&run{f: f, stdin: strings.ReplaceAll(oneWeb, "web:", "new:")}).do(t, "project", "plan", "hello", "-m", "-")
	r.expect(exitOK, strings.Contains(r.stdout, "the service is no longer in the manifest"))
}

func TestAWrongNumberIsExplainedInWords(t *testing.T) {
	t.Parallel()
	f := newHello(t, oneWeb).proxy(t)
	for args, want := range map[string]string{
		"-j hello logs --tail x": `--tail must be a whole number, not "x"`, "queue list --limit 1.5": `--limit must be a whole number, not "1.5"`, "top -n many": `--looks must be a whole number, not "many"`,
		"state --json=maybe": `--json must be true or false, not "maybe"`, "events --since soon": "--since must be a time such as", "-j hello logs --since soon": "--since must be a time such as",
		"project scale hello web=x": `"web=x" is not a scale`, "-j hello meta incr visits x": "is not a whole number of at least 1",
	} {
		r := (&run{f: f}).do(t, strings.Fields(args)...)
		r.expect(exitUsage, strings.Contains(r.stderr, want), !strings.Contains(r.stderr, "strconv"), !strings.Contains(r.stderr, "invalid argument"))
	}
	r := (&run{f: f, env: map[string]string{"MARIPOSA_TAIL": "x"}}).do(t, "-j", "hello", "logs")
	r.expect(exitUsage, strings.Contains(r.stderr, `invalid environment variable: MARIPOSA_TAIL must be a whole number, not "x"`))
}

// A suggested command works as it is: it names the project and the organization that the
// user named.
func TestSuggestedCommandsRepeatTheProject(t *testing.T) {
	t.Parallel()
	s := newHello(t, wideWeb)
	s.project("acme", "shop")
	_, err := s.UpdateManifest(t.Context(), "hello", []byte(wideWebNext), client.Update{Force: true, Canary: "1"})
	must(t, err)
	const using = "services:\n  web: {compute_type: dummy, command: \"web {{ .meta.mode }}\"}\nmetadata: {mode: {default: a}}\n"
	_, err = s.CreateProject(t.Context(), "using", []byte(using), "")
	must(t, err)
	s.quiet()
	f := s.proxy(t)
	for _, c := range []struct{ args, want string }{
		{"-j hello instance show web.9", "`mariposa -j hello instance list`"},
		{"-o acme -j shop queue show 77", "`mariposa -o acme -j shop queue list --all`"},
		{"-j hello volume show nothing", "`mariposa -j hello volume list`"},
		{"-j hello project reprovision --instance web.77", "`mariposa -j hello instance list`"},
		{"-j hello state", "mariposa -j hello project revert"},
		{"state --service web", "mariposa -o ann -j hello project revert"},
		{"state", "mariposa -o ann -j hello project revert"},
		{"-o ann state", "mariposa -o ann -j hello project revert"},
		{"project list", "mariposa -o ann -j hello project revert"},
		{"top", "mariposa -o ann -j hello project revert"},
		{"events", "mariposa -j hello project revert"},
		{"-j hello events", "mariposa -j hello project revert"},
		{"-j using meta set mode=b", "apply the new ones with `mariposa -j using project reprovision --service web"},
		{"-o ann -j using meta set mode=c", "apply the new ones with `mariposa -o ann -j using project reprovision --service web"},
		{"-j using meta import -f -m -", "apply the new ones with `mariposa -j using project reprovision --service web"},
		{"-o ann -j hello project reprovision --count 1 --wait", "mariposa -o ann -j hello project revert"},
		{"-j hello project freeze", ""},
		{"-j hello project freeze", "mariposa -j hello project thaw"},
		{"project freeze hello", "mariposa -j hello project thaw"},
	} {
		if r := (&run{f: f, stdin: "mode: d\n"}).do(t, strings.Fields(c.args)...); !strings.Contains(r.stdout+r.stderr, c.want) {
			t.Errorf("%s: without %q\n%s%s", c.args, c.want, r.stdout, r.stderr)
		}
	}
}

// A command suggested for a project never acts on another one: neither on the default project,
// nor on the one that the command line or the environment names.
func TestSuggestedCommandsNameTheProjectThatTheyAreAbout(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	s.holdCanary("other")
	f, home := s.proxy(t), t.TempDir()
	(&run{f: f, home: home}).do(t, "project", "set", "hello").expect(exitOK)
	const whole = "mariposa -o ann -j other project re"
	for _, c := range []struct{ args, want string }{
		{"project list", whole},
		{"-j hello project list", whole},
		{"-o ann -j hello project list", whole},
		{"state -A", whole},
		{"-j hello state -A", whole},
		{"-j other state", "mariposa -j other project re"},
		{"-j hello state -A -w --no-color", whole},
		{"top -A -n 1", whole},
		{"-j hello top -A -n 1", whole},
		{"-j other top -n 1", "mariposa -j other project re"},
		{"project show other", "mariposa -j other project re"},
		{"-j hello project show other", "mariposa -j other project re"},
		{"project plan other", "mariposa -j other project re"},
		{"-j other project plan", "mariposa -j other project re"},
		{"-j other service list", "mariposa -j other project re"},
		{"-j other service show web", "mariposa -j other project re"},
		{"events -A", "mariposa -j other project re"},
		{"-j hello events -A", "mariposa -j other project re"},
		{"-j other events", "mariposa -j other project re"},
		{"queue list --all -A", ""},
		{"-j hello queue list --all -A", ""},
		{"project graph other", ""},
	} {
		for _, env := range []map[string]string{nil, {"MARIPOSA_PROJECT": "hello"}} {
			r := &run{f: f, home: home, env: env}
			if strings.Contains(c.args, " -w") {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				r.ctx = ctx
			}
			r.do(t, strings.Fields(c.args)...)
			out := r.stdout + r.stderr
			if !strings.Contains(out, c.want) {
				t.Errorf("%s %v: without %q\n%s", c.args, env, c.want, out)
			}
			for _, wrong := range []string{"`mariposa project re", "`mariposa -j hello project re", "`mariposa -o ann -j hello project re"} {
				if strings.Contains(out, wrong) {
					t.Errorf("%s %v: says %s\n%s", c.args, env, wrong, out)
				}
			}
		}
	}
}

func TestWhoamiShowsEveryRole(t *testing.T) {
	t.Parallel()
	r := (&run{f: newTeamServer(t).proxy(t)}).do(t, "whoami")
	r.expect(exitOK, strings.Contains(r.stdout, "acme (owner)"), strings.Contains(r.stdout, "ann (owner)"))
}

// A user without the permission sees that first, not what else is in the way.
func TestADeletionChecksThePermissionFirst(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.project("acme", "shop")
	token, err := s.CreateToken(t.Context(), contract.NewToken{Name: "bobs", User: "bob"})
	must(t, err)
	s.use(token.Secret)
	f := s.proxy(t)
	for _, args := range []string{"-o acme project rm shop", "-o acme project rm shop --yes"} {
		r := (&run{f: f, tty: true}).do(t, strings.Fields(args)...)
		r.expect(exitError, strings.Contains(r.stderr, "requires the admin role"), !strings.Contains(r.stderr, "running instance"), !strings.Contains(r.stderr, "to confirm"))
	}
}

func TestTheHelpOfAServiceStartHasOnlyFlagsThatWork(t *testing.T) {
	t.Parallel()
	r := (&run{}).do(t, "service", "start", "--help")
	own, _, _ := strings.Cut(r.stdout, "Global Flags:")
	r.expect(exitOK, !strings.Contains(own, "--rolling"), !strings.Contains(own, "--canary"), !strings.Contains(own, "--version"), strings.Contains(own, "--wait"))
}

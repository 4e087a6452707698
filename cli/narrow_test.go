package cli

import (
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// On a narrow terminal no line is too long, and nothing is left out.
func TestTheStateFitsANarrowTerminal(t *testing.T) {
	t.Parallel()
	for _, columns := range []string{"40", "50"} {
		r := (&run{f: world(t), tty: true, env: map[string]string{"COLUMNS": columns}}).do(t, "state", "--no-color")
		for line := range strings.Lines(r.stdout) {
			if most := map[string]int{"40": 40, "50": 50}[columns]; cells(strings.TrimSuffix(line, "\n")) > most {
				t.Errorf("at %s columns: %q", columns, line)
			}
		}
		r.expect(exitOK, strings.Contains(r.stdout, "hello/web\n"), strings.Contains(r.stdout, "backing-off"), strings.Contains(r.stdout, "12:11:00"))
	}
}

// A plan that changes only networks and volumes is not empty.
func TestAPlanCountsNetworksAndVolumes(t *testing.T) {
	t.Parallel()
	plan := contract.Plan{Version: hashTwo, Complete: true, Resources: []contract.PlanResource{
		{Kind: "service", Name: "web", Change: "unchanged", Before: 1, After: 1},
		{Kind: "network", Name: "inner", Change: "create"},
		{Kind: "volume", Name: "data", Change: "update"},
		{Kind: "volume", Name: "logs", Change: "keep"},
	}}
	r := (&run{f: world(t).give("POST /v1/projects/hello/plan", plan)}).do(t, "project", "plan", "hello")
	r.expect(exitOK, strings.Contains(r.stdout, "network inner"), strings.Contains(r.stderr, "changes of 1 network and 2 volumes; nothing was changed"), !strings.Contains(r.stderr, "nothing to do"))
	plan.Steps = []contract.PlanStep{{Step: "create", Slot: "web.2"}}
	r = (&run{f: world(t).give("POST /v1/projects/hello/plan", plan)}).do(t, "project", "plan", "hello")
	r.expect(exitOK, strings.Contains(r.stderr, "1 step if all succeed; changes of 1 network and 2 volumes; nothing was changed"))
}

func TestAWrongNumberIsExplainedInWords(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-j hello logs --tail x": `--tail must be a whole number, not "x"`, "queue list --limit 1.5": `--limit must be a whole number, not "1.5"`, "top -n many": `--looks must be a whole number, not "many"`,
		"state --json=maybe": `--json must be true or false, not "maybe"`, "events --since soon": "--since must be a time such as", "-j hello logs --since soon": "--since must be a time such as",
		"project scale hello web=x": `"web=x" is not a scale`, "-j hello meta incr visits x": "is not a whole number of at least 1",
	} {
		r := (&run{f: world(t)}).do(t, strings.Fields(args)...)
		r.expect(exitUsage, strings.Contains(r.stderr, want), !strings.Contains(r.stderr, "strconv"), !strings.Contains(r.stderr, "invalid argument"))
	}
	r := (&run{f: world(t), env: map[string]string{"MARIPOSA_TAIL": "x"}}).do(t, "-j", "hello", "logs")
	r.expect(exitUsage, strings.Contains(r.stderr, `invalid environment variable: MARIPOSA_TAIL must be a whole number, not "x"`))
}

// A command that is suggested works as it stands: it names what the user named.
func TestSuggestedCommandsRepeatTheProject(t *testing.T) {
	t.Parallel()
	s := helloState()
	s.Projects[0].Services[1].Reason = "1 of 2 at version 2; continue with mariposa project reprovision, or undo with mariposa project revert"
	f := world(t).give("GET /v1/state", s).on("PUT /v1/projects/hello/state", refuse(mariposa.Conflict, "it is already frozen; thaw it with mariposa project thaw"))
	for args, want := range map[string]string{
		"-j hello instance show web.9":                   "`mariposa -j hello instance list`",
		"-o acme -j hello queue show 77":                 "`mariposa -o acme -j hello queue list --all`",
		"-o acme -j hello state":                         "undo with mariposa -o acme -j hello project revert",
		"-j hello project freeze":                        "thaw it with mariposa -j hello project thaw",
		"project freeze hello":                           "thaw it with mariposa project thaw",
		"-j hello volume show nothing":                   "`mariposa -j hello volume list`",
		"state --service web":                            "undo with mariposa project revert",
		"-j hello project reprovision --instance web.77": "`mariposa -j hello instance list`",
	} {
		if r := (&run{f: f}).do(t, strings.Fields(args)...); want != "" && !strings.Contains(r.stdout+r.stderr, want) {
			t.Errorf("%s: without %q\n%s%s", args, want, r.stdout, r.stderr)
		}
	}
}

func TestWhoamiShowsEveryRole(t *testing.T) {
	t.Parallel()
	r := (&run{f: world(t)}).do(t, "whoami")
	r.expect(exitOK, strings.Contains(r.stdout, "acme (owner)"), strings.Contains(r.stdout, "ann (owner)"))
}

// A person without the permission is told so, not what else is in the way.
func TestADeletionChecksThePermissionFirst(t *testing.T) {
	t.Parallel()
	viewed := contract.Project{ID: helloID, Name: "hello", Role: mariposa.RoleViewer}
	f := world(t).give("GET /v1/projects/hello", viewed).on("DELETE /v1/projects/"+helloID, refuse(mariposa.Forbidden, "Permission denied: deleting hello requires the admin role; you are a viewer"))
	for _, args := range []string{"project rm hello", "project rm hello --yes"} {
		r := (&run{f: f, tty: true}).do(t, strings.Fields(args)...)
		r.expect(exitError, strings.Contains(r.stderr, "requires the admin role"), !strings.Contains(r.stderr, "running instance"), !strings.Contains(r.stderr, "to confirm"))
	}
}

func TestTheHelpOfAServiceStartHasOnlyFlagsThatWork(t *testing.T) {
	t.Parallel()
	r := (&run{f: world(t)}).do(t, "service", "start", "--help")
	own, _, _ := strings.Cut(r.stdout, "Global Flags:")
	r.expect(exitOK, !strings.Contains(own, "--rolling"), !strings.Contains(own, "--canary"), !strings.Contains(own, "--version"), strings.Contains(own, "--wait"))
}

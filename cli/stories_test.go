package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// Each group of commands is compared with a golden file, including the requests that they
// send. FILE stands for a file with the text.
func TestGroupsOfCommandsTellTheirStories(t *testing.T) {
	t.Parallel()
	for name, g := range map[string]struct {
		file  string
		lines []string
	}{
		"org": {lines: []string{
			"org list", "org list --json", "org create new", "org create new --base-role none", "org create new --base-role king", "org show acme", "-o acme org show", "org show",
			"org show nowhere", "org update acme --base-role deployer", "org update acme", "org rename acme best", "-o acme org rename best", "org delete acme", "org delete",
			"org members acme", "org add acme bob", "-o acme org add bob --role owner", "org add acme bob --role king", "org remove acme bob", "org add acme zoe", "org add nowhere zoe", "org remove acme zoe", "-o acme org rm bob", "org leave acme",
			"orgs list --json=false",
		}},
		"policy": {lines: []string{
			"org policy acme", "org policy acme --json", "org policy acme --compute-types docker,dummy --no-host-ports --default-package tiny", "org policy acme --all-compute-types --low-ports --no-default-package",
			"org policy acme --host-ports --no-host-ports", "org policy acme --compute-types=", "org policy acme --compute-types docker --all-compute-types",
		}},
		"quota": {lines: []string{
			"org quota acme", "org quota acme --json", "org quota acme --instances 200 --cpu 1.5 --memory 64g --no-projects", "org quota acme --projects 3 --no-projects", "org quota acme --memory lots",
			"org quota acme --cpu -1", "org quota acme --instances 1.5", "org quota acme --stored-per-project 1g --no-memory",
		}},
		"user": {lines: []string{
			"user list", "user show bob", "user show zoe", "user create cem --email cem@example.com --admin", "user create cem --json", "user update bob --admin=false", "user update bob --email b@x.org", "user update bob",
			"user disable bob", "user enable bob", "user delete bob", "whoami", "whoami --json", "whoami --as bob",
		}},
		"token": {lines: []string{
			"token list", "token list --user bob", "token create ci", "token create ci --project hello --org acme --role deployer --expires 90d", "token create ci --json", "token create ci --role king",
			"token create robot --user bob --org acme", "token revoke ci", "token revoke laptop", "token revoke " + tokenID, "token revoke 0199", "token revoke nobody", "token revoke ci --user bob", "token revoke nobody --user bob", "token revoke mrp_TOPSECRET",
			"token show old", "token revoke old", "token revoke old --yes", "token adopt old",
			"node join-token list", "node join-token --name rack-8 --uses 3 --expires 2h", "node join-token --json --name rack-8 --uses 0", "node join-token --uses -1", "node join-token revoke rack-7", "node join-token revoke nobody",
		}},
		"package": {lines: []string{
			"package list", "package set small --memory 512m --cpu 0.5 --disk 10g --family small", "package set small --memory 512m", "package set small --memory 512x --cpu 1", "package rm small", "package rm large",
			"key rotate", "key rotate --json",
		}},
		"volume": {lines: []string{
			"volume list", "volume list --json", "-j hello volume list --service db --node node1", "-o acme volume list -A", "volume show db.1:data", "-j hello volume show " + dataOne, "volume show db.2:data", "volume show nothing",
			"volume rm db.1:data", "volume rm " + dataOne + " --json", "volume rm " + dataTwo, "volumes delete nothing -y", "project delete hello --volumes -f --yes",
		}},
		"network": {lines: []string{
			"network list", "network list --json", "-j hello network list", "network show backend", "network show " + netTwo, "network show nothing", "network show twice",
			"network rm backend", "network rm " + netTwo + " --json", "networks delete nothing -y", "network rm --help",
		}},
		"people": {lines: []string{
			"project users hello", "-j hello project people", "project add-user hello bob --role operator", "-j hello project share bob --role deployer", "project add-user hello bob", "project add-user hello bob --role king",
			"project remove-user hello bob", "-j hello project unshare bob", "project remove-user hello zoe",
			"project add-user hello zoe --role viewer", "project add-user hallo zoe --role viewer", "project remove-user hallo zoe", "-o acme project remove-user hello zoe", "-o acme project users hallo", "project list --as zoe", "project show hallo --as bob",
		}},
		"history": {lines: []string{
			"-j hello project history", "-j hello project version diff 1 2", "-j hello project version diff 1", "-j hello project version diff 1 2 --json", "project tag list hello", "-j hello project tag add good 2", "project tag add hello good 2",
			"-j hello project tag rm loud", "-j hello project tag rm quiet",
		}},
		"revert": {lines: []string{
			"-j hello project revert", "-j hello project revert 1 --rolling 25% --message back", "-j hello project revert 1 --canary 2 --with-scale", "-j hello project revert --canary x", "project revert hello 1", "project revert hello 1 --json", "project revert hello 1 --rolling many",
		}},
		"orders": {lines: []string{
			"project start hello --service web --service backend", "project start hello --version 1 --rolling 2 --canary 10%", "-j hello project stop --service web,backend", "project stop hello --version 2",
			"-j hello project reprovision --service web --version 1 --image shop/web:1 --instance web.1 --instance web.2-00cd34 --node node1,node2 --count 25% --rolling 2", "-j hello project reprovision --count 1",
			"project reprovision hello --instance web.9", "project freeze hello", "project freeze hello --service web", "project thaw hello --service web", "-j hello project pause", "-j hello project resume", "-j hello project converge --service web",
			"-j hello project accept", "-j hello queue freeze --json", "queue thaw hello", "project freeze hallo", "-j hello project scale web=+2 backend=-1",
		}},
		"queue": {lines: []string{
			"queue list --all --state failed --service web --limit 5", "queue list --limit 0 --json", "queue show " + taskOne[:20], "queue show " + taskOne + " --limit 1", "queue show 0198c000-0000-7000-8000-0000000000b9",
			"queue terminate " + taskOne, "queue terminate " + taskOne[:30] + " --json", "queue terminate beef", "queue terminate 0198c000-0000-7000-8000-0000000000b9",
		}},
		"plan": {file: "services:\n  web: {scale: 3}\n", lines: []string{
			"-j hello project plan", "project plan hello -m FILE", "project plan hello --json", "project plan nowhere -m FILE", "project plan nowhere", "-j hello -o acme project plan -m FILE --rolling 25% --canary 1", "-j hello project plan --canary 1", "-j hello project plan -m FILE --rolling x",
		}},
		"copy": {lines: []string{
			"project copy hello again", "-j hello project copy again --meta mode --meta db_password --to-org beta", "-j hello project copy again --json", "project move hello beta", "project move hello beta --yes", "-j hello project transfer beta -y --json",
			"project rename hello howdy", "-j hello project rename howdy", "-j hello -o acme project rename howdy --json", "-o acme project rename hallo howdy", "project rename",
		}},
		"meta": {lines: []string{
			"-j hello meta list", "meta list", "-j hello meta list --json", "-j hello meta get mode", "-j hello meta get color", "-j hello meta get license", "-j hello meta get nothing", "-j hello meta get db_password", "-j hello meta get db_password --json",
			"-j hello meta get db_password --reveal", "-j hello meta get cert", "-j hello meta set mode test", "-j hello meta set mode test 7", "-j hello meta set mode test --cas 7 --json", "-j hello meta set mode=test color=red", "-j hello meta set mode",
			"-j hello meta rm mode", "-j hello meta rm mode 7", "-j hello meta incr build", "-j hello meta decr build 5", "-j hello meta incr build 0", "-j hello meta incr build --json", "-j hello meta export", "-j hello meta export --reveal",
			"-j hello meta export --json",
		}},
		"import": {file: "mode: test\ndb_password: ••••\nfresh: x\n", lines: []string{
			"-j hello meta import -m FILE", "-j hello meta import -m FILE -f --message all", "-j hello meta import -m FILE --json", "-j hello meta import -m FILE -f --json", "-j hello meta import",
		}},
		"import-adds":  {file: "mode: production\ndb_password: ••••\nfresh: x\n", lines: []string{"-j hello meta import -m FILE"}},
		"import-lacks": {file: "db_password: given-anew\n", lines: []string{"-j hello meta import -m FILE", "-j hello -o acme meta import -m FILE --json"}},
		"audit": {lines: []string{
			"events --audit", "-j hello events --audit --actor ann --action manifest. --outcome denied --since 7d --until 2026-03-01T12:00:00Z --limit 2", "-o acme events --audit -A", "events --audit --outcome odd", "events --audit --since yesterday", "events --audit -f",
			"events --actor ann", "events --since 7d", "events --audit --limit -1",
		}},
		"single": {file: "compute_type: process\ncommand: [/bin/x, 1.10]\ncpu: 0.5\nrestart: no\nports: [8080]\n", lines: []string{
			"-j hello instance create shell -m FILE", "-j hello -o acme instance create shell --image shop/web:1 --command /bin/sh --env A=1 --env B=2,3 --memory 512m --cpu 2 --package small --port 8080", "-j hello instance create shell --compute-type process -- /bin/sh -c true",
			"-j hello instance create shell /bin/sh", "-j hello instance create shell --cpu many", "-j hello instance create shell -m FILE --compute-type dummy --json", "instance stop web.1", "instance start web.1", "instance restart web.1 --json", "instance replace web.1", "instance rm web.1", "instance rm nothing",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all strings.Builder
			for _, line := range g.lines {
				f := world(t).give("PUT /v1/projects/hello/state", contract.Changed{ID: helloID, Name: "hello", Version: hashOne, Number: 3, Task: ptr(taskOne)})
				r := &run{f: f, home: t.TempDir()}
				if g.file != "" {
					keep(t, r.home, "FILE", g.file)
				}
				r.do(t, strings.Fields(strings.ReplaceAll(line, "FILE", r.home+"/FILE"))...)
				r.args = strings.Fields(line)
				asked := strings.NewReplacer(r.home, "HOME").Replace(f.requests())
				all.WriteString(r.story() + "== asked\n" + asked + "\n\n")
			}
			golden(t, "group-"+name, all.String())
		})
	}
}

func TestADifferenceOfVersionsIsColoredForATerminalAlone(t *testing.T) {
	t.Parallel()
	args := []string{"-j", "hello", "project", "version", "diff", "1", "2"}
	(&run{f: world(t), tty: true}).do(t, args...).golden("history-diff-terminal")
	for _, c := range []struct {
		name string
		env  map[string]string
		tty  bool
	}{{"a pipe", nil, false}, {"NO_COLOR", map[string]string{"NO_COLOR": "1"}, true}} {
		if r := (&run{f: world(t), tty: c.tty, env: c.env}).do(t, args...); strings.Contains(r.stdout, "\x1b") {
			t.Errorf("%s: got %q", c.name, r.stdout)
		}
	}
	f := world(t).give("GET /v1/projects/hello/diff", contract.Diff{From: contract.Version{Version: hashTwo, Number: 2}, To: contract.Version{Version: hashTwo, Number: 2}})
	if r := (&run{f: f}).do(t, args...); r.stdout != "" || !strings.Contains(r.stderr, "the versions are identical") {
		t.Errorf("equal versions: %q, %q", r.stdout, r.stderr)
	}
}

func TestATokenAloneIsOnStandardOutput(t *testing.T) {
	t.Parallel()
	r := (&run{f: world(t)}).do(t, "token", "create", "ci")
	r.expect(exitOK, r.stdout == "mrp_TOPSECRET\n", !strings.Contains(r.stderr, "TOPSECRET"), strings.Contains(r.stderr, "not shown again"))
}

// The default project does not limit a token.
func TestATokenIsBoundByTheCommandLineAlone(t *testing.T) {
	t.Parallel()
	env := map[string]string{"MARIPOSA_PROJECT": "hello", "MARIPOSA_ORG": "acme"}
	for line, want := range map[string]string{
		"token create ci":              `POST /v1/tokens {"name":"ci"}`,
		"token create ci -j other":     `POST /v1/tokens {"name":"ci","organization":"acme","project":"other"}`,
		"token create ci -o beta":      `POST /v1/tokens {"name":"ci","organization":"beta"}`,
		"token create ci -o beta -j x": `POST /v1/tokens {"name":"ci","organization":"beta","project":"x"}`,
	} {
		f := world(t)
		r := (&run{f: f, env: env}).do(t, strings.Fields(line)...)
		r.expect(exitOK, f.requests() == want)
	}
}

// After a rename, the project is still the default.
func TestRenamingTheChosenProjectKeepsItChosen(t *testing.T) {
	t.Parallel()
	f, home := world(t), t.TempDir()
	f.give("GET /v1/projects/howdy", contract.Project{ID: helloID, Name: "howdy"})
	(&run{f: f, home: home}).do(t, "project", "set", "hello").expect(exitOK)
	(&run{f: f, home: home}).do(t, "project", "rename", "howdy").expect(exitOK)
	r := (&run{f: f, home: home}).do(t, "project", "show", "--json")
	r.expect(exitOK, strings.Contains(r.stdout, "howdy"))
}

func TestATokenForWhatIsNotThereSaysWhereToLook(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"token create ci --user zoe":         "see `mariposa user list`",
		"token create ci --user bob -o none": "see `mariposa org list`",
		"token create ci -o acme -j none":    "see `mariposa -o acme project list`",
		"token list --user zoe":              "see `mariposa user list`",
		"token revoke ci --user zoe":         "see `mariposa user list`",
	} {
		f := world(t)
		for _, route := range []string{"GET /v1/tokens", "POST /v1/tokens"} {
			f.on(route, refuse(mariposa.ResourceNotFound, "there is no such thing"))
		}
		r := (&run{f: f}).do(t, strings.Fields(line)...)
		r.expect(exitError, r.stderr == "mariposa: there is no such thing\n  "+says+"\n")
	}
}

func TestMovingAProjectWantsItsName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, answer string
		moved        bool
	}{{"right", "hello\n", true}, {"wrong", "hallo\n", false}, {"none", "", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := world(t)
			(&run{f: f, tty: true, stdin: c.answer}).do(t, "project", "move", "hello", "beta").golden("move-" + c.name)
			if moved := strings.Contains(f.requests(), "POST "); moved != c.moved {
				t.Errorf("moved: %v", moved)
			}
		})
	}
}

func TestActingForAUserIsAFlagOfEveryCommand(t *testing.T) {
	t.Parallel()
	f := world(t).give("GET /v1/users/bob/projects/hello/metadata/mode", contract.MetadataKey{Key: "mode", Value: "x", Set: true})
	for _, env := range []map[string]string{nil, {"MARIPOSA_AS": "bob"}} {
		args := []string{"-j", "hello", "meta", "get", "mode"}
		if env == nil {
			args = append(args, "--as", "bob")
		}
		r := (&run{f: f, env: env}).do(t, args...)
		r.expect(exitOK, r.stdout == "x\n")
	}
}

func TestAnAuditIsExportedAsLinesOfJSON(t *testing.T) {
	t.Parallel()
	const body = `{"id":2,"action":"manifest.put","outcome":"done"}` + "\n" + `{"id":1,"action":"login","outcome":"denied"}` + "\n"
	f := world(t).on("GET /v1/audit", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "application/x-ndjson" {
			_, _ = w.Write([]byte(body))
		}
	})
	r := (&run{f: f}).do(t, "events", "--audit", "--json")
	r.expect(exitOK, r.stdout == body)
	r = (&run{f: f}).do(t, "events", "--audit", "--json", "--limit", "1")
	r.expect(exitOK, strings.Count(r.stdout, "\n") == 1)
}

// Errors of the server are shown unchanged.
func TestRefusalsAreShownInTheServersWords(t *testing.T) {
	t.Parallel()
	for code, hint := range map[mariposa.Code]string{
		mariposa.Forbidden: "whoami", mariposa.Conflict: "", mariposa.QuotaExceeded: "", mariposa.TooLarge: "", mariposa.Throttled: "wait a moment", mariposa.ResourceNotFound: "project list",
	} {
		f := world(t).on("PUT /v1/projects/hello/metadata/mode", refuse(code, "because of "+string(code)))
		r := (&run{f: f}).do(t, "-j", "hello", "meta", "set", "mode", "x")
		r.expect(exitError, r.stdout == "", strings.HasPrefix(r.stderr, "mariposa: because of "+string(code)), strings.Contains(r.stderr, hint))
	}
}

func TestHelpOfTheNewCommands(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"meta", "meta set", "org", "org quota", "org policy", "token create", "project", "project move", "project rename", "meta import", "project revert", "project copy", "instance create", "events", "login", "user", "queue", "queue list", "queue terminate", "project start", "project stop", "project reprovision", "project freeze", "project accept", "project plan", "instance list", "top"} {
		args := append(strings.Fields(line), "--help")
		r := (&run{f: world(t)}).do(t, args...)
		// The flags of all commands are in the help of the program.
		text, _, _ := strings.Cut(r.story(), "\nGlobal Flags:")
		golden(t, "help-"+strings.ReplaceAll(line, " ", "-"), text+"\n")
	}
}

func TestAnotherRootCertificateIsRead(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	r := (&run{f: world(t), home: home}).do(t, "state", "--ca", filepath.Join(home, "none.pem"))
	r.expect(exitError, strings.Contains(r.stderr, "cannot read the root certificate"))
	must(t, os.WriteFile(filepath.Join(home, "odd.pem"), []byte("odd"), 0o600))
	r = (&run{f: world(t), home: home, env: map[string]string{"MARIPOSA_CA": home + "/odd.pem"}}).do(t, "state")
	r.expect(exitUsage, strings.Contains(r.stderr, "BEGIN CERTIFICATE"))
}

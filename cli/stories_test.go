package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func TestADifferenceOfVersionsIsColoredForATerminalAlone(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, groupManifest, groupLouder)
	args := []string{"-j", "hello", "project", "version", "diff", "1", "2"}
	(&run{f: s.proxy(t), tty: true}).do(t, args...).golden("history-diff-terminal")
	for _, c := range []struct {
		name string
		env  map[string]string
		tty  bool
	}{{"a pipe", nil, false}, {"NO_COLOR", map[string]string{"NO_COLOR": "1"}, true}} {
		if r := (&run{f: s.proxy(t), tty: c.tty, env: c.env}).do(t, args...); r.stdout == "" || strings.Contains(r.stdout, "\x1b") {
			t.Errorf("%s: got %q", c.name, r.stdout)
		}
	}
}

func TestATokenAloneIsOnStandardOutput(t *testing.T) {
	t.Parallel()
	r := (&run{f: newTeamServer(t).proxy(t)}).do(t, "token", "create", "ci")
	r.expect(exitOK, r.stdout == "mrp_TOPSECRET\n", !strings.Contains(r.stderr, "TOPSECRET"), strings.Contains(r.stderr, "not shown again"))
}

// The default project does not limit a token.
func TestATokenIsBoundByTheCommandLineAlone(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	_, err := s.CreateOrganization(t.Context(), contract.NewOrganization{Name: "beta"})
	must(t, err)
	s.project("acme", "hello")
	s.project("acme", "other")
	s.project("beta", "x")
	env := map[string]string{"MARIPOSA_PROJECT": "hello", "MARIPOSA_ORG": "acme"}
	for line, want := range map[string]string{
		"token create ci1":              `POST /v1/tokens {"name":"ci1"}`,
		"token create ci2 -j other":     `POST /v1/tokens {"name":"ci2","organization":"acme","project":"other"}`,
		"token create ci3 -o beta":      `POST /v1/tokens {"name":"ci3","organization":"beta"}`,
		"token create ci4 -o beta -j x": `POST /v1/tokens {"name":"ci4","organization":"beta","project":"x"}`,
	} {
		f := s.proxy(t)
		r := (&run{f: f, env: env}).do(t, strings.Fields(line)...)
		r.expect(exitOK, f.requests() == want)
	}
}

// After a rename, the project is still the default.
func TestRenamingTheChosenProjectKeepsItChosen(t *testing.T) {
	t.Parallel()
	f, home := newHello(t, oneWeb).proxy(t), t.TempDir()
	(&run{f: f, home: home}).do(t, "project", "set", "hello").expect(exitOK)
	(&run{f: f, home: home}).do(t, "project", "rename", "howdy").expect(exitOK)
	r := (&run{f: f, home: home}).do(t, "project", "show", "--json")
	r.expect(exitOK, strings.Contains(r.stdout, "howdy"))
}

func TestATokenForWhatIsNotThereSaysWhereToLook(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for line, says := range map[string]string{
		"token create ci --user zoe":         "see `mariposa user list`",
		"token create ci --user bob -o none": "see `mariposa org list`",
		"token create ci -o acme -j none":    "see `mariposa -o acme project list`",
		"token list --user zoe":              "see `mariposa user list`",
		"token revoke ci --user zoe":         "see `mariposa user list`",
	} {
		r := (&run{f: s.proxy(t)}).do(t, strings.Fields(line)...)
		r.expect(exitError, strings.HasPrefix(r.stderr, "mariposa: there is no "), strings.HasSuffix(r.stderr, "\n  "+says+"\n"))
	}
}

func TestMovingAProjectWantsItsName(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, groupManifest)
	for _, c := range []struct {
		name, answer string
		moved        bool
	}{{"wrong", "hallo\n", false}, {"none", "", false}, {"right", "hello\n", true}} {
		t.Run(c.name, func(t *testing.T) {
			f := s.proxy(t)
			(&run{f: f, tty: true, stdin: c.answer}).do(t, "project", "move", "hello", "acme").golden("move-" + c.name)
			if moved := strings.Contains(f.requests(), "POST "); moved != c.moved {
				t.Errorf("moved: %v", moved)
			}
		})
	}
}

func TestActingForAUserIsAFlagOfEveryCommand(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.project("bob", "hello")
	f := s.proxy(t)
	for _, env := range []map[string]string{nil, {"MARIPOSA_AS": "bob"}} {
		for _, c := range []struct{ args, says string }{{"meta set mode x", "mode is set"}, {"meta get mode", "x\n"}} {
			args := c.args
			if env == nil {
				args += " --as bob"
			}
			r := (&run{f: f, env: env}).do(t, append([]string{"-j", "hello"}, strings.Fields(args)...)...)
			r.expect(exitOK, strings.Contains(r.stdout, c.says))
		}
	}
	for _, asked := range strings.Split(f.requests(), "\n") {
		if !strings.Contains(asked, " /v1/users/bob/projects/hello/metadata/mode") {
			t.Errorf("asked %s", asked)
		}
	}
}

func TestAnAuditIsExportedAsLinesOfJSON(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	r := (&run{f: s.proxy(t)}).do(t, "events", "--audit", "--json")
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	r.expect(exitOK, len(lines) > 3)
	for _, line := range lines {
		var record mariposa.Audit
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.Action == "" || record.Outcome == "" {
			t.Errorf("%v in %s", err, line)
		}
	}
	r = (&run{f: s.proxy(t)}).do(t, "events", "--audit", "--json", "--limit", "1")
	r.expect(exitOK, r.stdout == lines[0]+"\n")
}

// Errors of the server are shown unchanged.
func TestRefusalsAreShownInTheServersWords(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.project("acme", "hello")
	_, err := s.SetQuota(t.Context(), "acme", client.QuotaChange{Set: contract.QuotaLimits{Instances: ptr(1)}})
	must(t, err)
	busy := s.proxy(t).on("PUT /v1/projects/hello/metadata/mode", throttled)
	for _, c := range []struct {
		f          *proxy
		args       string
		says, hint string
	}{
		{args: "--as bob meta set mode x", says: "permission denied", hint: "whoami"},
		{args: "meta set mode x 7", says: "mode is not set"},
		{args: "project scale web=2", says: "quota"},
		{args: "meta set mode " + strings.Repeat("x", 1<<20+1), says: "the limit is"},
		{args: "meta set mode x", f: busy, says: "slow down", hint: "wait a moment"},
		{args: "-j hallo meta set mode x", says: `there is no project "hallo"`, hint: "project list"},
	} {
		if c.f == nil {
			c.f = s.proxy(t)
		}
		r := (&run{f: c.f}).do(t, append([]string{"-o", "acme", "-j", "hello"}, strings.Fields(c.args)...)...)
		first, rest, _ := strings.Cut(r.stderr, "\n")
		r.expect(exitError, r.stdout == "", strings.HasPrefix(first, "mariposa: "), strings.Contains(first, c.says), strings.Contains(rest, c.hint), (c.hint == "") == (rest == ""))
	}
}

func TestHelpOfTheNewCommands(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"meta", "meta set", "org", "org quota", "org policy", "token create", "project", "project move", "project rename", "meta import", "project revert", "project copy", "instance create", "events", "login", "user", "queue", "queue list", "queue terminate", "project start", "project stop", "project reprovision", "project freeze", "project accept", "project plan", "instance list", "top"} {
		args := append(strings.Fields(line), "--help")
		r := (&run{}).do(t, args...)
		// The flags of all commands are in the help of the program.
		text, _, _ := strings.Cut(r.story(), "\nGlobal Flags:")
		golden(t, "help-"+strings.ReplaceAll(line, " ", "-"), text+"\n")
	}
}

func TestAnotherRootCertificateIsRead(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	r := (&run{home: home}).do(t, "state", "--ca", filepath.Join(home, "none.pem"))
	r.expect(exitError, strings.Contains(r.stderr, "cannot read the root certificate"))
	must(t, os.WriteFile(filepath.Join(home, "odd.pem"), []byte("odd"), 0o600))
	r = (&run{home: home, env: map[string]string{"MARIPOSA_CA": home + "/odd.pem"}}).do(t, "state")
	r.expect(exitUsage, strings.Contains(r.stderr, "BEGIN CERTIFICATE"))
}

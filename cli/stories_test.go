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

func TestADifferenceOfVersionsIsColoredForATerminalAlone(t *testing.T) {
	t.Parallel()
	s := newHouse(t)
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
	s := newHouse(t)
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

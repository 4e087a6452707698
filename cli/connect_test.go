package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"mariposa/client"
	"mariposa/contract"
)

// keep writes a file below a home directory, readable only by its owner.
func keep(t *testing.T, home, name, text string) {
	t.Helper()
	path := filepath.Join(home, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// A more specific source takes precedence, and a token is never sent to a server that it
// is not for.
func TestTheServerThatIsMeant(t *testing.T) {
	t.Parallel()
	const data, other = ".local/share/mariposa", "elsewhere"
	for _, c := range []struct {
		name       string
		args       string
		env        map[string]string
		files      map[string]string
		url, token string
	}{
		{name: "nothing is known", url: defaultURL},
		{
			name: "the dev server of this machine", files: map[string]string{data + "/url": "http://dev:1\n", data + "/admin.token": "local\n"},
			url: "http://dev:1", token: "local",
		},
		{name: "a token without an address goes nowhere", files: map[string]string{data + "/admin.token": "local"}, url: defaultURL},
		{
			name: "a profile goes before the dev server", files: map[string]string{data + "/url": "http://dev:1", data + "/admin.token": "local", ".config/mariposa/profile.json": `{"url":"http://prod:2","token":"saved"}`},
			url: "http://prod:2", token: "saved",
		},
		{
			name: "a profile with a project alone does not", files: map[string]string{data + "/url": "http://dev:1", data + "/admin.token": "local", ".config/mariposa/profile.json": `{"project":"hello"}`},
			url: "http://dev:1", token: "local",
		},
		{
			name: "the environment goes before the profile", env: map[string]string{"MARIPOSA_URL": "http://env:3", "MARIPOSA_TOKEN": "given"},
			files: map[string]string{".config/mariposa/profile.json": `{"url":"http://prod:2","token":"saved"}`}, url: "http://env:3", token: "given",
		},
		{
			name: "the profile's token stays with its server", env: map[string]string{"MARIPOSA_URL": "http://env:3"},
			files: map[string]string{".config/mariposa/profile.json": `{"url":"http://prod:2","token":"saved"}`, data + "/admin.token": "local", data + "/url": "http://dev:1"}, url: "http://env:3",
		},
		{
			name: "the profile's token goes to its server", env: map[string]string{"MARIPOSA_URL": "http://prod:2/"},
			files: map[string]string{".config/mariposa/profile.json": `{"url":"http://prod:2","token":"saved"}`}, url: "http://prod:2/", token: "saved",
		},
		{
			name: "the dev server's token goes to the dev server", args: "--url http://dev:1",
			files: map[string]string{data + "/url": "http://dev:1", data + "/admin.token": "local"}, url: "http://dev:1", token: "local",
		},
		{
			name: "a flag goes before the environment", args: "--url http://flag:4 --token typed", env: map[string]string{"MARIPOSA_URL": "http://env:3", "MARIPOSA_TOKEN": "given"},
			url: "http://flag:4", token: "typed",
		},
		{
			name: "a data folder goes before profile and environment", args: "--data HOME/" + other, env: map[string]string{"MARIPOSA_URL": "http://env:3"},
			files: map[string]string{other + "/url": "http://dev:5", other + "/admin.token": "there", ".config/mariposa/profile.json": `{"url":"http://prod:2","token":"saved"}`},
			url:   "http://dev:5", token: "there",
		},
		{
			name: "a data folder beside an address lends its token", args: "--url http://flag:4 --data HOME/" + other, files: map[string]string{other + "/admin.token": "there"},
			url: "http://flag:4", token: "there",
		},
		{
			name: "XDG folders are looked at", env: map[string]string{"XDG_DATA_HOME": "HOME/xdg"}, files: map[string]string{"xdg/mariposa/url": "http://xdg:6", "xdg/mariposa/admin.token": "x"},
			url: "http://xdg:6", token: "x",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			for name, text := range c.files {
				keep(t, home, name, text)
			}
			a := &app{env: Env{Getenv: func(name string) string {
				if name == "HOME" {
					return home
				}
				return strings.ReplaceAll(c.env[name], "HOME", home)
			}}.withDefaults()}
			cmd := a.root(nil)
			must(t, cmd.ParseFlags(strings.Fields(strings.ReplaceAll(c.args, "HOME", home))))
			must(t, a.prepare(cmd, nil))
			s, err := a.locate()
			if err != nil || s.url != c.url || s.token != c.token {
				t.Errorf("got %q with token %q, %v", s.url, s.token, err)
			}
		})
	}
}

func TestEveryFlagReadsItsEnvironmentVariable(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.project("acme", "hello")
	f := s.proxy(t)
	env := map[string]string{"MARIPOSA_JSON": "true", "MARIPOSA_PROJECT": "hello", "MARIPOSA_ALL": "1", "MARIPOSA_ORG": "acme"}
	r := (&run{f: f, env: env}).do(t, "queue", "list")
	r.expect(exitOK, strings.HasPrefix(r.stdout, "{"))
	if got := f.requests(); got != "GET /v1/queue?all=true&limit=100&organization=acme&project=hello" {
		t.Errorf("asked %s", got)
	}
	r = (&run{f: f, env: env}).do(t, "queue", "list", "--json=false")
	if strings.HasPrefix(r.stdout, "{") {
		t.Error("the environment went before the command line")
	}
	r = (&run{f: f, env: map[string]string{"MARIPOSA_JSON": "perhaps"}}).do(t, "queue", "list")
	r.expect(exitUsage, strings.Contains(r.stderr, "MARIPOSA_JSON"))
}

func TestLoginKeepsATokenThatWorksToItself(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	f := s.proxy(t)
	r := (&run{stdin: "  " + secret + "\n"}).do(t, "login", "--url", f.url+"/", "--token-stdin")
	r.expect(exitOK, !strings.Contains(r.stdout+r.stderr, secret))
	path := filepath.Join(r.home, ".config/mariposa/profile.json")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	// From now on, no flags are needed.
	again := (&run{home: r.home}).do(t, "project", "set", "hello")
	again.expect(exitOK, f.tokens["Bearer "+secret])
	again = (&run{home: r.home}).do(t, "project", "show")
	again.expect(exitOK, strings.Contains(again.stdout, s.helloID()))
	var saved profile
	text, _ := os.ReadFile(path)
	if err := json.Unmarshal(text, &saved); err != nil || !reflect.DeepEqual(saved, profile{URL: f.url, Token: secret, Selected: map[string]selection{f.url: {Project: "hello"}}}) {
		t.Errorf("saved %s", text)
	}
}

func TestLoginKeepsNothingThatDoesNotWork(t *testing.T) {
	t.Parallel()
	f := newTeamServer(t).proxy(t)
	r := (&run{stdin: "wrong"}).do(t, "login", "--url", f.url, "--token-stdin")
	r.expect(exitError, strings.Contains(r.stderr, "nothing was saved"))
	if _, err := os.Stat(filepath.Join(r.home, ".config/mariposa/profile.json")); err == nil {
		t.Error("a profile was written")
	}
	for _, stdin := range []string{"", "two words"} {
		r = (&run{stdin: stdin}).do(t, "login", "--url", f.url, "--token-stdin")
		r.expect(exitUsage)
	}
	r = (&run{}).do(t, "login", "--url", f.url)
	r.expect(exitUsage)
}

func TestADamagedProfileIsNamed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	keep(t, home, ".config/mariposa/profile.json", "{")
	r := (&run{home: home}).do(t, "state")
	r.expect(exitError, strings.Contains(r.stderr, "profile.json is damaged"))
}

func TestNamesAreCompletedFromTheServer(t *testing.T) {
	t.Parallel()
	s := newValues(t, metaManifest)
	_, err := s.SetMetadata(t.Context(), "hello", "mode", contract.MetadataValue{Value: []byte(`"loud"`)}, client.KeyChange{Message: "greet louder"})
	must(t, err)
	_, err = s.AddTag(t.Context(), "hello", "loud", "3")
	must(t, err)
	s.act(contract.Action{Action: "freeze", Services: []string{"web"}})
	for _, name := range []string{"small-512m", "tiny"} {
		_, err = s.PutPackage(t.Context(), contract.Package{Name: name, Memory: 512 << 20, CPU: 0.5})
		must(t, err)
	}
	s.clientBy(s.Client, contract.NewToken{Name: "ci"})
	rest := strings.Repeat("a", 33)
	versions := "c0de001" + rest + "\tgreet louder c0de002" + rest + " c0de003" + rest
	for line, want := range map[string]string{
		"project show ":                       "hello",
		"-j ":                                 "hello",
		"-j hello project scale ":             "backend= web=",
		"-j hello project stop --service ":    "backend web",
		"instance logs ":                      "backend.1-f00001 web.1-f00002",
		"instance logs web.1 ":                "",
		"node lose ":                          "node1 node2",
		"queue show ":                         "0198c000-0000-7000-8000-000000000001\tfreeze hello/web",
		"-j hello project version get ":       versions,
		"project create ":                     "",
		"instance list --node ":               "node1 node2",
		"-j hello project update --previous ": versions,
		"-j hello project version diff ":      versions,
		"-j hello project revert ":            versions,
		"-j hello project tag rm ":            "completed current latest loud",
		"-j hello project move ":              "acme admin ann bob hello",
		"project rename ":                     "hello",
		"project rename hello ":               "",
		"-j hello project copy x --to-org ":   "acme admin ann bob",
		"-j hello project copy x --meta ":     "color db_password license\tfrom the vendor mode\thow it runs",
		"-j hello meta set ":                  "color db_password license\tfrom the vendor mode\thow it runs",
		"-j hello meta get mode ":             "",
		"project add-user hello ":             "admin ann bob",
		"project add-user x y --role ":        "viewer deployer operator admin",
		"org add ":                            "admin ann bob acme admin ann bob",
		"org add acme ":                       "admin ann bob",
		"org add acme ann ":                   "",
		"org create x --base-role ":           "none viewer deployer operator admin",
		"org show ":                           "acme admin ann bob",
		"-o ":                                 "acme admin ann bob",
		"--as ":                               "admin ann bob",
		"user show ":                          "admin ann bob",
		"token revoke ":                       "laptop ci",
		"package rm ":                         "small-512m tiny",
		"events --outcome ":                   "done denied failed",
		"queue terminate ":                    "0198c000-0000-7000-8000-000000000001\tfreeze hello/web",
		"queue list --state ":                 "queued active completed failed terminated",
		"instance list --state ":              "pending provisioning running draining stopping stopped failed unknown",
		"project freeze -j hello --service ":  "backend web",
		"queue thaw ":                         "hello",
		"project reprovision --node ":         "node1 node2",
		"project reprovision --instance ":     "backend.1-f00001 web.1-f00002",
		"project plan ":                       "hello",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"__complete"}, strings.Split(line, " ")...)
			r := (&run{f: s.proxy(t)}).do(t, args...)
			names, _, _ := strings.Cut(r.stdout, ":")
			if got := numberInOrder(strings.Join(strings.Split(strings.TrimSpace(names), "\n"), " ")); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	(&run{env: map[string]string{"MARIPOSA_URL": nobody}}).do(t, "__complete", "project", "show", "").expect(exitOK)
}

// A token is not sent unencrypted to another machine unless the user allows it.
func TestPlainHTTPToAnotherMachineIsRefused(t *testing.T) {
	t.Parallel()
	const far = "http://mariposa.example.com:8080"
	for name, args := range map[string][]string{
		"a command": {"project", "list", "--url", far, "--token", secret},
		"login":     {"login", "--url", far, "--token-stdin"},
		"by number": {"project", "list", "--url", "http://10.0.0.1:8080", "--token", secret},
	} {
		home := t.TempDir()
		r := (&run{home: home, stdin: secret}).do(t, args...)
		if r.code != exitUsage || !strings.Contains(r.stderr, "sent unencrypted") || !strings.Contains(r.stderr, "--insecure") || strings.Contains(r.stderr, secret) {
			t.Errorf("%s: exit %d, %s", name, r.code, r.stderr)
		}
		if _, err := os.Stat(filepath.Join(home, ".config/mariposa/profile.json")); err == nil {
			t.Errorf("%s: it was remembered", name)
		}
	}
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
	}{
		"a flag":      {args: []string{"project", "list", "--insecure", "--url", "http://mariposa.invalid", "--token", secret}},
		"environment": {args: []string{"project", "list", "--url", "http://mariposa.invalid", "--token", secret}, env: map[string]string{"MARIPOSA_INSECURE": "1"}},
	} {
		r := (&run{env: c.env}).do(t, c.args...)
		if r.code != exitError || strings.Contains(r.stderr, "unencrypted") { // it tried to connect, and the host does not exist
			t.Errorf("%s: exit %d, %s", name, r.code, r.stderr)
		}
	}
}

// Login saves --insecure for that server only, and only if it was given.
func TestLoginRemembersInsecureWhereItWasSaid(t *testing.T) {
	t.Parallel()
	f := newTeamServer(t).proxy(t)
	for _, said := range []bool{false, true} {
		home := t.TempDir()
		args := []string{"login", "--url", f.url, "--token-stdin"}
		if said {
			args = append(args, "--insecure")
		}
		(&run{home: home, stdin: secret}).do(t, args...).expect(exitOK)
		text, err := os.ReadFile(filepath.Join(home, ".config/mariposa/profile.json"))
		must(t, err)
		if got := strings.Contains(string(text), `"insecure": true`); got != said {
			t.Errorf("said %v: %s", said, text)
		}
	}
	home := t.TempDir()
	keep(t, home, ".config/mariposa/profile.json", `{"url":"http://mariposa.invalid","token":"saved","insecure":true}`)
	r := (&run{home: home}).do(t, "project", "list")
	r.expect(exitError, !strings.Contains(r.stderr, "unencrypted"))
	r = (&run{home: home}).do(t, "project", "list", "--url", "http://other.invalid")
	r.expect(exitUsage, strings.Contains(r.stderr, "unencrypted"))
}

// Tokens that a token created are shown before they are revoked with it.
func TestRevokingATokenShowsWhatItMade(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	var deep *client.Client
	for _, c := range []struct {
		name, args string
		tty        bool
		answer     string
		code       int
		cascade    bool
	}{
		{name: "a person who does not mean it", args: "token revoke old", tty: true, answer: "n\n", code: exitError},
		{name: "a person who does", args: "token revoke old", tty: true, answer: "y\n", cascade: true},
		{name: "a script", args: "token revoke old", code: exitError},
		{name: "a script that means it", args: "token revoke old --yes", cascade: true},
	} {
		if deep == nil {
			old := s.clientBy(s.Client, contract.NewToken{Name: "old"})
			deep = s.clientBy(s.clientBy(old, contract.NewToken{Name: "ci"}), contract.NewToken{Name: "deep"})
			s.clientBy(old, contract.NewToken{Name: "rack-7", Use: "join", Expires: "24h"})
		}
		f := s.proxy(t)
		r := (&run{f: f, tty: c.tty, stdin: c.answer}).do(t, strings.Fields(c.args)...)
		if r.code != c.code || strings.Contains(f.requests(), "cascade=true") != c.cascade || !strings.Contains(r.stderr, "old of ann") || !strings.Contains(r.stderr, "    deep of ann") ||
			!strings.Contains(r.stderr, "  rack-7 for nodes") {
			t.Errorf("%s: exit %d, asked %s\n%s%s", c.name, r.code, f.requests(), r.stdout, r.stderr)
		}
		if _, err := deep.Whoami(t.Context()); (err != nil) != c.cascade {
			t.Errorf("%s: what it made: %v", c.name, err)
		}
		if c.cascade {
			deep = nil
		}
	}
}

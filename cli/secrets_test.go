package cli

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"

	"mariposa"
	"mariposa/client"
)

// planted is a secret that must be shown only on request.
const planted = "hunter2-planted"

const wanting = `services:
  web: {compute_type: dummy, command: "web {{ .meta.mode }} {{ .meta.db_password }}"}
metadata:
  mode: {required: true, description: how it runs, choices: [test, production]}
  db_password: {required: true, secret: true, description: of the database, pattern: "[a-z0-9-]{8,}"}
  made_up: {secret: true, generate: 32}
  color: {default: blue}
`

// Missing required values are asked for before anything is created, and are sent with the
// manifest in one request.
func TestCreateAsksForWhatTheManifestRequires(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for _, c := range []struct {
		name, stdin string
		types       []string
		values      string // a file of them
		asked       string
		tty         bool
	}{
		{
			name: "both", tty: true, stdin: "dev\nproduction\n", types: []string{"short", planted},
			asked: `"metadata":"db_password: ` + planted + `\nmode: production\n"`,
		},
		{name: "skipped", tty: true, stdin: "\n", types: []string{""}, asked: "POST /v1/projects?name=hello services:"},
		{name: "one-given", tty: true, types: []string{planted}, values: "mode: test # for now\n", asked: `"metadata":"mode: test # for now\ndb_password: ` + planted + `\n"`},
		{name: "pipe", asked: "POST /v1/projects?name=hello services:"},
		{name: "pipe-given", values: "{mode: test, db_password: " + planted + "}", asked: `"metadata":"{mode: test, db_password: ` + planted + `}"`},
		{name: "wrong-value", values: "mode: dev\ndb_password: " + planted + "\n"},
		{name: "wrong-file", values: "mode: [dev\ndb_password: " + planted + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.again(t)
			f := s.proxy(t)
			r := &run{f: f, tty: c.tty, stdin: c.stdin, types: c.types, home: t.TempDir()}
			keep(t, r.home, "m.yaml", wanting)
			args := []string{"project", "create", "hello", "-m", r.home + "/m.yaml"}
			if c.values != "" {
				keep(t, r.home, "v.yaml", c.values)
				args = append(args, "--metadata", r.home+"/v.yaml")
			}
			r.do(t, args...)
			r.golden("create-asks-" + c.name)
			if strings.Contains(r.stdout+r.stderr, planted) {
				t.Error("the secret is shown")
			}
			if asked := f.requests(); c.asked == "" && asked != "" || !strings.Contains(asked, c.asked) {
				t.Errorf("asked %s", asked)
			}
		})
	}
	r := (&run{f: s.proxy(t), stdin: "x"}).do(t, "project", "create", "hello", "-m", "-", "--metadata", "-")
	r.expect(exitUsage)
}

func TestUpdateAsksForWhatTheNewManifestRequires(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for _, c := range []struct {
		name  string
		tty   bool
		stdin string
		types []string
		sets  int
	}{
		{name: "terminal", tty: true, stdin: "y\ntest\n", types: []string{planted}, sets: 2},
		{name: "pipe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.again(t, groupManifest)
			f := s.proxy(t)
			r := &run{f: f, tty: c.tty, stdin: c.stdin, types: c.types, home: t.TempDir()}
			keep(t, r.home, "m.yaml", wanting)
			args := []string{"project", "update", "hello", "-m", r.home + "/m.yaml"}
			if !c.tty {
				args = append(args, "--force")
			}
			r.do(t, args...)
			r.golden("update-asks-" + c.name)
			if n := strings.Count(f.requests(), "PUT /v1/projects/hello/metadata/"); n != c.sets || strings.Contains(r.stdout+r.stderr, planted) {
				t.Errorf("%d values were set:\n%s", n, f.requests())
			}
		})
	}
}

// newValues is a house with the project hello, which has metadata.
func newValues(t *testing.T, manifest string) *realServer {
	t.Helper()
	s := newHello(t, manifest)
	_, err := s.ImportMetadata(t.Context(), "hello", []byte(metaValues), client.Update{Force: true})
	must(t, err)
	s.atRest("hello", mariposa.StatusConverged)
	return s
}

func TestASecretIsAskedForWithoutShowingIt(t *testing.T) {
	t.Parallel()
	s := newValues(t, metaManifest)
	for _, c := range []struct {
		args, stdin string
		types       []string
		asked       string // as the body of the last request
		fails       bool
	}{
		{args: "meta set license", types: []string{planted}, asked: `{"value":"` + planted + `"}`},
		{args: "meta set mode", stdin: "test\n", asked: `{"value":"test"}`},
		{args: "meta set mode --secret", types: []string{planted}, asked: `{"value":"` + planted + `","secret":true}`},
		{args: "meta set unheard-of", types: []string{planted}, asked: `{"value":"` + planted + `"}`},
		{args: "meta set license", types: []string{""}, fails: true},
	} {
		f := s.proxy(t)
		r := (&run{f: f, tty: true, stdin: c.stdin, types: c.types}).do(t, append([]string{"-j", "hello"}, strings.Fields(c.args)...)...)
		if (r.code != exitOK) != c.fails || strings.Contains(r.stdout+r.stderr, planted) {
			t.Errorf("%s: exit %d: %s%s", c.args, r.code, r.stdout, r.stderr)
		}
		if asked := f.requests(); !strings.HasSuffix(asked, c.asked) || c.fails && strings.Contains(asked, "PUT") {
			t.Errorf("%s: asked %s", c.args, asked)
		}
	}
}

func TestValuesComeFromFilesAndStandardInput(t *testing.T) {
	t.Parallel()
	s, home := newValues(t, metaManifest), t.TempDir()
	keep(t, home, "cert", "line 1\nline 2\n")
	for line, want := range map[string]string{
		"meta set mode -":                           `{"value":"from a pipe"}`,
		"meta set mode - $cas0":                     `?cas=CAS {"value":"from a pipe"}`,
		"meta set mode --from-file -":               `{"value":"from a pipe\r\n"}`,
		"meta set mode --from-file HOME/cert":       `{"value":"line 1\nline 2\n"}`,
		"meta set mode $cas0 --from-file HOME/cert": `?cas=CAS {"value":"line 1\nline 2\n"}`,
		"meta set mode --secret=false v":            `{"value":"v","secret":false}`,
		"meta set mode= ":                           `{"value":""}`,
		"meta set mode=a=b":                         `{"value":"a=b"}`,
		"meta set mode -- -v":                       `{"value":"-v"}`,
		"meta set --cas $cas0 mode=x":               `?cas=CAS {"value":"x"}`,
		"meta set mode --from-file HOME/missing":    "",
	} {
		f, cas := s.proxy(t), s.words("$cas0")[0]
		want = strings.ReplaceAll(want, "CAS", cas)
		r := (&run{f: f, home: home, stdin: "from a pipe\r\n"}).do(t, append([]string{"-j", "hello"}, s.words(strings.ReplaceAll(line, "HOME", home))...)...)
		if want == "" {
			if r.code != exitError || f.requests() != "" {
				t.Errorf("%s: exit %d: %s", line, r.code, r.stderr)
			}
			continue
		}
		if r.code != exitOK || f.requests() != "PUT /v1/projects/hello/metadata/mode"+want && f.requests() != "PUT /v1/projects/hello/metadata/mode "+want {
			t.Errorf("%s: exit %d: %s; asked %s", line, r.code, r.stderr, f.requests())
		}
	}
}

// A secret is shown only on request, whatever is done with it and whatever fails.
func TestASecretIsNeverShownUnasked(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	keep(t, home, "v.yaml", "db_password: "+planted+"\nmode: test\nfresh: "+planted+"\n")
	keep(t, home, "bad.yaml", "db_password: {"+planted+"\n")
	keep(t, home, "nested.yaml", "db_password: {a: "+planted+"}\n"+planted+": 1\n")
	keep(t, home, "raw", planted)
	keep(t, home, "m.yaml", wanting)
	s := newValues(t, metaManifest+"  refused: {secret: true, pattern: \"[0-9]+\"}\n  fresh: {secret: true}\n")
	for _, line := range []string{
		"meta list", "meta get db_password", "meta export", "project version diff 1 2",
		"meta set db_password " + planted, "meta set db_password=" + planted, "meta set db_password - --secret", "meta set db_password --from-file HOME/raw",
		"meta set db_password " + planted + " 4 " + planted, "meta set db_password=" + planted + " " + planted, "meta set db_password=" + planted + " db_password=" + planted,
		"meta set db_password -" + planted, "meta set db_password --" + planted, "meta set license=" + planted + " refused=" + planted, "meta set refused " + planted, "meta set refused - " + planted,
		"meta get db_password=" + planted, "meta rm db_password " + planted, "meta rm db_password=" + planted, "meta set db_password my " + planted, "meta set db_password --cas " + planted + " x",
		"meta db_password=" + planted, "meta incr db_password=" + planted, "login db_password=" + planted, "login mrp_" + planted, "token revoke mrp_" + planted,
		"meta import -m HOME/v.yaml", "meta import -m HOME/v.yaml -f", "meta import -m HOME/bad.yaml", "meta import -m HOME/nested.yaml", "project create new -m HOME/m.yaml --metadata HOME/bad.yaml",
	} {
		for _, how := range []struct {
			name string
			tty  bool
			args []string
		}{{name: "a pipe"}, {name: "a terminal", tty: true}, {name: "JSON", args: []string{"--json"}}} {
			f := s.proxy(t)
			r := &run{f: f, home: home, tty: how.tty, stdin: planted + "\n"}
			args := append([]string{"-j", "hello"}, how.args...)
			r.do(t, append(args, strings.Fields(strings.ReplaceAll(line, "HOME", home))...)...)
			if strings.Contains(r.stdout+r.stderr, planted) {
				t.Errorf("%s on %s: shown:\n%s%s", line, how.name, r.stdout, r.stderr)
			}
			for _, asked := range strings.Split(f.requests(), "\n") {
				if words := strings.Fields(asked); len(words) > 1 && strings.HasPrefix(words[1], "/v1/") && strings.Contains(words[1], planted) {
					t.Errorf("%s: in an address: %s", line, asked)
				}
			}
		}
	}
	for _, line := range []string{"meta get db_password --reveal", "meta export --reveal", "meta export --reveal --json"} {
		if r := (&run{f: s.proxy(t)}).do(t, append([]string{"-j", "hello"}, strings.Fields(line)...)...); !strings.Contains(r.stdout, planted) {
			t.Errorf("%s: not shown: %s", line, r.stdout)
		}
	}
}

// Secrets are masked here even if the server did not mask them: the proxy removes the
// masks.
func TestASecretIsMaskedWhateverTheServerSays(t *testing.T) {
	t.Parallel()
	s := newValues(t, metaManifest)
	leak := func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(rewriting{w, func(p []byte) []byte { return bytes.ReplaceAll(p, []byte("••••"), []byte(planted)) }}, r)
	}
	f := s.proxy(t).on("GET /v1/projects/hello/metadata", leak).on("GET /v1/projects/hello/metadata/db_password", leak).
		on("PUT /v1/projects/hello/metadata/db_password", leak).on("GET /v1/projects/hello/diff", leak)
	for _, line := range []string{"meta list", "meta get db_password", "project version diff 1 2", "meta set db_password x --secret"} {
		for _, json := range []string{"--json=false", "--json"} {
			r := (&run{f: f}).do(t, append([]string{"-j", "hello", json}, strings.Fields(line)...)...)
			r.expect(exitOK, !strings.Contains(r.stdout+r.stderr, planted))
		}
	}
}

func TestAnImportAddsAndWithForceOverwrites(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for _, c := range []struct {
		name, file, flags string
		put               bool
	}{
		{"adds", "mode: test\ndb_password: new-password\nfresh: x\n", "", true},
		{"overwrites", "mode: test\ndb_password: new-password\nfresh: x\n", "-f", true},
		{"same", "mode: production\ndb_password: ••••\n", "-f", false},
		{"faults", "mode: {a: 1}\n", "-f", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.again(t, metaManifest)
			_, err := s.ImportMetadata(t.Context(), "hello", []byte(metaValues), client.Update{Force: true})
			must(t, err)
			s.atRest("hello", mariposa.StatusConverged) // not blocked by missing values any more
			f := s.proxy(t)
			r := &run{f: f, tty: true, home: t.TempDir()}
			keep(t, r.home, "v.yaml", c.file)
			args := append([]string{"-j", "hello", "meta", "import", "-m", r.home + "/v.yaml"}, strings.Fields(c.flags)...)
			r.do(t, args...)
			r.golden("import-" + c.name)
			if put := strings.Contains(f.requests(), "PUT "); put != c.put {
				t.Errorf("imported: %v", put)
			}
		})
	}
}

func TestAChangeOfMetadataThatRollsCanBeWaitedFor(t *testing.T) {
	t.Parallel()
	f := newValues(t, strings.Replace(metaManifest, "web: {", "web: {update: {on_metadata: reprovision, min_healthy: 0}, ", 1)).proxy(t)
	r := (&run{f: f}).do(t, "-j", "hello", "meta", "set", "mode", "test", "--wait")
	r.expect(exitOK, strings.Contains(r.stdout, "task 0198"), strings.Contains(r.stderr, "completed"))
}

func TestProfilesStandBesideEachOther(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	first, second := newTeamServer(t), newTeamServer(t)
	first.project("acme", "hello")
	one, two := first.proxy(t), second.proxy(t)
	login := func(f *proxy, args ...string) *run {
		return (&run{home: home, stdin: secret}).do(t, append([]string{"login", "--url", f.url, "--token-stdin"}, args...)...)
	}
	if r := login(one, "--org", "acme"); r.code != exitOK || !strings.HasSuffix(r.stdout, " as ann\n") {
		t.Fatalf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if r := login(two, "--profile", "prod"); r.code != exitOK {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	info, err := os.Stat(home + "/.config/mariposa/profiles/prod.json")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	for _, c := range []struct {
		args string
		env  map[string]string
		says string
		code int
	}{
		{args: "project list", says: "hello"},
		{args: "project list --profile default", says: "hello"},
		{args: "project list --profile prod", says: "no projects yet"},
		{args: "project list", env: map[string]string{"MARIPOSA_PROFILE": "prod"}, says: "no projects yet"},
		{args: "project list --profile prod", env: map[string]string{"MARIPOSA_URL": one.url, "MARIPOSA_TOKEN": "of-one"}, says: "no projects yet"},
		{args: "project list --profile prd", says: "available profiles: default, prod", code: exitUsage},
		{args: "project list --profile ../x", says: "invalid profile name", code: exitUsage},
		{args: "login --profile ../x --token t --url http://x", says: "invalid profile name", code: exitUsage},
		{args: "login --as bob --token t", says: "log in as yourself", code: exitUsage},
		{args: "login --org nowhere --token t", says: "nothing was saved", code: exitError},
		{args: "__complete --profile ", says: "default\nprod\n"},
	} {
		r := (&run{home: home, env: c.env}).do(t, strings.Split(c.args, " ")...)
		r.expect(c.code, strings.Contains(r.stdout+r.stderr, c.says))
	}
	if two.tokens["Bearer of-one"] {
		t.Error("a token of the environment went to the server of a chosen profile")
	}
	if !strings.Contains(one.requests(), "organization=acme") || strings.Contains(two.requests(), "organization=acme") {
		t.Error("the organization is not that of its profile")
	}
}

func TestLoginAgainKeepsWhatIsNotSaidAndLogoutForgets(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.project("acme", "hello")
	f, home := s.proxy(t), t.TempDir()
	for _, args := range []string{"login --url " + f.url + " --org acme", "project set hello", "login"} {
		(&run{home: home, env: map[string]string{"MARIPOSA_TOKEN": secret}}).do(t, strings.Fields(args)...).expect(exitOK)
	}
	text, _ := os.ReadFile(home + "/.config/mariposa/profile.json")
	if !strings.Contains(string(text), `"org": "acme"`) || !strings.Contains(string(text), `"project": "hello"`) {
		t.Errorf("saved %s", text)
	}
	for _, says := range []string{"profile default is deleted\n", ""} {
		r := (&run{home: home}).do(t, "logout")
		r.expect(exitOK, r.stdout == says)
	}
	if _, err := os.Stat(home + "/.config/mariposa/profile.json"); err == nil {
		t.Error("the profile is still there")
	}
	r := (&run{tty: true, home: home, types: []string{secret}}).do(t, "login", "--url", f.url)
	r.expect(exitOK, !strings.Contains(r.stdout+r.stderr, secret))
}

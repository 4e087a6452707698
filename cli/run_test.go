package cli

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa/leaktest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { leaktest.Main(m) }

// must fails the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// secret is the token of commands. The proxy sends the token of the server instead.
const secret = "s3cret-token"

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(d time.Duration) *time.Time {
	t := noon.Add(d)
	return &t
}

func ptr[T any](v T) *T { return &v }

// A run is one command line and its result.
type run struct {
	t       *testing.T
	f       *proxy
	home    string // directory of the profile and the data directory
	env     map[string]string
	environ []string // variables of Compose files
	tty     bool     // all three streams are terminals
	stdin   string
	types   []string        // lines typed without echo
	ctx     context.Context //nolint:containedctx // a run is one call
	out     io.Writer
	errs    io.Writer
	quiet   time.Duration // see Env; 0: an hour
	stall   time.Duration // see Env

	args           []string
	code           int
	stdout, stderr string
}

func (r *run) do(t *testing.T, args ...string) *run {
	t.Helper()
	var stdout, stderr bytes.Buffer
	r.t, r.args = t, args
	if r.home == "" {
		r.home = t.TempDir()
	}
	if r.ctx == nil {
		r.ctx = context.Background()
	}
	env := Env{
		Stdin: strings.NewReader(r.stdin), Stdout: &stdout, Stderr: &stderr, Version: "1.2.3",
		Now:      func() time.Time { return noon.Add(10 * time.Minute) },
		Quiet:    cmp.Or(r.quiet, time.Hour), // what a wait asks in between depends on how fast the server is
		Stall:    r.stall,
		Terminal: func(any) bool { return r.tty },
		Size:     func(any) (int, int) { return 100, 30 },
		Secret: func(any) (string, error) {
			if len(r.types) == 0 {
				return "", io.EOF
			}
			line := r.types[0]
			r.types = r.types[1:]
			return line, nil
		},
		Environ: func() []string { return r.environ },
		Getenv: func(name string) string {
			switch {
			case r.env[name] != "":
				return r.env[name]
			case name == "HOME":
				return r.home
			case name == "MARIPOSA_URL" && r.f != nil:
				return r.f.url
			case name == "MARIPOSA_TOKEN" && r.f != nil:
				return secret
			}
			return ""
		},
	}
	if r.out != nil {
		env.Stdout = r.out
	}
	if r.errs != nil {
		env.Stderr = r.errs
	}
	r.code = Main(r.ctx, args, env)
	r.stdout, r.stderr = r.tidy(stdout.String()), r.tidy(stderr.String())
	return r
}

// expect fails the test unless a run has ended with a code and all conditions are true.
func (r *run) expect(code int, as ...bool) {
	r.t.Helper()
	if r.code == code && !slices.Contains(as, false) {
		return
	}
	asked := ""
	if r.f != nil {
		asked = "== asked\n" + r.f.requests()
	}
	r.t.Errorf("exit %d was expected, and something of %v:\n%s%s", code, as, r.story(), asked)
}

// Revisions differ from run to run.
var (
	aRevision = regexp.MustCompile(`("(?:revision|as_of)": ?)\d+`)
	aSince    = regexp.MustCompile(`\bsince=\d+([&\s]|$)`)
)

// tidy removes what differs from run to run.
func (r *run) tidy(s string) string {
	if r.f != nil {
		s = strings.ReplaceAll(s, r.f.url, "http://SERVER")
	}
	return aRevision.ReplaceAllString(strings.ReplaceAll(s, r.home, "HOME"), "${1}7")
}

// story formats a run for a golden file.
func (r *run) story() string {
	return fmt.Sprintf("$ mariposa %s\n== exit %d\n== stdout\n%s== stderr\n%s", r.tidy(strings.Join(r.args, " ")), r.code, visible(r.stdout), visible(r.stderr))
}

// golden compares a run with its golden file.
func (r *run) golden(name string) *run {
	r.t.Helper()
	golden(r.t, name, r.story())
	return r
}

// visible makes control sequences readable in a diff.
func visible(s string) string {
	return strings.NewReplacer("\x1b", "␛", "\r", "␍").Replace(s)
}

// golden compares a text with a golden file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = numberInOrder(got)
	path := filepath.Join("testdata", name+".golden")
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./cli -update writes it)", err)
	}
	if got != string(want) {
		t.Errorf("%s is not as it was:\n%s", name, strings.Join(unifiedDiff(path, "now", string(want), got), "\n"))
	}
}

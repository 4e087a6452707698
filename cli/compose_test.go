package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mariposa/compose"
	"mariposa/manifest"
)

const composeFile = `version: "3.8"
services:
  web:
    build: .
    image: shop/web:${TAG}
    ports: [8080]
    environment:
      MODE: $MODE
      HOME_OF: $HOME_OF
    env_file: web.env
    depends_on: [db]
    privileged: true
  db:
    image: postgres:17
    volumes: ["data:/var/lib/postgresql/data"]
volumes:
  data:
`

// composeHome is a directory with a Compose file, and what it refers to.
func composeHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	keep(t, home, "docker-compose.yml", composeFile)
	keep(t, home, ".env", "TAG=1.4\nMODE=from .env\n")
	keep(t, home, "web.env", "EXTRA=1\n")
	keep(t, home, "plain.yml", "services:\n  web: {image: shop/web:2, scale: 2}\n")
	keep(t, home, "faulty.yml", "services:\n  web:\n    image: x\n    imagee: y\n")
	keep(t, home, "mariposa.yaml", groupManifest)
	return home
}

func TestComposeFilesAreTranslatedWithoutAServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, args, stdin string }{
		{"dry-run", "project create shop --compose HOME/docker-compose.yml --dry-run", ""},
		{"dry-run-json", "project create shop --compose HOME/docker-compose.yml --dry-run --json", ""},
		{"dry-run-stdin", "project create shop --compose - --dry-run", "services: {web: {image: w, tty: true}}"},
		{"dry-run-update", "project update shop --compose HOME/plain.yml --dry-run", ""},
		{"strict", "project create shop --compose HOME/docker-compose.yml --strict", ""},
		{"strict-dry-run", "project create shop --compose HOME/plain.yml --strict --dry-run", ""},
		{"faulty", "project create shop --compose HOME/faulty.yml", ""},
		{"nowhere", "project create shop --compose HOME/nowhere.yml", ""},
		{"validate", "validate --compose HOME/docker-compose.yml", ""},
		{"validate-strict", "validate --compose HOME/docker-compose.yml --strict", ""},
		{"both", "project create shop --compose HOME/docker-compose.yml -m HOME/mariposa.yaml", ""},
		{"both-update", "project update shop --compose HOME/docker-compose.yml -m HOME/mariposa.yaml --force", ""},
		{"both-plan", "project plan shop --compose HOME/docker-compose.yml -m HOME/mariposa.yaml", ""},
		{"both-validate", "validate --compose HOME/docker-compose.yml -m HOME/mariposa.yaml", ""},
		{"strict-alone", "project create shop -m HOME/mariposa.yaml --strict", ""},
		{"dry-run-alone", "project create shop -m HOME/mariposa.yaml --dry-run", ""},
		{"stdin-twice", "project create shop --compose - --metadata -", "services: {}"},
		{"help", "project create --help", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			home := composeHome(t)
			r := &run{home: home, stdin: c.stdin, env: map[string]string{"MARIPOSA_URL": nobody}, environ: []string{"MODE=from shell"}}
			r.do(t, strings.Fields(strings.ReplaceAll(c.args, "HOME", home))...).golden("compose-" + c.name)
		})
	}
}

// compose-go has global variables. This test is here because the tests of compose run without the
// race detector.
func TestComposeFilesAreTranslatedAtTheSameTime(t *testing.T) {
	t.Parallel()
	begin := make(chan struct{})
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			<-begin
			for m := range 5 {
				in := compose.Input{Project: "shop", File: fmt.Sprintf("%d-%d.yml", n, m), Dir: "/", Text: []byte("version: '3'\nservices: {web: {image: w}}")}
				if _, _, err := compose.Translate(t.Context(), in); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(begin)
	all.Wait()
}

// A dry run can be redirected into a file, which is a manifest.
func TestADryRunPrintsOnlyTheManifest(t *testing.T) {
	t.Parallel()
	home := composeHome(t)
	r := (&run{home: home}).do(t, "project", "create", "shop", "--compose", filepath.Join(home, "docker-compose.yml"), "--dry-run")
	_, err := manifest.Parse([]byte(r.stdout))
	r.expect(exitOK, err == nil)
	keep(t, home, "translated.yaml", r.stdout)
	(&run{home: home}).do(t, "validate", "-m", filepath.Join(home, "translated.yaml")).expect(exitOK)
}

// The files that a Compose file names may be anything.
func TestFilesOfAComposeFileAreReadWithBounds(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(home, "pipe"), 0o600))
	must(t, os.WriteFile(filepath.Join(home, "large"), make([]byte, 2<<20), 0o600))
	keep(t, home, "docker-compose.yml", `services:
  web:
    image: x
    env_file: [pipe, large, /dev/zero]
    volumes: ["./pipe:/pipe", "./large:/large", "/dev/zero:/zero"]
    configs: [c]
configs:
  c: {file: ./large}
`)
	for _, refers := range []string{"pipe", "large", "/dev/zero"} {
		keep(t, home, "include.yml", "include: ["+refers+"]\nservices: {web: {image: x}}\n")
		keep(t, home, "extends.yml", "services: {web: {extends: {file: "+refers+", service: x}}}\n")
		for _, file := range []string{"include.yml", "extends.yml"} {
			r := (&run{home: home}).do(t, "validate", "--compose", filepath.Join(home, file))
			r.expect(exitError, strings.Contains(r.stderr, refers+" "))
		}
	}
	(&run{home: home}).do(t, "validate", "--compose", filepath.Join(home, "docker-compose.yml")).golden("compose-bounds")
}

func TestAComposeFileBecomesAProject(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	home := composeHome(t)
	do := func(name, args string) *run {
		r := &run{f: s.proxy(t), home: home}
		return r.do(t, strings.Fields(strings.ReplaceAll(args, "HOME", home))...).golden("compose-" + name)
	}
	do("plan-new", "project plan shop --compose HOME/docker-compose.yml")
	do("create", "project create shop --compose HOME/docker-compose.yml --message imported").expect(exitOK)
	do("created", "-j shop project version get 1")
	do("update-outside", "project update shop --compose HOME/plain.yml")
	do("update", "project update shop --compose HOME/plain.yml --previous 1").expect(exitOK)
	do("updated", "-j shop project version get 2")
	do("update-same", "project update shop --compose HOME/plain.yml --force")
	do("taken", "project create shop --compose HOME/plain.yml")
}

// A file that would take long to expand is refused in reasonable time.
func TestAnAliasBombIsRefused(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("x-a0: &a0 {a: b}\n")
	for i := range 30 {
		last := string(rune('a' + i))
		before := "a0"
		if i > 0 {
			before = "b" + string(rune('a'+i-1))
		}
		b.WriteString("x-" + last + ": &b" + last + " [" + strings.Repeat("*"+before+",", 9) + "*" + before + "]\n")
	}
	b.WriteString("services: {web: {image: x}}\n")
	begun := time.Now()
	r := (&run{stdin: b.String()}).do(t, "validate", "--compose", "-")
	r.expect(exitError, strings.Contains(r.stderr, "standard input"))
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
}

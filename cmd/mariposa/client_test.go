package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mariposa"
)

// These tests run client commands against a real server.

// wants runs a client command and checks its exit code and its output on either stream.
func (h *devServer) wants(code int, words string, args ...string) string {
	h.t.Helper()
	out, errs, got := h.mariposa("", args...)
	if got != code || !strings.Contains(out+errs, words) {
		h.t.Errorf("mariposa %s: exit %d, want %d with %q\n%s%s", strings.Join(args, " "), got, code, words, out, errs)
	}
	return out
}

func TestAnImportAddsKeysAndTouchesNothingElse(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	h.create("shop", "services: {d: {compute_type: dummy}}\nmetadata: {password: {secret: true}}\n")
	h.ok("meta", "set", "kept=1", "mode=test", "password=hunter2")
	file := fileOf(t, "mode: production\nfresh: x\npassword: other\n")
	h.wants(0, "already set, not changed: mode, password; use -f to overwrite", "meta", "import", "-m", file)
	if got := h.ok("meta", "export", "--reveal"); !strings.Contains(got, "fresh: x") || !strings.Contains(got, "mode: test") || !strings.Contains(got, "hunter2") || !strings.Contains(got, "kept") {
		t.Errorf("without -f:\n%s", got)
	}
	h.wants(0, "nothing to import", "meta", "import", "-m", file)
	h.wants(0, "changed mode, password", "meta", "import", "-m", file, "-f")
	if got := h.ok("meta", "export", "--reveal"); !strings.Contains(got, "mode: production") || !strings.Contains(got, "password: other") || !strings.Contains(got, "kept") {
		t.Errorf("with -f:\n%s", got)
	}
	h.wants(0, "added fresher", "meta", "import", "-m", fileOf(t, "fresher: y\npassword: ••••\n"), "-f")
	if got := h.ok("meta", "get", "password", "--reveal"); got != "other\n" {
		t.Errorf("a masked secret became %q", got)
	}
}

func TestAnUpdateOutsideATerminalSaysWhatItIsBasedOn(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", dummies)
	h.converged("shop", "d", 1)
	file := fileOf(t, strings.Replace(dummies, "d:", "e:", 1))
	for _, more := range [][]string{nil, {"--yes"}} {
		h.wants(2, "requires --previous VERSION", append([]string{"-j", "shop", "project", "update", "-m", file}, more...)...)
	}
	if p, err := h.Project(t.Context(), "shop"); err != nil || p.Number != 1 {
		t.Errorf("it has version %+v, %v", p, err)
	}
	h.ok("-j", "shop", "project", "update", "-m", file, "--previous", "1", "--wait")
}

func TestADeletionIsAskedAbout(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", dummies)
	h.converged("shop", "d", 1)
	h.wants(1, "still has 1 instance running", "project", "delete", "shop", "--yes")
	h.wants(2, "add --yes", "project", "rm", "shop", "-f")
	h.converged("shop", "d", 1)
	askedAbout(t, h, "nope\n", "not confirmed; nothing was changed", 1)
	h.converged("shop", "d", 1)
	askedAbout(t, h, "shop\n", "then deleting it", 0)
	h.await("it is gone", func() bool {
		all, err := h.Projects(t.Context(), "")
		return err == nil && len(all.Projects) == 0
	})
	h.create("shop", dummies)
	h.ok("project", "rm", "shop", "-f", "--yes", "--wait")
}

// askedAbout deletes a project on a terminal.
func askedAbout(t *testing.T, h *devServer, answer, says string, code int) {
	t.Helper()
	x := newTerminal(t, 24, 100)
	before := x.settings()
	cmd := x.runs(h, filepath.Join(binaries, "mariposa"), "project", "rm", "shop", "-f")
	x.shows("type shop to confirm: ")
	x.types(answer)
	x.shows(says)
	x.ended(cmd, code, before)
}

func TestDownAsksAndSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", writerManifest(1, ""))
	h.converged("shop", "db", 1)
	h.kill()
	down := func(code int, words string, more ...string) {
		t.Helper()
		args := append([]string{"dev", "--listen", "127.0.0.1:0", "--data", h.dir, "--down"}, more...)
		out, errs, got := finish(t, program(t.Context(), h.dir, nil, args...), "")
		if got != code || !strings.Contains(out+errs, words) {
			t.Errorf("--down %v: exit %d, want %d with %q\n%s%s", more, got, code, words, out, errs)
		}
	}
	down(2, "stops and deletes all projects")
	if len(h.processes()) != 1 {
		t.Error("something was stopped without asking")
	}
	down(0, "volume db.1:data of shop", "--yes")
	down(2, "deletes all volumes", "--purge")
	write(t, filepath.Join(h.dir, "mine"), []byte("x"))
	down(0, "is kept: it contains files that Mariposa did not create", "--purge", "--yes")
	left, err := os.ReadDir(h.dir)
	must(t, err)
	if len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("left in the folder: %v", left)
	}
}

func TestWhatIsSetBelongsToOneServer(t *testing.T) {
	t.Parallel()
	h, other := newDevServer(t), newDevServer(t)
	h.ok("org", "create", "acme")
	h.ok("-o", "acme", "project", "create", "shop", "-m", fileOf(t, dummies), "--wait")
	h.create("own", dummies)
	other.create("own", dummies)
	home := h.dir
	on := func(s *devServer, args ...string) (string, int) {
		t.Helper()
		out, errs, code := finish(t, program(t.Context(), home, []string{"MARIPOSA_DATA=" + s.dir}, args...), "")
		return out + errs, code
	}
	want := func(s *devServer, words string, args ...string) {
		t.Helper()
		if out, code := on(s, args...); code != 0 || !strings.Contains(out, words) {
			t.Errorf("mariposa %s: exit %d without %q\n%s", strings.Join(args, " "), code, words, out)
		}
	}
	want(h, "the default project is now shop of acme", "-o", "acme", "project", "set", "shop")
	want(h, "acme", "project", "show") // no -o, no -j
	want(h, "shop *", "project", "list")
	want(h, "acme *", "org", "list")
	want(h, "acme (your role: owner)", "whoami")
	want(h, "shop (your role: admin)", "whoami")
	if out, code := on(other, "project", "show"); code != 2 || !strings.Contains(out, "no project given") {
		t.Errorf("it leaks to another server: exit %d\n%s", code, out)
	}
	if out, _ := on(other, "project", "list"); !strings.Contains(out, "own") || strings.Contains(out, "*") {
		t.Errorf("another server lists\n%s", out)
	}
	want(h, "shop is now called store", "project", "rename", "store")
	want(h, "store", "project", "show")
	want(h, "default project store is unset, and so is the organization acme", "project", "unset")
	if out, code := on(h, "project", "show"); code != 2 {
		t.Errorf("still set: %s", out)
	}
	want(h, "own", "project", "list")
	want(h, "no default organization was set", "org", "unset")
	want(h, "the default organization is now acme", "org", "set", "acme")
	if out, code := on(h, "project", "show", "own"); code != 1 || !strings.Contains(out, "acme is the default organization; name another with -o ORG, or unset it with `mariposa org unset`") {
		t.Errorf("a project of another organization: exit %d\n%s", code, out)
	}
	want(h, "acme (owner)", "whoami")
	want(h, "the default project is now store", "-o", "acme", "project", "set", "store")
	want(h, "default project store is unset; the default organization is still acme", "project", "unset")
	out, _ := on(h, "whoami", "--json")
	var who struct {
		Name    string
		Current struct {
			Organization string
			Role         string `json:"organization_role"`
		}
	}
	if err := json.Unmarshal([]byte(out), &who); err != nil || who.Name == "" || who.Current.Organization != "acme" || who.Current.Role != "owner" {
		t.Errorf("whoami --json: %v\n%s", err, out)
	}
	want(h, "the default project is now store", "project", "set", "store")
	want(h, "default organization acme is unset, and so is the default project store in it", "org", "unset")
	want(h, "the default project is now own", "project", "set", "own")
	want(h, "the default organization is now acme; the default project own is unset, because it is in another organization", "org", "set", "acme")
}

func TestAStopOfAVersionLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	v := func(length string) string {
		return "services: {web: {compute_type: dummy, scale: 4, dummy: {name_len: " + length + "}, update: {canary: 1, min_healthy: 0}}, db: {compute_type: dummy}}"
	}
	h.ok("project", "create", "shop", "-m", fileOf(t, v("8")), "--wait")
	h.ok("project", "update", "-m", fileOf(t, v("9")), "--force", "--wait")
	counts := func() string {
		n := map[string]int{}
		for _, i := range h.instances("shop") {
			if i.State == mariposa.StateRunning {
				n[i.ServiceName+" "+i.Version[:7]]++
			}
		}
		all, err := h.Versions(t.Context(), "shop")
		must(t, err)
		return fmt.Sprintf("web %d+%d, db %d", n["web "+all.Versions[1].Version[:7]], n["web "+all.Versions[0].Version[:7]], n["db "+all.Versions[0].Version[:7]])
	}
	if got := counts(); got != "web 3+1, db 1" {
		t.Fatalf("after the canary: %s", got)
	}
	h.wants(1, "project versions", "project", "stop", "--version", "9")
	h.ok("project", "stop", "--version", "2", "--service", "web", "--wait")
	if got := counts(); got != "web 3+0, db 1" {
		t.Errorf("after a stop of the canary: %s", got)
	}
	h.wants(0, "no instance runs version 2", "project", "stop", "--version", "2", "--service", "web")
	h.ok("project", "stop", "--version", "1", "--wait")
	if got := counts(); got != "web 0+0, db 1" {
		t.Errorf("after a stop of the rest: %s", got)
	}
	h.ok("project", "start", "--wait")
	if s := h.state("shop"); s.Services[1].Running != 3 {
		t.Errorf("after a start: %+v", s)
	}
}

func TestAnInterruptedBenchmarkSaysSo(t *testing.T) {
	t.Parallel()
	var out lockedBuffer
	h := &devServer{t: t, dir: t.TempDir(), out: &out}
	cmd := launch(t, program(context.Background(), h.dir, nil, "bench", "converge", "--instances", "20000", "--nodes", "2", "--kills", "1000000"), &out)
	defer end(cmd)
	h.await("it is in the middle of a phase", func() bool { return strings.Contains(out.String(), "starting 20000 instances") })
	must(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code == 0 || !strings.Contains(out.String(), "interrupted while starting instances") || strings.Contains(out.String(), "up_s") {
		t.Errorf("exit %d\n%s", code, out.String())
	}
}

// talker is a service that prints a few lines, then keeps running or fails.
func talker(name, then string) string {
	return "services: {" + name + ": {compute_type: process, scale: 2, command: [sh, -c, 'echo one; echo two $MARIPOSA_NAME; " + then + "'], update: {min_healthy: 0}}, quiet: {compute_type: dummy}}"
}

func TestLogsOfAProjectAreReadAtOnce(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	h.ok("project", "create", "shop", "-m", fileOf(t, talker("web", "exec sleep 100000")), "--wait")
	h.await("all have printed", func() bool { return strings.Count(h.ok("logs"), "two web.") == 2 })
	out := h.ok("logs", "web", "--tail", "1")
	for name := range h.instances("shop") {
		if strings.HasPrefix(name, "web.") && !strings.Contains(out, name+" | two "+name) {
			t.Errorf("%s is not there:\n%s", name, out)
		}
	}
	if strings.Contains(out, "| one") || strings.Count(h.ok("service", "logs", "web"), "| one") != 2 {
		t.Errorf("with --tail 1:\n%s", out)
	}
	h.wants(1, `has no service "wep"`, "logs", "wep")

	// Instances that start later are followed too.
	var seen lockedBuffer
	cmd := launch(t, program(context.Background(), h.dir, []string{"MARIPOSA_DATA=" + h.dir, "MARIPOSA_PROJECT=shop"}, "logs", "web", "-f"), &seen)
	defer end(cmd)
	h.await("it follows", func() bool { return strings.Count(seen.String(), "| two web.") == 2 })
	h.ok("project", "scale", "web=3", "--wait")
	h.await("the new one is followed", func() bool { return strings.Contains(seen.String(), "| two web.3-") })
	must(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v\n%s", err, seen.String())
	}
}

func TestAFailedTaskShowsTheLastLines(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	h.ok("project", "create", "shop", "-m", fileOf(t, talker("web", "exec sleep 100000")), "--wait")
	bad := strings.Replace(talker("web", "exit 3"), "min_healthy: 0", "min_healthy: 1", 1)
	_, errs, code := h.mariposa("", "project", "update", "-m", fileOf(t, bad), "--force", "--wait")
	if code != 3 || !strings.Contains(errs, "the last lines of web.") || !strings.Contains(errs, "  two web.") {
		t.Errorf("exit %d\n%s", code, errs)
	}
	if out := h.ok("logs", "web"); !strings.Contains(out, "two web.") {
		t.Errorf("the logs of those that ended:\n%s", out)
	}
}

func TestTablesAndFilesAsPeopleWantThem(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	folder := t.TempDir()
	in := func(args ...string) (string, int) {
		cmd := program(t.Context(), h.dir, []string{"MARIPOSA_DATA=" + h.dir, "MARIPOSA_PROJECT=shop"}, args...)
		cmd.Dir = folder
		out, errs, code := finish(t, cmd, "")
		return out + errs, code
	}
	want := func(code int, words string, args ...string) {
		t.Helper()
		if out, got := in(args...); got != code || !strings.Contains(out, words) {
			t.Errorf("mariposa %s: exit %d, want %d with %q\n%s", strings.Join(args, " "), got, code, words, out)
		}
	}
	want(2, "no manifest given", "validate")
	want(0, "wrote mariposa.yaml", "init")
	want(1, "already exists", "init")
	want(0, "mariposa.yaml is valid: 1 service (web)", "validate")
	want(0, "project shop does not exist yet", "project", "plan", "shop", "-m", "mariposa.yaml")
	want(0, "version 1", "project", "create", "shop", "--wait")
	write(t, filepath.Join(folder, "bad.yaml"), []byte("services: {web: {scal: 2}}"))
	want(1, "bad.yaml:1: services.web.scal", "validate", "-m", "bad.yaml")
	if out, code := in("ps", "-q"); code != 0 || len(strings.Fields(out)) != 2 || !strings.Contains(out, "web.1-") {
		t.Errorf("ps -q: exit %d\n%s", code, out)
	}
	if out, code := in("ps", "--columns", "state,project", "--no-header"); code != 0 || out != "running  shop\nrunning  shop\n" {
		t.Errorf("ps --columns: exit %d\n%s", code, out)
	}
	want(2, `there is no column "size"`, "ps", "--columns", "size")
	want(2, "did you mean --json?", "ps", "--jsn")
	want(0, "mariposa ", "--version")
	if out, code := in("man", filepath.Join(folder, "man")); code != 0 {
		t.Errorf("man: exit %d\n%s", code, out)
	}
	if page := string(read(t, filepath.Join(folder, "man", "mariposa-project-rm.1"))); !strings.Contains(page, ".SH OPTIONS") || !strings.Contains(page, "delete, del, remove") {
		t.Errorf("the manual page:\n%s", page)
	}
}

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/store/postgres/pgtest"
)

// database is the store of a split system.
func (a *splitSystem) database() string { return "sqlite:" + filepath.Join(a.data, "m.db") }

// command runs a client command, which must succeed.
func (a *splitSystem) command(args ...string) (stdout, stderr string) {
	a.t.Helper()
	out, errs, code := a.try(args...)
	if code != 0 {
		a.t.Fatalf("mariposa %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out, errs
}

func (a *splitSystem) try(args ...string) (stdout, stderr string, code int) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), limit)
	defer cancel()
	return finish(a.t, program(ctx, a.dir, []string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + a.admin}, args...), "")
}

// restore replaces the store by a backup, while the server is down.
func (a *splitSystem) restore(file string) {
	a.t.Helper()
	end(a.server)
	a.command("restore", file, "--store", a.database(), "--force")
	a.serve()
}

const wordy = `services:
  web:
    compute_type: process
    command: [hello, backend]
    ports: [7101]
    environment: {GREETING: "{{ .meta.word }}"}
    scale: %d
metadata:
  word: {secret: true}
`

// expectation is what users see of a project.
type expectation struct {
	Services []contract.ServiceState
	Version  *contract.Version
	Word     string
	Previous int
}

// look returns what a user sees of a project, without what changes by itself.
func (h *devServer) look(project string) (e expectation) {
	h.t.Helper()
	s := h.state(project)
	for _, sv := range s.Services {
		e.Services = append(e.Services, contract.ServiceState{Name: sv.Name, Goal: sv.Goal, Running: sv.Running, Status: sv.Status})
	}
	versions, err := h.Versions(h.t.Context(), project)
	must(h.t, err)
	e.Previous = len(versions.Versions)
	e.Version, err = h.Version(h.t.Context(), project, itoa(versions.Versions[0].Number))
	must(h.t, err)
	word, err := h.MetadataKey(h.t.Context(), project, "word", true)
	must(h.t, err)
	e.Word = word.Value
	return e
}

func (h *devServer) setWord(project, word string) {
	h.t.Helper()
	h.must(h.SetMetadata(h.t.Context(), project, "word", contract.MetadataValue{Value: json.RawMessage(fmt.Sprintf("%q", word))}, client.KeyChange{}))
}

// A backup is made while clients change things. Later changes are lost with the restore;
// everything else is as it was, and no process is touched.
func TestABackupIsRestoredUnderRunningInstances(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.agent()
	for project, n := range map[string]int{"grown": 2, "shrunk": 3} {
		a.create(project, fmt.Sprintf(wordy, n))
		a.setWord(project, "before "+project)
		a.converged(project, "web", n)
	}
	a.create("busy", "services: {d: {compute_type: dummy, scale: 1}}")
	stop, stopped := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // clients that change things meanwhile
		defer close(ended)
		for i := 0; stop.Err() == nil; i++ {
			_, _ = a.Scale(stop, "busy", map[string]string{"d": itoa(i % 5)})
		}
	}()
	before := map[string]map[string]int{"grown": a.pids("grown"), "shrunk": a.pids("shrunk")}
	want := map[string]expectation{"grown": a.look("grown"), "shrunk": a.look("shrunk")}
	file := filepath.Join(t.TempDir(), "mariposa.backup")
	out, said := a.command("backup", file, "--json")
	stopped()
	<-ended
	// Those that were created after the backup would be in quarantine later.
	a.await("busy has no instances", func() bool {
		_, _ = a.Scale(t.Context(), "busy", map[string]string{"d": "0"}) // refused while another scale is open
		return len(a.instances("busy")) == 0
	})
	var made struct {
		Objects, Revision, Bytes int64
	}
	must(t, json.Unmarshal([]byte(out), &made))
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || info.Size() != made.Bytes || made.Objects < 10 {
		t.Errorf("the file: %v %v, and it says %+v", info.Mode(), err, made)
	}
	if !strings.Contains(said, "The key file is not part of the backup") || bytes.Contains(read(t, file), []byte("before grown")) {
		t.Errorf("said %q", said)
	}
	checked, _ := a.command("restore", file, "--check")
	if !strings.Contains(checked, fmt.Sprintf("revision:      %d\n", made.Revision)) || !strings.Contains(checked, "contains:      3 projects, 3 services, ") {
		t.Errorf("--check shows\n%s", checked)
	}
	for _, internal := range []string{"answer", "metadata", "part", "key", "name", "cluster"} {
		if strings.Contains(checked, internal) {
			t.Errorf("--check shows %q, which users do not know:\n%s", internal, checked)
		}
	}

	a.must(a.Scale(t.Context(), "grown", map[string]string{"web": "4"}))
	a.must(a.Scale(t.Context(), "shrunk", map[string]string{"web": "1"}))
	a.create("lost", fmt.Sprintf(wordy, 1))
	a.setWord("lost", "lost")
	a.converged("grown", "web", 4)
	a.converged("shrunk", "web", 1)
	a.converged("lost", "web", 1)
	a.setWord("grown", "after")
	extra, kept := a.pids("grown"), a.pids("shrunk")
	for name := range before["grown"] {
		delete(extra, name)
	}
	lost := a.pids("lost")

	a.restore(file)
	// The restored store says that three instances of shrunk run, until the node reports.
	a.await("what only the lost state knew is in quarantine", func() bool { return a.inQuarantine() == 3 })
	a.await("three processes of shrunk run", func() bool {
		running := 0
		for _, pid := range a.pids("shrunk") {
			if alive(pid) {
				running++
			}
		}
		return running == 3
	})
	a.converged("grown", "web", 2)
	a.converged("shrunk", "web", 3)
	for project, e := range want {
		if got := a.look(project); !reflect.DeepEqual(got, e) {
			t.Errorf("%s is %+v\nand was %+v", project, got, e)
		}
	}
	a.runOn("grown", before["grown"])
	a.runOn("shrunk", kept)
	live(t, extra)
	live(t, lost)
	if _, err := a.Project(t.Context(), "lost"); mariposa.CodeOf(err) != mariposa.ResourceNotFound {
		t.Errorf("the lost project: %v", err)
	}
	// Those that were removed in the lost time are created again, and have not failed.
	events, err := a.Events(t.Context(), client.EventFilter{Since: 1_000_000_000, Project: "shrunk"})
	must(t, err)
	for _, e := range events.Events {
		if e.Kind == "instance.failed" || e.Kind == "project.backing-off" {
			t.Errorf("%s: %s", e.Kind, e.Reason)
		}
	}

	show, hint := a.command("node", "show", "node-a")
	for _, part := range []string{"grown", "lost", "web", "SLOT", "VERSION", "node adopt node-a"} {
		if !strings.Contains(show+hint, part) {
			t.Errorf("node show lacks %q:\n%s", part, show)
		}
	}
	a.adoptLost(extra, lost)
}

// adoptLost takes back what can be taken back, and removes the rest.
func (a *splitSystem) adoptLost(extra, lost map[string]int) {
	a.t.Helper()
	_, errs, code := a.try("node", "adopt", "node-a", "--all")
	if code != 1 || !strings.Contains(errs, "its project does not exist") || !strings.Contains(errs, "scale it up first") {
		a.t.Errorf("adopting what is not wanted: exit %d\n%s", code, errs)
	}
	a.must(a.Scale(a.t.Context(), "grown", map[string]string{"web": "4"}))
	a.converged("grown", "web", 4)
	_, errs, code = a.try("node", "adopt", "node-a", "--all")
	if code != 1 || !strings.Contains(errs, "is taken by") || !strings.Contains(errs, "--replace") {
		a.t.Errorf("adopting into slots that are taken: exit %d\n%s", code, errs)
	}
	live(a.t, extra)
	out, _ := a.command("node", "adopt", "node-a", "--all", "--replace")
	for name := range extra {
		if !strings.Contains(out, name+" adopted\n") {
			a.t.Errorf("%s is not adopted:\n%s", name, out)
		}
	}
	if !strings.Contains(out, "2 instances adopted, 1 left in quarantine") {
		a.t.Errorf("it says\n%s", out)
	}
	a.converged("grown", "web", 4)
	a.await("those that had their slots are gone", func() bool { return len(a.instances("grown")) == 4 })
	a.runOn("grown", extra)
	a.await("only the instance of the lost project is left", func() bool { return a.inQuarantine() == 1 })
	live(a.t, lost)
	a.command("node", "purge", "node-a")
	a.await("it is purged", func() bool { return a.inQuarantine() == 0 })
	for name, pid := range lost {
		a.await(name+" ends", func() bool { return !alive(pid) })
	}
	a.runOn("grown", extra)
}

// The restored store does not know the node: its agent keeps its instances and tries
// again, until it is accepted or gets a join token.
func TestANodeThatARestoredStoreDoesNotKnowJoinsAgain(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	file := filepath.Join(t.TempDir(), "empty.backup")
	a.command("backup", file)
	first := a.agent()
	a.await("the node joins", func() bool { return a.node().Status == mariposa.NodeRunning })
	end(first)
	agent := a.launch(nil, "agent", "--server", a.url, "--data", a.dir, "--name", "node-a") // it needs no token now
	a.create("hello", fmt.Sprintf(wordy, 2))
	a.setWord("hello", "hi")
	a.converged("hello", "web", 2)
	before, id, said := a.pids("hello"), a.node().ID, a.out // the server gets another one
	a.restore(file)
	a.await("the agent says what to do", func() bool { return strings.Contains(said.String(), "mariposa node accept node-a") })
	a.await("the node is pending", func() bool { return a.node().Status == mariposa.NodePending })
	if err := agent.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("the agent has ended: %v", err)
	}
	_ = agent.Wait()
	live(t, before)
	a.agent() // with a new token
	a.await("the node joins again", func() bool { return a.node().Status == mariposa.NodeRunning && a.inQuarantine() == 2 })
	if a.node().ID != id {
		t.Errorf("its id is %s, and was %s", a.node().ID, id)
	}
	live(t, before)
	a.command("node", "purge", "node-a")
	a.await("they are purged", func() bool { return len(a.processes()) == 0 })
}

func TestARestoreIsRefused(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	file := filepath.Join(t.TempDir(), "a.backup")
	a.command("backup", file)
	refuse := func(because string, args ...string) {
		t.Helper()
		_, said, code := a.try(args...)
		refused(t, because, args, said, code)
	}
	refuse("in use by process", "restore", file, "--store", a.database(), "--force")
	refuse("in use by process", "backup", file+"2", "--store", a.database())
	if _, err := os.Stat(file + "2"); err == nil {
		t.Error("a failed backup left its file")
	}
	end(a.server)
	refuse("the store is not empty", "restore", file, "--store", a.database())
	key := filepath.Join(t.TempDir(), "secret.key")
	refuse("does not exist", "restore", file, "--store", a.database(), "--force", "--key-file", key)
	other := newSplitSystem(t)
	refuse("the key file does not belong to this backup", "restore", file, "--store", a.database(), "--force", "--key-file", filepath.Join(other.data, "secret.key"))
	whole := read(t, file)
	write(t, file, whole[:len(whole)-1])
	refuse("the backup is damaged: it is incomplete", "restore", file, "--store", a.database(), "--force")
	whole[len(whole)/2] ^= 4
	write(t, file, whole)
	refuse("damaged", "restore", file, "--store", a.database(), "--force")
	a.serve() // everything is as it was
	a.await("the server works", func() bool {
		_, err := a.Ready(t.Context())
		return err == nil
	})
	// Only installation admins get a copy.
	a.command("user", "create", "ulla")
	token, _ := a.command("token", "create", "t", "--user", "ulla")
	_, said, code := finish(t, program(t.Context(), a.dir, []string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + strings.TrimSpace(token)}, "backup", file+"3"), "")
	refused(t, "admin", []string{"backup"}, said, code)
	audit, err := a.Audit(t.Context(), client.AuditFilter{Action: "backup.read"})
	if err != nil || len(audit.Records) == 0 {
		t.Errorf("the audit log: %v %v", audit, err)
	}
}

// stateOf returns the revision of a store that no server uses.
func stateOf(t *testing.T, store string) int64 {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x")
	out, said, code := finish(t, program(t.Context(), t.TempDir(), []string{"MARIPOSA_STORE=" + store}, "backup", file, "--json"), "")
	var made struct{ Revision int64 }
	if code != 0 || json.Unmarshal([]byte(out), &made) != nil {
		t.Fatalf("backup: exit %d\n%s%s", code, out, said)
	}
	return made.Revision
}

// A restore that is killed leaves the old state or the new one.
func TestAKilledRestoreLeavesTheOldStateOrTheNew(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.create("one", "services: {d: {compute_type: dummy, scale: 0}}")
	file := filepath.Join(t.TempDir(), "a.backup")
	a.command("backup", file)
	a.create("two", "services: {d: {compute_type: dummy, scale: 0}}")
	end(a.server)
	key := filepath.Join(a.data, "secret.key")
	for name, store := range map[string]string{"SQLite": a.database(), "PostgreSQL": pgtest.Shared(t).Database(t, "")} {
		t.Run(name, func(t *testing.T) {
			killRestores(t, a.dir, file, key, store)
		})
	}
	a.serve()
	a.await("the server works", func() bool {
		_, err := a.Project(t.Context(), "one")
		return err == nil
	})
}

func killRestores(t *testing.T, home, file, key, store string) {
	out := &lockedBuffer{}
	start := func() *exec.Cmd {
		return launch(t, program(t.Context(), home, []string{"MARIPOSA_STORE=" + store}, "restore", file, "--force", "--key-file", key), out)
	}
	began := time.Now()
	must(t, start().Wait())
	takes := time.Since(began)
	if said := strings.Contains(out.String(), "\nStart the server."); said == strings.HasPrefix(store, "postgres") {
		t.Errorf("it says %s", out.String())
	}
	last := stateOf(t, store)
	for i := range 12 {
		cmd := start()
		time.Sleep(takes * time.Duration(i+1) / 12) // to be somewhere in the middle; any time is right
		end(cmd)
		now, done := stateOf(t, store), cmd.ProcessState.Success()
		if now != last && now != last+1_000_000_000 || done && now == last {
			t.Errorf("killed after %d/12: revision %d after %d; it had ended: %v\n%s", i+1, now, last, done, out)
		}
		last = now
	}
}

// A backup replaces no earlier one unless it is told to, and a failed one leaves it as it
// was.
func TestABackupReplacesAFileOnlyOnRequest(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	file := filepath.Join(t.TempDir(), "a.backup")
	write(t, file, nil) // as mktemp makes it
	a.command("backup", file)
	first := read(t, file)
	a.create("one", "services: {d: {compute_type: dummy, scale: 0}}")
	_, said, code := a.try("backup", file)
	refused(t, file+" exists already: choose another name, or replace it with --force", []string{"backup", file}, said, code)
	end(a.server)
	_, said, code = a.try("backup", file, "--force")
	refused(t, "no server is running", []string{"backup", file, "--force"}, said, code)
	if !bytes.Equal(read(t, file), first) {
		t.Error("a refused backup has changed the file")
	}
	a.serve()
	a.command("backup", file, "--force")
	if bytes.Equal(read(t, file), first) {
		t.Error("--force has not replaced the file")
	}
	if left, err := filepath.Glob(file + "?*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A backup that is killed leaves no file.
func TestAKilledBackupLeavesNoFile(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.create("one", "services: {d: {compute_type: dummy, scale: 0}}")
	dir := t.TempDir()
	began := time.Now()
	a.command("backup", filepath.Join(dir, "whole"))
	takes := time.Since(began)
	for i := range 10 {
		path := filepath.Join(dir, itoa(i))
		cmd := launch(t, program(t.Context(), a.dir, []string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + a.admin}, "backup", path), &lockedBuffer{})
		time.Sleep(takes * time.Duration(i+1) / 10) // to be somewhere in the middle; any time is right
		end(cmd)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		a.command("restore", path, "--check") // it is complete
	}
	a.command("backup", filepath.Join(dir, "again"))
}

// A system outgrows SQLite: it moves to PostgreSQL, and back.
func TestASystemMovesToPostgreSQLAndBack(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.create("shop", "services: {d: {compute_type: dummy, scale: 0}}\nmetadata: {word: {secret: true}}")
	a.setWord("shop", "sesame")
	file, key := filepath.Join(t.TempDir(), "a.backup"), filepath.Join(a.data, "secret.key")
	a.command("backup", file)
	end(a.server)
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: pgtest.Shared(t).Database(t, "")}
	in := func(env []string, args ...string) {
		t.Helper()
		if out, said, code := finish(t, program(t.Context(), c.dir, env, args...), ""); code != 0 {
			t.Fatalf("mariposa %v: exit %d\n%s%s", args, code, out, said)
		}
	}
	in([]string{"MARIPOSA_STORE=" + c.store}, "restore", file, "--key-file", key)
	c.admin, c.join = a.admin, c.token("--join")
	c.addReplicas(2, "--key-file", key)
	for i := range c.replicas {
		c.ask(i)
		c.await("the secret is there", func() bool {
			word, err := c.MetadataKey(t.Context(), "shop", "word", true)
			return err == nil && word.Value == "sesame"
		})
	}
	c.setWord("shop", "open")
	again := filepath.Join(t.TempDir(), "b.backup")
	in([]string{"MARIPOSA_URL=" + c.replicas[0].url, "MARIPOSA_TOKEN=" + c.admin}, "backup", again)

	// Running replicas notice that their state is replaced.
	c.setWord("shop", "lost")
	in([]string{"MARIPOSA_STORE=" + c.store}, "restore", again, "--force", "--key-file", key)
	for i := range c.replicas {
		c.ask(i)
		c.await("the restored state is shown", func() bool {
			word, err := c.MetadataKey(t.Context(), "shop", "word", true)
			return err == nil && word.Value == "open"
		})
	}
	in(nil, "restore", again, "--store", a.database(), "--force")
	a.serve()
	a.await("the state of PostgreSQL is in SQLite", func() bool {
		word, err := a.MetadataKey(t.Context(), "shop", "word", true)
		return err == nil && word.Value == "open"
	})
}

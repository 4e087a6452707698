package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/store/postgres/pgtest"
)

// These tests cover the key that encrypts secrets, and its rotation.

const sealed = "services: {d: {compute_type: dummy, environment: {S: '{{ .meta.secret }}'}}}\nmetadata: {secret: {secret: true, generate: 30}}"

// seals creates n projects with a different secret each.
func (h *devServer) seals(n int) map[string]string {
	h.t.Helper()
	secrets := map[string]string{}
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		h.create(name, sealed)
		secrets[name] = h.reveal(name)
	}
	return secrets
}

// reveal reads a project's secret.
func (h *devServer) reveal(project string) string {
	h.t.Helper()
	k, err := h.MetadataKey(h.t.Context(), project, "secret", true)
	if err != nil {
		h.t.Fatalf("%s: %v", project, err)
	}
	return k.Value
}

func (h *devServer) stillReads(secrets map[string]string) {
	h.t.Helper()
	for project, secret := range secrets {
		if got := h.reveal(project); got != secret || secret == "" {
			h.t.Errorf("the secret of %s was %q and is %q", project, secret, got)
		}
	}
}

// terminate stops the server gracefully.
func (h *devServer) terminate() {
	h.t.Helper()
	must(h.t, h.cmd.Process.Signal(syscall.SIGTERM))
	<-h.done
}

func TestTheKeyIsChangedWhileEverythingRuns(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	secrets := h.seals(5)
	path := filepath.Join(h.dir, "secret.key")
	before := read(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", info, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		for n := 0; ctx.Err() == nil; n++ { // users keep working
			if _, err := h.CreateProject(ctx, fmt.Sprintf("q%d", n), []byte(sealed), ""); err != nil && ctx.Err() == nil {
				t.Errorf("while the key is changed: %v", err)
			}
		}
	})
	for range 3 {
		var done contract.KeyRotation
		if err := json.Unmarshal([]byte(h.ok("key", "rotate", "--json")), &done); err != nil || done.Key == "" || done.Rewrapped < 6 {
			t.Errorf("%+v, %v", done, err)
		}
		h.stillReads(secrets)
	}
	cancel()
	busy.Wait()
	all, err := h.Projects(t.Context(), "")
	if err != nil || len(all.Projects) < 6 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, p := range all.Projects {
		secrets[p.ID] = h.reveal(p.ID)
	}
	after := read(t, path)
	if keys := keysIn(t, after); len(keys) != 1 || bytes.Contains(before, []byte(keys[0])) {
		t.Errorf("the key file has %d keys, or the old one", len(keys))
	}
	h.kill()
	h.start()
	h.stillReads(secrets)
	h.set("p0", "secret", "another one")
	secrets["p0"], secrets[h.id("p0")] = "another one", "another one"
	h.terminate()

	for name, wrong := range map[string][]byte{"the key before": before, "no key": nil, "half a key": after[:len(after)/2]} {
		write(t, path, wrong)
		if wrong == nil {
			must(t, os.Remove(path))
		}
		said, code := started(t, "dev", "--listen", "127.0.0.1:0", "--data", h.dir)
		if code != 1 || !strings.Contains(said, path) || strings.Contains(said, "running at") {
			t.Errorf("with %s: exit %d, %s", name, code, said)
		}
	}
	write(t, path, after)
	must(t, os.Chmod(path, 0o644))
	if said, code := started(t, "dev", "--listen", "127.0.0.1:0", "--data", h.dir); code != 1 || !strings.Contains(said, "chmod 600 "+path) {
		t.Errorf("with a key that everybody can read: exit %d, %s", code, said)
	}
	must(t, os.Chmod(path, 0o600))
	h.start()
	h.stillReads(secrets)
	records, err := h.Audit(t.Context(), client.AuditFilter{Action: "key.rotate"})
	if err != nil || len(records.Records) != 3 || records.Records[0].ActorName != "admin" {
		t.Errorf("the audit: %+v, %v", records, err)
	}
}

// id returns a project's id.
func (h *devServer) id(project string) string {
	h.t.Helper()
	p, err := h.Project(h.t.Context(), project)
	must(h.t, err)
	return p.ID
}

func TestAChangeOfTheKeySurvivesKill9(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	secrets := h.seals(40)
	path := filepath.Join(h.dir, "secret.key")
	rng := rand.New(rand.NewPCG(3, 4))
	for range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = h.RotateKey(ctx) // the server is killed during the rotation
		}()
		time.Sleep(time.Duration(rng.IntN(12000)) * time.Microsecond) // kill at a random time
		h.kill()
		cancel()
		<-done
		h.start()
		h.stillReads(secrets)
	}
	h.must(h.RotateKey(t.Context()))
	if keys := keysIn(t, read(t, path)); len(keys) != 1 {
		t.Errorf("%d keys are left", len(keys))
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, ".secret.key*")); len(left) > 0 {
		t.Errorf("keys are left in %v", left)
	}
	h.kill()
	h.start()
	h.stillReads(secrets)
}

func TestReplicasWithCopiesOfTheKeyFile(t *testing.T) {
	t.Parallel()
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: pgtest.Start(t)}
	c.admin, c.join = c.token(), c.token("--join")
	paths := []string{filepath.Join(c.dir, "a.key"), filepath.Join(c.dir, "b.key")}
	c.addReplica("--key-file", paths[0])
	if said, code := startedWith(t, []string{"MARIPOSA_STORE=" + c.store}, "server", "--listen", "127.0.0.1:0", "--key-file", paths[1]); code != 1 || !strings.Contains(said, paths[1]) {
		t.Fatalf("a replica with a key of its own: exit %d, %s", code, said)
	}
	write(t, paths[1], read(t, paths[0]))
	c.addReplica("--key-file", paths[1])
	c.spawnProcess(&lockedBuffer{}, []string{"MARIPOSA_JOIN=" + c.join}, "agent", "--server", c.urls(), "--data", filepath.Join(c.dir, "dummies"), "--dummy-nodes", "2")
	c.ask(0)
	c.await("both plan", func() bool { return c.metric(0, "mariposa_shards") > 8 && c.metric(1, "mariposa_shards") > 8 })
	secrets := c.seals(4)
	c.ask(1)
	c.await("the other one has heard of them", func() bool { p, err := c.Projects(t.Context(), ""); return err == nil && len(p.Projects) == 4 })
	c.stillReads(secrets)

	c.ask(0)
	c.must(c.RotateKey(t.Context()))
	if bytes.Equal(read(t, paths[0]), read(t, paths[1])) {
		t.Error("the key file was not changed")
	}
	for i := range 8 { // the other replica plans some of these and cannot read them
		name := fmt.Sprintf("new%d", i)
		c.create(name, sealed)
		secrets[name] = c.reveal(name)
	}
	c.ask(1)
	var err error
	c.await("the replica without the key says so", func() bool {
		_, err = c.MetadataKey(t.Context(), "new0", "secret", true)
		return mariposa.CodeOf(err) == mariposa.Unavailable
	})
	if !strings.Contains(err.Error(), paths[1]) {
		t.Errorf("it does not say which file is missing a key: %v", err)
	}
	write(t, paths[1], read(t, paths[0]))
	c.stillReads(secrets)
	for project := range secrets {
		c.converged(project, "d", 1)
	}
	// And vice versa.
	c.must(c.RotateKey(t.Context()))
	write(t, paths[0], read(t, paths[1]))
	c.ask(0)
	c.stillReads(secrets)
	if n := slices.Max([]int{c.metric(0, "mariposa_reread_mended_total"), c.metric(1, "mariposa_reread_mended_total")}); n != 0 {
		t.Errorf("%d objects had to be read again", n)
	}
}

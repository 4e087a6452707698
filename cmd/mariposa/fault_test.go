package main_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/client"
)

// serverOnSmallDisk returns a server on its own small disk.
func serverOnSmallDisk(t *testing.T) *devServer {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatalf("cannot mount a small disk (this test needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	h := &devServer{t: t, dir: dir}
	h.start()
	t.Cleanup(h.tearDown)
	return h
}

func refusedForNow(t *testing.T, err error) {
	t.Helper()
	if mariposa.CodeOf(err) != mariposa.Unavailable {
		t.Fatalf("expected Unavailable, got %v", err)
	}
}

func TestAFullDiskRefusesChangesAndTouchesNothing(t *testing.T) {
	t.Parallel()
	h := serverOnSmallDisk(t)
	h.create("hello", web(2, "hi"))
	h.converged("hello", "web", 2)
	before := h.pids("hello")
	ballast := filepath.Join(h.dir, "ballast")
	fill(t, ballast)
	var err error
	h.await("a change is refused", func() bool { // the log may have room for a few more
		fill(t, ballast)
		_, err = h.UpdateManifest(t.Context(), "hello", []byte(web(3, strings.Repeat("x", 4000))), client.Update{Force: true})
		return err != nil
	})
	refusedForNow(t, err)
	if _, err := h.Ready(t.Context()); err == nil {
		t.Error("it says it is ready on a full disk")
	}
	if after := h.pids("hello"); !maps.Equal(before, after) {
		t.Errorf("instances were touched: %v, then %v", before, after)
	}
	must(t, os.Remove(ballast))
	h.await("changes are taken again", func() bool {
		_, err := h.UpdateManifest(t.Context(), "hello", []byte(web(4, "again")), client.Update{Force: true})
		return err == nil
	})
	h.converged("hello", "web", 4)
	h.realityMatches("hello")
}

func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 512} {
		for block := make([]byte, size); ; {
			if _, err := f.Write(block); err != nil {
				break
			}
		}
	}
}

func TestAReadOnlyDiskRefusesChangesAndTouchesNothing(t *testing.T) {
	t.Parallel()
	h := serverOnSmallDisk(t)
	h.create("play", "services: {d: {compute_type: dummy, scale: 3}}")
	h.converged("play", "d", 3)
	// The kernel refuses a remount while files are open for writing. Instead, a limit on
	// file sizes restricts what the server can write.
	var old unix.Rlimit
	none := unix.Rlimit{Cur: 0, Max: ^uint64(0)}
	must(t, unix.Prlimit(h.cmd.Process.Pid, unix.RLIMIT_FSIZE, &none, &old))
	_, err := h.UpdateManifest(t.Context(), "play", []byte("services: {d: {compute_type: dummy, scale: 5}}"), client.Update{Force: true})
	refusedForNow(t, err)
	if s := h.state("play"); len(s.Services) != 1 || s.Services[0].Running != 3 {
		t.Errorf("instances were touched: %+v", s)
	}
	must(t, unix.Prlimit(h.cmd.Process.Pid, unix.RLIMIT_FSIZE, &old, nil))
	h.await("changes are taken again", func() bool {
		_, err := h.UpdateManifest(t.Context(), "play", []byte("services: {d: {compute_type: dummy, scale: 4}}"), client.Update{Force: true})
		return err == nil
	})
	h.converged("play", "d", 4)
}

func TestBadManifestsAreRefusedAndChangeNothing(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("play", "services: {d: {compute_type: dummy, scale: 3}}")
	h.converged("play", "d", 3)
	before, err := h.Revision(t.Context())
	must(t, err)
	bad := map[string]string{
		"ten megabytes":     "services:\n" + strings.Repeat("# padding padding padding\n", 400_000),
		"an alias bomb":     "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nservices: {d: {compute_type: dummy}}",
		"deep nesting":      strings.Repeat("[", 100_000),
		"a wrong type":      "services: {d: {compute_type: dummy, scale: many}}",
		"an unknown key":    "services: {d: {compute_type: dummy, scael: 3}}",
		"a duplicate key":   "services:\n  d: {compute_type: dummy}\n  d: {compute_type: dummy}\n",
		"not UTF-8":         "services: {\xff\xfe: {compute_type: dummy}}",
		"not a DNS label":   "services: {Not_a_label: {compute_type: dummy}}",
		"nothing":           "",
		"not supported yet": "services: {d: {compute_type: dummy, service_type: event}}",
		"a cycle":           "services: {a: {compute_type: dummy, depends_on: [b]}, b: {compute_type: dummy, depends_on: [a]}}",
	}
	for name, body := range bad {
		_, err := h.CreateProject(t.Context(), "bad", []byte(body), "")
		var e *mariposa.Error
		if !errors.As(err, &e) || (e.Code != mariposa.InvalidArgument && e.Code != mariposa.TooLarge) || e.Message == "" {
			t.Errorf("%s: expected a clear refusal, got %v", name, err)
		}
	}
	if after, err := h.Revision(t.Context()); err != nil || after != before {
		t.Errorf("something changed: revision %d, then %d (%v)", before, after, err)
	}
	if kb := rssKB(t, h.cmd.Process.Pid); kb > 400<<10 {
		t.Errorf("the server holds %d kB after being fed bad manifests", kb)
	}
}

func rssKB(t *testing.T, pid int) int {
	t.Helper()
	for line := range bytes.Lines(read(t, filepath.Join("/proc", itoa(pid), "status"))) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			return atoi(string(bytes.Fields(rest)[0]))
		}
	}
	return 0
}

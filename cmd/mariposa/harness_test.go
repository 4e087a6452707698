package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/listener/porttest"
)

// These tests run the real binary from outside: HTTP, command line, signals and real
// processes. They do not use the packages behind it.

var binaries string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mariposa-e2e-")
	if err != nil {
		panic(err)
	}
	binaries = dir
	for _, b := range [][2]string{{"mariposa", "."}, {"hello", "../../examples/hello"}} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, b[0]), b[1])
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building %s: %v\n%s", b[0], err, out)
			os.Exit(1)
		}
	}
	code := m.Run()
	stopChromium()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// devServer is a `mariposa dev` under test. It can be started and killed repeatedly on
// the same data directory.
type devServer struct {
	t    *testing.T
	dir  string
	args []string
	env  []string // of client commands, in addition to the server's address
	// admin is the token of the first user, once it is known.
	admin string
	roots []byte // certificates to trust in addition to the system's
	cmd   *exec.Cmd
	out   *lockedBuffer
	done  chan struct{}
	code  int
	*client.Client
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// must fails the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must fails the test if there is an error; the answer is ignored.
func (h *devServer) must(_ any, err error) {
	h.t.Helper()
	must(h.t, err)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	must(t, os.WriteFile(path, content, 0o600))
}

// fileOf writes a text to a temporary file and returns its path.
func fileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.yaml")
	write(t, path, []byte(text))
	return path
}

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// program returns a command of the binary with a minimal environment.
func program(ctx context.Context, home string, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "mariposa"), args...)
	// Only tests of containers use an engine, one of their own, or bridges, in a network of
	// their own.
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GOGC=300", "MARIPOSA_DOCKER=off", "MARIPOSA_LXC=off", "MARIPOSA_KVM=off"}, env...)
	return cmd
}

// launch starts a program whose output goes to out.
func launch(t *testing.T, cmd *exec.Cmd, out io.Writer) *exec.Cmd {
	t.Helper()
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	return cmd
}

// finish runs a program to its end.
func finish(t *testing.T, cmd *exec.Cmd, stdin string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// end kills a process with SIGKILL. It can be called twice.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func newDevServer(t *testing.T, args ...string) *devServer {
	t.Helper()
	h := &devServer{t: t, dir: t.TempDir(), args: args}
	h.start()
	t.Cleanup(h.tearDown)
	return h
}

// start starts the server and waits until it answers.
func (h *devServer) start() {
	h.t.Helper()
	h.spawn()
	h.await("the server answers", func() bool {
		b, err := os.ReadFile(filepath.Join(h.dir, "url"))
		if err != nil {
			return false
		}
		token, err := os.ReadFile(filepath.Join(h.dir, "admin.token"))
		if err != nil {
			return false
		}
		h.admin = strings.TrimSpace(string(token))
		h.Client, err = client.New(client.Options{URL: strings.TrimSpace(string(b)), Token: h.admin, Roots: h.roots})
		must(h.t, err)
		_, err = h.Ready(h.t.Context())
		return err == nil
	})
}

func (h *devServer) spawn() {
	h.t.Helper()
	_ = os.Remove(filepath.Join(h.dir, "url"))
	h.out = &lockedBuffer{}
	// After a kill, its port stays reserved, so that no other server answers there.
	args := append([]string{"dev", "--listen", porttest.Address(h.t), "--data", h.dir}, h.args...)
	h.cmd = launch(h.t, program(context.Background(), h.dir, []string{"SECRET_OF_THE_AGENT=hunter2"}, args...), h.out)
	h.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		h.code = cmd.ProcessState.ExitCode()
		close(done)
	}(h.cmd, h.done)
}

// kill kills the server with SIGKILL.
func (h *devServer) kill() {
	_ = h.cmd.Process.Kill()
	<-h.done
}

// tearDown removes all instances and stops the server.
func (h *devServer) tearDown() {
	if h.t.Failed() {
		h.t.Logf("the server said:\n%s", h.out)
	}
	select {
	case <-h.done:
	default:
		h.kill()
	}
	if _, err := os.Stat(filepath.Join(h.dir, "mariposa.db")); errors.Is(err, fs.ErrNotExist) {
		return // the test has already removed it
	}
	// Removing twenty thousand instances takes a while on a busy machine.
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	if out, err := program(ctx, h.dir, nil, "dev", "--listen", "127.0.0.1:0", "--data", h.dir, "--down", "--yes").CombinedOutput(); err != nil {
		h.t.Errorf("tearing down: %v\n%s", err, out)
	}
	if left := h.processes(); len(left) > 0 {
		h.t.Errorf("processes are left behind: %v", left)
	}
	for _, at := range mountsIn(h.t, h.dir) { // volumes with a size are kept, and stay mounted
		if err := unix.Unmount(at, 0); err != nil {
			h.t.Errorf("tearing down: %v", err)
		}
	}
}

// limit is the deadline for anything that must happen. It is long because the machine may
// be busy, and it is reached only if something is wrong.
const limit = 2 * time.Minute

// polling returns a function that waits until a condition is worth another look, because there is
// no signal to wait for. It waits longer each time: many tests wait at once, and each look takes
// processor time from the others.
func polling() func() {
	next := 5 * time.Millisecond
	return func() {
		time.Sleep(next)
		next = min(next*4/3, 80*time.Millisecond)
	}
}

// await waits until a condition is true.
func (h *devServer) await(what string, ok func() bool) {
	h.t.Helper()
	pause := polling()
	for deadline := time.Now().Add(limit); ; {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("still not so after %s: %s\n%s", limit, what, h.out)
		}
		pause()
	}
}

func (h *devServer) state(project string) contract.ProjectState {
	h.t.Helper()
	s, err := h.State(h.t.Context(), project, "")
	if err != nil || len(s.Projects) != 1 {
		return contract.ProjectState{}
	}
	return s.Projects[0]
}

// converged waits until a project is at rest with n running instances of a service.
func (h *devServer) converged(project, service string, n int) {
	h.t.Helper()
	defer func() {
		if h.t.Failed() {
			h.t.Logf("%s is %s", project, h.describe(project))
		}
	}()
	h.await(fmt.Sprintf("%s is converged with %d of %s", project, n, service), func() bool {
		s := h.state(project)
		if s.Status != mariposa.StatusConverged {
			return false
		}
		return slices.ContainsFunc(s.Services, func(s contract.ServiceState) bool { return s.Name == service && s.Running == n && s.Goal == n })
	})
}

// describe returns the state of a project, and those of its instances, for the log of a
// failed test.
func (h *devServer) describe(project string) string {
	h.t.Helper()
	ctx := context.WithoutCancel(h.t.Context())
	state, stateErr := h.State(ctx, project, "")
	list, listErr := h.AllInstances(ctx, client.InstanceFilter{Project: project})
	queue, queueErr := h.Queue(ctx, client.TaskFilter{Project: project})
	b, err := json.MarshalIndent(map[string]any{"state": state, "instances": list, "queue": queue}, "", " ")
	return fmt.Sprintf("%s %v", b, errors.Join(err, stateErr, listErr, queueErr))
}

// instances lists a project's instances by name.
func (h *devServer) instances(project string) map[string]contract.Instance {
	h.t.Helper()
	list, err := h.AllInstances(h.t.Context(), client.InstanceFilter{Project: project})
	must(h.t, err)
	out := map[string]contract.Instance{}
	for _, i := range list.Instances {
		full, err := h.Instance(h.t.Context(), i.ID)
		if err != nil {
			continue // removed in the meantime
		}
		out[i.Name] = *full
	}
	return out
}

// pids returns the process ids of a project's running instances, by name.
func (h *devServer) pids(project string) map[string]int {
	h.t.Helper()
	out := map[string]int{}
	for name, i := range h.instances(project) {
		if pid := atoi(i.Details["pid"]); pid != 0 && i.State == mariposa.StateRunning {
			out[name] = pid
		}
	}
	return out
}

// processes finds the processes that really run for this server and maps their ids to
// instance ids.
func (h *devServer) processes() map[int]string {
	out := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range dirs {
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte("MARIPOSA_ROOT="+h.dir)) {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		for _, v := range strings.Split(string(b), "\x00") {
			if id, ok := strings.CutPrefix(v, "MARIPOSA_INSTANCE="); ok {
				out[pid] = id
			}
		}
	}
	return out
}

// realityMatches checks that exactly the instances in the store run, and each of them
// once.
func (h *devServer) realityMatches(project string) {
	h.t.Helper()
	h.await("what runs is what is on the books", func() bool {
		booked, real := h.pids(project), h.processes()
		if len(booked) != len(real) {
			return false
		}
		for _, pid := range booked {
			if real[pid] == "" {
				return false
			}
		}
		return true
	})
}

// create creates a project and waits for its first task.
func (h *devServer) create(name, manifest string) {
	h.t.Helper()
	h.must(h.CreateProject(h.t.Context(), name, []byte(manifest), ""))
}

// clear deletes all projects and waits until none of their instances runs.
func (h *devServer) clear() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit) // the test's context may be done
	defer cancel()
	all, err := h.Projects(ctx, "")
	if err != nil {
		h.t.Errorf("tearing down: %v", err)
		return
	}
	for _, p := range all.Projects {
		if _, err := h.DeleteProject(ctx, p.ID, true); err != nil {
			h.t.Errorf("tearing down: %v", err)
		}
	}
	for pause := polling(); len(h.processes()) > 0 && ctx.Err() == nil; {
		pause()
	}
	if left := h.processes(); len(left) > 0 {
		h.t.Errorf("processes are left behind: %v", left)
	}
}

// ok runs a client command that must succeed.
func (h *devServer) ok(args ...string) string {
	h.t.Helper()
	return h.fed("", args...)
}

// fed runs a client command that reads its standard input and must succeed.
func (h *devServer) fed(stdin string, args ...string) string {
	h.t.Helper()
	out, errs, code := h.mariposa(stdin, args...)
	if code != 0 {
		h.t.Fatalf("mariposa %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// cannot runs a client command that must fail with a message that contains because.
func (h *devServer) cannot(because string, args ...string) {
	h.t.Helper()
	_, errs, code := h.mariposa("", args...)
	refused(h.t, because, args, errs, code)
}

func refused(t *testing.T, because string, args []string, said string, code int) {
	t.Helper()
	if code != 1 || !strings.Contains(said, because) {
		t.Errorf("mariposa %s: exit %d, without %q\n%s", strings.Join(args, " "), code, because, said)
	}
}

// mariposa runs a client command against the server.
func (h *devServer) mariposa(stdin string, args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 3*limit) // a benchmark takes many steps
	defer cancel()
	return finish(h.t, program(ctx, h.dir, append([]string{"MARIPOSA_DATA=" + h.dir}, h.env...), args...), stdin)
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// live checks that the processes of instances are alive.
func live(t *testing.T, pids map[string]int) {
	t.Helper()
	for name, pid := range pids {
		if !alive(pid) {
			t.Errorf("%s has died", name)
		}
	}
}

// runOn checks that the instances of a project still have the same processes.
func (h *devServer) runOn(project string, before map[string]int) {
	h.t.Helper()
	now := h.pids(project)
	for name, pid := range before {
		if now[name] != pid {
			h.t.Errorf("%s had process %d and has %d", name, pid, now[name])
		}
	}
}

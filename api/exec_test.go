package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/api"
	"mariposa/contract"
	"mariposa/driver"
	"mariposa/store"
)

// Exec runs a command on this machine instead of inside an instance. The command flood
// writes without end and counts.
func (d *loggingDriver) Exec(ctx context.Context, _ driver.Instance, o driver.ExecOptions) (driver.Session, error) {
	if o.Command[0] == "flood" {
		return &flood{ctx: ctx, written: &d.flooded}, nil
	}
	s := &localSession{cmd: exec.CommandContext(ctx, o.Command[0], o.Command[1:]...)}
	var errs [3]error
	s.in, errs[0] = s.cmd.StdinPipe()
	s.out, errs[1] = s.cmd.StdoutPipe()
	s.errs, errs[2] = s.cmd.StderrPipe()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, &driver.CommandError{Err: err}
	}
	return s, nil
}

type localSession struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	out, errs io.Reader
}

func (s *localSession) Stdout() io.Reader           { return s.out }
func (s *localSession) Stderr() io.Reader           { return s.errs }
func (s *localSession) Write(p []byte) (int, error) { return s.in.Write(p) }
func (s *localSession) CloseWrite() error           { return s.in.Close() }
func (s *localSession) Resize(driver.Size) error    { return nil }
func (s *localSession) Signal(n syscall.Signal) error {
	return s.cmd.Process.Signal(n)
}
func (s *localSession) Close() error { return s.in.Close() }

func (s *localSession) Wait() (int, error) {
	err := s.cmd.Wait()
	if st, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return 128 + int(st.Signal()), nil
	}
	if s.cmd.ProcessState.Exited() {
		return s.cmd.ProcessState.ExitCode(), nil
	}
	return 0, err
}

// flood is a command that writes without end and reads nothing.
type flood struct {
	localSession
	ctx     context.Context //nolint:containedctx // it is what ends it
	written *atomic.Int64
}

func (f *flood) Stdout() io.Reader { return f }
func (f *flood) Stderr() io.Reader { return nil }
func (f *flood) Read(p []byte) (int, error) {
	if f.ctx.Err() != nil {
		return 0, io.EOF
	}
	f.written.Add(int64(len(p)))
	return len(p), nil
}

func (f *flood) Write([]byte) (int, error) {
	<-f.ctx.Done()
	return 0, io.ErrClosedPipe
}
func (f *flood) CloseWrite() error { return nil }
func (f *flood) Close() error      { return nil }
func (f *flood) Wait() (int, error) {
	<-f.ctx.Done()
	return 137, nil
}

// newShellServer returns a server whose project shop has an instance on a connected
// node that can run commands.
func newShellServer(t *testing.T, options ...option) (*testTeams, *loggingDriver, string) {
	t.Helper()
	w := newTestTeams(t, options...)
	node := w.join("n9")
	id := newID()
	w.testServer.instance(id, w.shop.ID, "web", "n9", "", func(s *mariposa.InstanceSpec) {
		s.Compute, s.Managed, s.Definition = mariposa.ComputeProcess, false, []byte(`{"compute_type":"process","command":["x"]}`)
		s.Name = "tool"
	})
	w.until("it runs on its node", func() bool {
		r := w.picture.Instances.Get(id)
		st := r.Status()
		return st != nil && st.State == mariposa.StateRunning && st.PhysicalID != ""
	})
	return w, node, id
}

// caller is a client that runs a command.
type caller struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // of the test
	conn *websocket.Conn
}

func (h *testServer) dial(t *testing.T, id, query string, headers ...string) *caller {
	t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, time.Minute)
	t.Cleanup(cancel)
	header := http.Header{"Authorization": {"Bearer " + h.token}}
	for i := 0; i+1 < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	conn, res, err := websocket.Dial(ctx, strings.Replace(h.url, "http", "ws", 1)+"/v1/instances/"+id+"/exec?"+query, &websocket.DialOptions{
		HTTPClient: h.http, HTTPHeader: header,
	})
	if err != nil {
		if res != nil && res.Body != nil {
			body, _ := io.ReadAll(res.Body)
			t.Fatalf("the connection was rejected: %v %s", err, body)
		}
		t.Fatal(err)
	}
	conn.SetReadLimit(8 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &caller{t: t, ctx: ctx, conn: conn}
}

func (c *caller) say(what byte, body string) {
	c.t.Helper()
	if err := c.conn.Write(c.ctx, websocket.MessageBinary, append([]byte{what}, body...)); err != nil {
		c.t.Fatal(err)
	}
}

// readAnswer reads to the end and returns stdout, stderr and the last message.
func (c *caller) readAnswer() (out, errs string, end map[string]any) {
	c.t.Helper()
	var b [2]bytes.Buffer
	for {
		_, m, err := c.conn.Read(c.ctx)
		if err != nil {
			c.t.Fatalf("it broke off after %q and %q: %v", b[0].String(), b[1].String(), err)
		}
		switch m[0] {
		case contract.ExecStdout, contract.ExecStderr:
			b[m[0]-contract.ExecStdout].Write(m[1:])
		case contract.ExecEnd:
			if err := json.Unmarshal(m[1:], &end); err != nil {
				c.t.Fatalf("%s: %v", m[1:], err)
			}
			return b[0].String(), b[1].String(), end
		default:
			c.t.Fatalf("it sent %q", m)
		}
	}
}

const upgrade = "websocket"

func TestACommandIsRunForWhoMay(t *testing.T) {
	t.Parallel()
	w, _, id := newShellServer(t)
	secret := "sesame-" + w.shop.ID
	c := w.asUser("oleg").dial(t, id, url.Values{"command": {"sh", "-c", "read x; echo $x; echo oh >&2; exit 7", secret}}.Encode())
	c.say(contract.ExecStdin, "hel")
	c.say(contract.ExecStdin, "lo\n")
	out, errs, end := c.readAnswer()
	if out != "hello\n" || errs != "oh\n" || end["exit_code"] != 7.0 {
		t.Errorf("stdout %q, stderr %q, ended with %v", out, errs, end)
	}
	audit := string(w.call("GET", "/v1/audit?action=instance.exec", nil).body)
	for _, part := range []string{`"actor_name":"oleg"`, `"object_name":"tool"`, `"outcome":"done"`, `read x; echo $x`} {
		if !strings.Contains(audit, part) {
			t.Errorf("the audit does not say %s: %s", part, audit)
		}
	}
	if strings.Contains(audit, secret) {
		t.Errorf("the audit holds a secret: %s", audit)
	}
	c = w.asUser("oleg").dial(t, id, "command=cat")
	c.say(contract.ExecStdin, strings.Repeat("x", 100_000))
	c.say(contract.ExecStdin, "")
	if out, _, end = c.readAnswer(); len(out) != 100_000 || end["exit_code"] != 0.0 {
		t.Errorf("%d bytes came back, and it ended with %v", len(out), end)
	}
	c = w.asUser("oleg").dial(t, id, "command=sleep&command=1000")
	c.say(contract.ExecSignal, `{"signal":"TERM"}`)
	if _, _, end = c.readAnswer(); end["exit_code"] != 143.0 {
		t.Errorf("after the signal it ended with %v", end)
	}
}

func TestWhoGetsNoShell(t *testing.T) {
	t.Parallel()
	w, node, id := newShellServer(t)
	ask := func(user, id string, headers ...string) reply {
		return w.asUser(user).call("GET", "/v1/instances/"+id+"/exec?command=true", nil, append([]string{"Upgrade", upgrade, "Connection", "Upgrade"}, headers...)...)
	}
	ask("vera", id).wantError(403, mariposa.Forbidden, "operator")
	ask("dora", id).wantError(403, mariposa.Forbidden, "operator")
	ask("sam", id).wantError(404, mariposa.ResourceNotFound)
	ask("oleg", w.instance).wantError(409, mariposa.Conflict, "compute type dummy")
	ask("oleg", id, "Upgrade", "", "Connection", "").wantError(400, mariposa.InvalidArgument, "WebSocket")
	ask("oleg", id, "Origin", "https://evil.example").wantError(403, mariposa.Forbidden, "cross-origin")
	w.asUser("oleg").call("GET", "/v1/instances/"+id+"/exec?command=no-such-command", nil, "Upgrade", upgrade, "Connection", "Upgrade").
		wantError(400, mariposa.InvalidArgument, "tool", "no-such-command")
	w.asUser("oleg").call("GET", "/v1/instances/"+id+"/exec?command=echo&command=a;b", nil, "Upgrade", upgrade, "Connection", "Upgrade").
		wantError(400, mariposa.InvalidArgument, "%3B")
	stopped := newID()
	w.testServer.instance(stopped, w.shop.ID, "web", "n9", mariposa.StateStopped, func(s *mariposa.InstanceSpec) {
		s.Compute, s.Goal = mariposa.ComputeProcess, mariposa.GoalHalted
	})
	ask("oleg", stopped).wantError(409, mariposa.Conflict, "stopped")
	node.leave()
	w.until("the node is gone", func() bool { return w.fleet.Sessions() == 0 })
	ask("oleg", id).wantError(503, mariposa.Unavailable, "host-n9", "not connected")
}

// Scripts of a web page cannot read the response to a WebSocket that was refused.
func TestAWebPageIsToldWhyItGetsNoShell(t *testing.T) {
	t.Parallel()
	w, node, id := newShellServer(t)
	refused := func(id, query string, code mariposa.Code, part string) {
		t.Helper()
		_, _, end := w.asUser("oleg").dial(t, id, query, "Origin", w.url).readAnswer()
		if end["code"] != string(code) || !strings.Contains(end["message"].(string), part) {
			t.Errorf("the last message is %v", end)
		}
	}
	if out, _, end := w.asUser("oleg").dial(t, id, "command=echo&command=hello", "Origin", w.url).readAnswer(); out != "hello\n" || end["exit_code"] != 0.0 {
		t.Errorf("stdout %q, ended with %v", out, end)
	}
	refused(w.instance, "tty=true", mariposa.Conflict, "compute type dummy")
	refused(id, "command=no-such-command", mariposa.InvalidArgument, "no-such-command")
	node.leave()
	w.until("the node is gone", func() bool { return w.fleet.Sessions() == 0 })
	refused(id, "tty=true", mariposa.Unavailable, "not connected")
}

func TestAShellEndsWithTheRightToIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		take func(w *testTeams)
		code string
	}{
		"the token is revoked": {func(w *testTeams) {
			want[contract.Changed](w.asUser("oleg").call("DELETE", "/v1/tokens/shell", nil), 200)
		}, "Unauthorized"},
		"the role is taken away": {func(w *testTeams) {
			want[contract.Changed](w.call("PUT", "/v1/projects/"+w.shop.ID+"/users/oleg", contract.MemberChange{Role: "deployer"}), 200)
		}, "Forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _, id := newShellServer(t)
			shell := w.as(w.mint(contract.NewToken{Name: "shell", User: "oleg"})).dial(t, id, "command=sleep&command=1000")
			c.take(w)
			if _, _, end := shell.readAnswer(); end["code"] != c.code {
				t.Errorf("it ended with %v", end)
			}
		})
	}
}

func TestAShellThatMakesNoSenseEnds(t *testing.T) {
	t.Parallel()
	w, _, id := newShellServer(t)
	for _, m := range [][]byte{{9, 'x'}, {contract.ExecStdout}, {contract.ExecResize, '{'}, []byte("\x04{\"rows\":0}"), []byte("\x05{\"signal\":\"STOP\"}")} {
		c := w.asUser("oleg").dial(t, id, "command=sleep&command=1000")
		c.say(m[0], string(m[1:]))
		if _, _, end := c.readAnswer(); end["code"] != "InvalidArgument" {
			t.Errorf("after %q it ended with %v", m, end)
		}
	}
}

func TestSoManyShellsOfOneOrganizationAndNoMore(t *testing.T) {
	t.Parallel()
	w, _, id := newShellServer(t, withLimits(api.Limits{Commands: 100}))
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() { w.asUser("oleg").dial(t, id, "command=cat") })
	}
	all.Wait()
	r := w.asUser("oleg").call("GET", "/v1/instances/"+id+"/exec", nil, "Upgrade", upgrade, "Connection", "Upgrade")
	r.wantError(429, mariposa.Throttled, "64", "this organization")
	w.dial(t, id, "command=cat") // who runs the installation still gets in
}

// Back-pressure works in both directions: output waits for a slow caller, and input
// waits for a slow command.
func TestWhoeverDoesNotReadHoldsUpTheOtherSide(t *testing.T) {
	t.Parallel()
	w, node, id := newShellServer(t)
	c := w.asUser("oleg").dial(t, id, "command=flood")
	w.until("the command writes", func() bool { return node.flooded.Load() > 0 })
	sent := 0
	for piece := strings.Repeat("x", 64<<10); ; sent++ {
		ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
		err := c.conn.Write(ctx, websocket.MessageBinary, append([]byte{contract.ExecStdin}, piece...))
		cancel()
		if err != nil {
			break // nobody takes it
		}
		if sent > 1000 {
			t.Fatal("input is accepted without limit although nothing reads it")
		}
	}
	if n := node.flooded.Load(); n == 0 || n > 32<<20 {
		t.Errorf("%d bytes were made for a caller who does not read", n)
	}
}

// No command runs if its audit record cannot be written.
func TestWithoutARecordNothingIsRun(t *testing.T) {
	t.Parallel()
	m := &failingAuditStore{}
	w, node, id := newShellServer(t, withStore(func(s store.Store) store.Store { m.Store = s; return m }))
	m.now.Store(true)
	r := w.call("GET", "/v1/instances/"+id+"/exec?command=flood", nil, "Upgrade", upgrade, "Connection", "Upgrade")
	if r.status != http.StatusServiceUnavailable || node.flooded.Load() != 0 {
		t.Errorf("answered %d %s", r.status, r.body)
	}
}

// failingAuditStore is a store that rejects audit records.
type failingAuditStore struct {
	store.Store
	now atomic.Bool
}

func (m *failingAuditStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	for _, u := range units {
		if m.now.Load() && len(u.Audit) > 0 {
			return store.FailAll(units, store.ErrUnavailable)
		}
	}
	return m.Store.Commit(ctx, units...)
}

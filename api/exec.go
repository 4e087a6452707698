package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/fleet"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/wire"
)

const (
	maxShellMessage     = 1 << 20          // of one incoming message
	shellIdleTimeout    = time.Hour        // without input or output
	shellWriteTimeout   = 10 * time.Minute // for a client that does not read
	shellRightsInterval = time.Second      // how often the caller's rights are checked, even without messages
	shellPingInterval   = 5 * time.Second  // how often the client is pinged, and how long it has to respond
)

type execInput struct {
	Instance string   `path:"instance" doc:"id of the instance, a prefix of the id, or its name" maxLength:"255"`
	Command  []string `query:"command,explode" doc:"the command; repeat the parameter for each argument. Default: /bin/sh" maxItems:"1000"`
	Console  bool     `query:"console" doc:"attach to the console of the instance instead of running a command"`
	TTY      bool     `query:"tty" doc:"run the command in a terminal"`
	Rows     uint16   `query:"rows" default:"24" minimum:"1" doc:"height of the terminal"`
	Cols     uint16   `query:"cols" default:"80" minimum:"1" doc:"width of the terminal"`
}

func (in *execInput) terminal() *wire.Size {
	if !in.TTY {
		return nil
	}
	return &wire.Size{Rows: in.Rows, Cols: in.Cols}
}

// request says what is requested, in front of the name of the instance.
func (in *execInput) request() string {
	if in.Console {
		return "cannot attach to the console of "
	}
	return "cannot run a command inside "
}

func (s *server) exec(ctx context.Context, in *execInput) (*huma.StreamResponse, error) {
	r, err := s.findInstance(ctx, in.Instance)
	if err != nil {
		return nil, err
	}
	if err = s.checkCommand(r.Spec(), r.Status(), in); err == nil {
		err = s.requireProof(ctx) // a command can read the secrets of the instance
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		req, w := humago.Unwrap(hc)
		if err == nil {
			err = s.shell(w, req, r, in)
		}
		if err != nil {
			s.refuseCommand(w, req, err)
		}
	}}, nil
}

// checkCommand rejects commands that cannot run inside an instance, and sets the default command.
func (s *server) checkCommand(spec *mariposa.InstanceSpec, status *mariposa.InstanceStatus, in *execInput) error {
	able, action := func(c mariposa.Capabilities) bool { return c.Exec }, "running commands"
	if in.Console {
		able, action = func(c mariposa.Capabilities) bool { return c.Console }, "a console"
	}
	if err := s.requireCapability(spec, able, action); err != nil {
		return err
	}
	state := mariposa.StateOf(spec, status)
	switch {
	case in.Console && (len(in.Command) > 0 || in.TTY):
		return invalid("console: cannot be combined with command or tty")
	case slices.Contains([]mariposa.State{mariposa.StatePending, mariposa.StateProvisioning, mariposa.StateStopped, mariposa.StateFailed, mariposa.StateDestroyed}, state):
		if in.Console {
			return conflict("instance %s is %s: only a running instance has a console; `instance logs` shows what was printed there", spec.Name, state)
		}
		return conflict("instance %s is %s: commands can run only inside a running instance", spec.Name, state)
	case len(in.Command) == 0 && !in.Console:
		in.Command = []string{"/bin/sh"}
	}
	return nil
}

// refuseCommand says why a command does not run. Scripts of web pages cannot read the response
// to a refused WebSocket, so they get the error as the only message of one.
func (s *server) refuseCommand(w http.ResponseWriter, req *http.Request, err error) {
	if req.Header.Get("Origin") == "" || checkUpgrade(req) != nil {
		s.explain(req.Context(), err).write(w)
		return
	}
	doc, _ := json.Marshal(s.explain(req.Context(), err)) // strings always marshal
	conn, err := websocket.Accept(w, req, nil)
	if err != nil {
		return // Accept has sent a response
	}
	ctx, cancel := context.WithTimeout(req.Context(), shellPingInterval)
	defer cancel()
	if conn.Write(ctx, websocket.MessageBinary, append([]byte{contract.ExecEnd}, doc...)) == nil {
		_ = conn.Close(websocket.StatusPolicyViolation, "") // a client that does not respond is gone
	}
	_ = conn.CloseNow() // already closed, unless the caller was gone
}

// shell runs a command for as long as the connection lasts. It returns errors from before
// the command runs, which are sent as HTTP errors.
func (s *server) shell(w http.ResponseWriter, req *http.Request, r *store.Instance, in *execInput) error {
	if err := checkUpgrade(req); err != nil {
		return err
	}
	release, err := s.acquireCommand(req.Context(), r.Spec())
	if err != nil {
		return err
	}
	defer release()
	opening, cancel := context.WithTimeout(req.Context(), s.RequestTimeout)
	defer cancel()
	if err := s.recordExec(opening, r, in); err != nil {
		return err // no command runs without an audit record
	}
	spec := r.Spec()
	x, err := s.openShell(opening, spec.Node, r.ID, in)
	if err != nil {
		return nodeFailure(err, in.request()+spec.Name)
	}
	defer x.Close()
	conn, err := websocket.Accept(w, req, nil)
	if err != nil {
		s.Logger.InfoContext(req.Context(), "cannot open connection for a command", "err", err)
		return nil // Accept has sent a response
	}
	conn.SetReadLimit(maxShellMessage + 1)
	c := caller(req.Context())
	t := &execSession{s: s, conn: conn, shell: x, checkAccess: func() error { return s.requireShellAccess(c, spec) }}
	t.run(req.Context(), spec)
	return nil
}

func (s *server) openShell(ctx context.Context, node, instance string, in *execInput) (*fleet.Shell, error) {
	if in.Console {
		return s.Fleet.Console(ctx, node, instance)
	}
	return s.Fleet.Exec(ctx, node, instance, in.Command, in.terminal())
}

// checkUpgrade rejects a request that is not for a WebSocket, has an invalid query string,
// or is cross-origin.
func checkUpgrade(req *http.Request) error {
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		return invalid("a WebSocket connection is required: send Upgrade: websocket, or use `mariposa instance exec`")
	}
	if _, err := url.ParseQuery(req.URL.RawQuery); err != nil { // unparsable parameters would be missing from the command
		return invalid("invalid query string: write ; as %%3B and %% as %%25")
	}
	if origin := req.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, req.Host) {
			return &mariposa.Error{Code: mariposa.Forbidden, Message: "cross-origin requests cannot run commands"}
		}
	}
	return nil
}

// acquireCommand counts a command against the limits of commands inside instances.
func (s *server) acquireCommand(ctx context.Context, spec *mariposa.InstanceSpec) (release func(), err error) {
	organization := ""
	if p := s.Picture.Projects.Get(spec.Project); p != nil {
		organization = p.Spec().Organization
	}
	leave, err := s.usage.takeCommand(caller(ctx), organization)
	if err != nil {
		return nil, err
	}
	sessionOf(ctx).done()
	s.metrics.streams.Inc()
	return func() { leave(); s.metrics.streams.Dec() }, nil
}

// maskCommand returns the mask for secrets in a command. It covers all secrets of the
// project: callers who can run commands can read them, and may have typed one.
func (s *server) maskCommand(ctx context.Context, spec *mariposa.InstanceSpec) (*seal.Mask, error) {
	project := s.Picture.Projects.Get(spec.Project)
	if project == nil || project.Spec().Metadata == 0 {
		return nil, nil
	}
	return s.Cache.MaskAll(ctx, project, spec)
}

// recordExec audits who runs which command, with secrets masked.
func (s *server) recordExec(ctx context.Context, r *store.Instance, in *execInput) error {
	if in.Console {
		a := s.auditOf(ctx, r)
		a.Reason = "console"
		return s.change.RecordAudit(ctx, a)
	}
	mask, err := s.maskCommand(ctx, r.Spec())
	if err != nil {
		return err
	}
	words := make([]string, len(in.Command))
	for n, word := range in.Command {
		if words[n] = mask.Text(word); words[n] == "" || strings.ContainsAny(words[n], " \t\n'\"") {
			words[n] = strconv.Quote(words[n])
		}
	}
	a := s.auditOf(ctx, r)
	a.Reason = truncate(mask.Text(strings.Join(words, " ")), 2000)
	return s.change.RecordAudit(ctx, a)
}

// truncate shortens a text to at most that many bytes without splitting a character.
func truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// requireShellAccess returns an error unless a caller may still run commands inside an
// instance.
func (s *server) requireShellAccess(c *auth.Caller, spec *mariposa.InstanceSpec) error {
	now := s.renew(c)
	if now == nil {
		return mariposa.Errorf(mariposa.Unauthorized, "the token is no longer valid")
	}
	project := s.Picture.Projects.Get(spec.Project)
	if project == nil {
		return notFound("there is no such project")
	}
	return s.directory.Require(now, auth.Shell, project.Record())
}

// execSession is the connection between a caller and a command.
type execSession struct {
	s           *server
	conn        *websocket.Conn
	shell       *fleet.Shell
	checkAccess func() error

	active  atomic.Int64 // time of the last input or output
	writing atomic.Bool  // the command is slow to read, so the caller's messages wait
	sending atomic.Bool  // the caller is slow to read output
}

// run forwards messages until the command ends, the caller disconnects or loses their
// rights, or the server stops.
func (t *execSession) run(ctx context.Context, spec *mariposa.InstanceSpec) {
	ctx, stop := context.WithCancelCause(ctx)
	defer context.AfterFunc(ctx, t.shell.Close)()
	t.active.Store(time.Now().UnixNano())
	var all sync.WaitGroup
	life, over := context.WithCancel(context.WithoutCancel(ctx)) // reading continues after the command, until the last message is sent
	all.Go(func() { stop(t.readMessages(life)) })
	all.Go(func() { t.watch(ctx, stop) })
	err := t.sendOutput(life)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	t.shell.Close() // unblocks pending writes
	t.sendEnd(life, spec, err)
	stop(nil)
	over()
	_ = t.conn.CloseNow() // already closed, unless the caller was gone
	all.Wait()
}

// readMessages reads the caller's messages until they disconnect.
func (t *execSession) readMessages(ctx context.Context) error {
	for {
		kind, message, err := t.conn.Read(ctx)
		if err != nil {
			return errGone
		}
		t.active.Store(time.Now().UnixNano())
		if err := t.checkAccess(); err != nil {
			return err
		}
		if kind != websocket.MessageBinary || len(message) == 0 {
			return invalid("invalid message: messages must be binary and begin with a type byte")
		}
		if err := t.handleMessage(message[0], message[1:]); err != nil {
			return err
		}
	}
}

// errGone means that the caller has disconnected, so no message can be sent.
var errGone = errors.New("the caller has disconnected")

// handleMessage handles one message.
func (t *execSession) handleMessage(what byte, body []byte) error {
	switch what {
	case contract.ExecStdin:
		t.writing.Store(true)
		defer t.writing.Store(false)
		if len(body) == 0 {
			t.shell.CloseWrite()
			return nil
		}
		_, _ = t.shell.Write(body) // an ended command does not read its input
	case contract.ExecResize:
		var size contract.ExecSize
		if unmarshalExact(body, &size) != nil || size.Rows == 0 || size.Cols == 0 {
			return invalid(`invalid terminal size: send {"rows": N, "cols": N}`)
		}
		t.shell.Resize(wire.Size{Rows: size.Rows, Cols: size.Cols})
	case contract.ExecSignal:
		var kill contract.ExecKill
		n, known := 0, false
		if unmarshalExact(body, &kill) == nil {
			n, known = signals[strings.TrimPrefix(kill.Signal, "SIG")]
		}
		if !known {
			return invalid(`invalid signal: send {"signal": "TERM"}, or INT, HUP, QUIT, KILL, USR1 or USR2`)
		}
		t.shell.Signal(n)
	default:
		return invalid("unknown message type %d", what)
	}
	return nil
}

// signals are the supported signals, by name.
var signals = map[string]int{
	"INT": int(syscall.SIGINT), "TERM": int(syscall.SIGTERM), "HUP": int(syscall.SIGHUP), "QUIT": int(syscall.SIGQUIT),
	"KILL": int(syscall.SIGKILL), "USR1": int(syscall.SIGUSR1), "USR2": int(syscall.SIGUSR2),
}

// sendOutput sends the command's output; it returns io.EOF when the command has exited.
func (t *execSession) sendOutput(ctx context.Context) error {
	for {
		piece, stderr, err := t.shell.Read()
		if err != nil {
			return err
		}
		if err := t.checkAccess(); err != nil {
			return err
		}
		what := contract.ExecStdout
		if stderr {
			what = contract.ExecStderr
		}
		t.sending.Store(true)
		err = t.send(ctx, shellWriteTimeout, what, piece)
		t.sending.Store(false)
		if err != nil {
			return errGone
		}
		t.active.Store(time.Now().UnixNano())
	}
}

func (t *execSession) send(ctx context.Context, limit time.Duration, what byte, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return t.conn.Write(ctx, websocket.MessageBinary, append([]byte{what}, body...))
}

// watch ends a session that is idle or dead, or whose caller has lost their rights.
func (t *execSession) watch(ctx context.Context, stop context.CancelCauseFunc) {
	every := time.NewTicker(shellRightsInterval)
	defer every.Stop()
	for pinged := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		if err := t.checkAccess(); err != nil {
			stop(err)
			return
		}
		if time.Since(time.Unix(0, t.active.Load())) > shellIdleTimeout {
			stop(mariposa.Errorf(mariposa.Unavailable, "the session was idle for %s", shellIdleTimeout))
			return
		}
		if time.Since(pinged) < shellPingInterval {
			continue
		}
		if !t.isAlive(ctx) {
			stop(errGone)
			return
		}
		pinged = time.Now()
	}
}

// isAlive reports whether the client responds to a ping. It cannot while input or output is
// blocked; then an open connection is enough.
func (t *execSession) isAlive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, shellPingInterval)
	defer cancel()
	err := t.conn.Ping(ctx)
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return err == nil || (late && (t.writing.Load() || t.sending.Load()))
}

// sendEnd sends the last message: how the session ended.
func (t *execSession) sendEnd(ctx context.Context, spec *mariposa.InstanceSpec, err error) {
	if errors.Is(err, errGone) {
		return
	}
	code, doc := websocket.StatusNormalClosure, []byte(nil)
	switch {
	case errors.Is(err, io.EOF):
		exit := t.shell.Exit()
		doc, _ = json.Marshal(contract.ExecExit{ExitCode: &exit}) // a number always marshals
	case errors.Is(err, context.Canceled):
		code = websocket.StatusGoingAway
		doc, _ = json.Marshal(t.s.explain(ctx, mariposa.Errorf(mariposa.Unavailable, "the command inside %s was terminated because the server is stopping", spec.Name)))
	default:
		code = websocket.StatusPolicyViolation
		doc, _ = json.Marshal(t.s.explain(ctx, err)) // strings always marshal
	}
	if t.send(ctx, shellPingInterval, contract.ExecEnd, doc) == nil {
		_ = t.conn.Close(code, "") // a client that does not respond is gone
	}
}

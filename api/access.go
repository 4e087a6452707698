package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/reason"
	"mariposa/store"
)

// requestedAction returns the action in the body, and restores the body. What overrides the
// protection of the whole installation needs the permission of the route, whoever asks.
func requestedAction(r *http.Request) string {
	var body struct {
		RescheduleNow bool `json:"reschedule_now"`
	}
	if json.Unmarshal(peek(r), &body) == nil && body.RescheduleNow {
		return "reschedule-now"
	}
	return textField(r, "action")
}

// requestedRename returns "rename" if the body has a new name.
func requestedRename(r *http.Request) string {
	if textField(r, "name") != "" {
		return "rename"
	}
	return ""
}

// textField returns the string under a key of the body. It returns nothing for invalid
// JSON or another type: the handler rejects those.
func textField(r *http.Request, key string) (text string) {
	var keys map[string]json.RawMessage
	if json.Unmarshal(peek(r), &keys) == nil {
		_ = json.Unmarshal(keys[key], &text)
	}
	return text
}

// requestedManifest returns "manifest" if the body is not blank: the handler then reads it
// as a manifest.
func requestedManifest(r *http.Request) string {
	if len(bytes.TrimSpace(peek(r))) > 0 {
		return "manifest"
	}
	return ""
}

// requestedReveal parses the parameter as the handlers do: there is more than one way
// to write true.
func requestedReveal(r *http.Request) string {
	reveal, _ := strconv.ParseBool(r.URL.Query().Get("reveal")) // the handler rejects an invalid value
	return strconv.FormatBool(reveal)
}

// peek reads the body of a request and restores it. A body above the largest limit is
// not read.
func peek(r *http.Request) []byte {
	if r.Body == nil {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxWrapped+1))
	rest := io.Reader(r.Body)
	if err != nil {
		rest = failingReader{err}
	}
	r.Body = &rejoined{Reader: io.MultiReader(bytes.NewReader(body), rest), Closer: r.Body}
	return body
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// session is the state of an authenticated request.
type session struct {
	change.Request
	methodAndPath string        // method and path
	attempt       string        // the action in the audit record if the request is denied
	header        http.Header   // of the response
	done          func()        // stops counting the request against its user's limits
	on            *store.Record // the project or organization of the request; nil: none, or it is named in the body
}

type sessionKey struct{}

// sessionOf returns the session of an authenticated request. It panics for other requests.
func sessionOf(ctx context.Context) *session { return ctx.Value(sessionKey{}).(*session) }

func caller(ctx context.Context) *auth.Caller { return sessionOf(ctx).Caller }

// request returns the part of the session that a change needs.
func request(ctx context.Context) *change.Request { return &sessionOf(ctx).Request }

// actor returns the name of the caller.
func actor(ctx context.Context) string { return caller(ctx).Actor() }

// require checks a permission on a project or organization, nil for neither.
func (s *server) require(ctx context.Context, p auth.Permission, on *store.Record) error {
	return s.directory.Require(caller(ctx), p, on)
}

// authorize finds the object of a request and checks the permission that the route
// needs.
func (s *server) authorize(r *http.Request, rt *route) error {
	ctx := r.Context()
	var on *store.Record
	if rt.object != nil {
		var err error
		if on, err = rt.object.find(s, r, r.PathValue(rt.object.name)); err != nil {
			return err
		}
	}
	permission, action := rt.permissionFor(r)
	sessionOf(ctx).Permission, sessionOf(ctx).on, sessionOf(ctx).attempt = permission, on, action
	if err := s.directory.RequireTo(caller(ctx), permission, on, describeAttempt(r, rt)); err != nil || rt.proof == nil || !rt.proof(r) {
		return err
	}
	return s.requireProof(ctx)
}

// requireProof refuses a person at the web page who has not proved recently who they are.
func (s *server) requireProof(ctx context.Context) error {
	c := caller(ctx)
	if now := s.renew(c); now != nil {
		c = now // another replica may just have accepted the proof
	}
	return c.RequireProof(s.Clock.Now())
}

// doing describes requests for error messages, as text before the name of a project or
// organization. The keys are actions of the audit log, and actions in request bodies.
var doing = map[string]string{
	"manifest.put": "updating", "project.update": "updating", "project.delete": "deleting", "project.move": "moving", "project.copy": "copying", "tag.create": "tagging versions of", "tag.delete": "tagging versions of",
	"service.create": "adding services to", "service.put": "updating services of", "service.delete": "removing services from",
	"metadata.put": "setting metadata of", "metadata.set": "setting metadata of", "metadata.delete": "removing metadata of", "metadata.incr": "setting metadata of", "metadata.decr": "setting metadata of",
	"instance.create": "creating instances in", "instance.delete": "removing instances of", "task.terminate": "terminating tasks of",
	"organization.update": "updating", "organization.delete": "deleting", "member.put": "managing the members of", "member.remove": "managing the members of",

	"start": "starting", "stop": "stopping", "scale": "scaling", "reprovision": "reprovisioning", "revert": "reverting", "freeze": "freezing", "thaw": "thawing",
	"pause": "pausing", "resume": "resuming", "converge": "converging", "accept": "accepting the actual state of",
	"rename": "renaming", "restart": "restarting instances of", "replace": "replacing instances of", "crash": "crashing instances of",
}

// describeAttempt describes a request for an error message; empty: the description of its
// permission is used.
func describeAttempt(r *http.Request, rt *route) string {
	if rt.variation != nil && rt.audit == "state.put" {
		return doing[rt.variation.word(r)]
	}
	return doing[rt.audit]
}

// deny audits a request that was denied for lack of a permission. The owner of its object
// can read the record. Records are rate-limited per user and action; the next record
// counts the omitted ones.
func (s *server) deny(ctx context.Context, err error) {
	ses := sessionOf(ctx)
	a := ses.Audit()
	a.Action = cmp.Or(a.Action, ses.attempt, actionRead)
	user, _ := payer(ses.Caller)
	ok, suppressed, _ := s.denials.Fail(user+" "+a.Action, s.Clock.Now()) // per action: many denied reads must not hide a denied change
	if !ok {
		return // the next record counts it
	}
	a.Outcome, a.Reason, a.Object = mariposa.AuditDenied, err.Error()+describeSuppressed(suppressed), ses.methodAndPath
	var d auth.Denial
	if errors.As(err, &d) {
		about(&a, d.On)
	}
	s.recordAudit(ctx, a)
}

// about sets the project or organization of an audit record; nil: none.
func about(a *mariposa.Audit, on *store.Record) {
	if on == nil {
		return
	}
	switch spec := on.Spec.(type) {
	case *mariposa.ProjectSpec:
		a.Project, a.ProjectName, a.Organization = on.ID, spec.Name, spec.Organization
	case *mariposa.OrganizationSpec:
		a.Organization = on.ID
	}
}

// recordRefusal audits a permitted change that was rejected because of its content: many
// such attempts may be probing. Records are rate-limited; the next record counts the
// omitted ones.
func (s *server) recordRefusal(ctx context.Context, err error) {
	if ses, ok := ctx.Value(sessionKey{}).(*session); ok && ses.Action != "" && isRefusal(err) {
		s.recordAttempt(ctx, ses.Action, ses.on, err)
	}
}

// isRefusal reports whether an error is caused by the request and not by the server.
func isRefusal(err error) bool {
	switch mariposa.CodeOf(err) {
	case mariposa.InvalidArgument, mariposa.Conflict, mariposa.QuotaExceeded, mariposa.TooLarge, mariposa.ResourceNotFound:
		return true
	}
	return false
}

// recordAttempt audits a request that changed nothing: a rejected change, or a plan.
func (s *server) recordAttempt(ctx context.Context, action string, on *store.Record, err error) {
	ses := sessionOf(ctx)
	user, _ := payer(ses.Caller)
	ok, suppressed, _ := s.attempts.Fail(user, s.Clock.Now())
	if !ok {
		return
	}
	a := ses.Audit()
	a.Action, a.Object = action, ses.methodAndPath
	if err != nil {
		a.Outcome, a.Reason = mariposa.AuditFailed, refusedFor(err)
	}
	a.Reason += describeSuppressed(suppressed)
	about(&a, on)
	s.recordAudit(ctx, a)
}

// refusedFor describes a rejected request by its error code and fields only: the message
// may quote secrets from the request.
func refusedFor(err error) string {
	const few = 5
	text := string(mariposa.CodeOf(err))
	var e *mariposa.Error
	if !errors.As(err, &e) || len(e.Faults) == 0 {
		return text
	}
	var fields []string
	for _, f := range e.Faults {
		if f.Field != "" && !slices.Contains(fields, f.Field) && len(fields) < few {
			fields = append(fields, f.Field)
		}
	}
	return text + ": " + reason.Many(len(e.Faults), "fault") + ", in " + strings.Join(fields, ", ")
}

// describeSuppressed returns how many earlier requests were not recorded.
func describeSuppressed(suppressed int) string {
	if suppressed == 0 {
		return ""
	}
	return " (and " + reason.Many(suppressed, "more request") + " like it)"
}

// recordAudit writes a separate audit record. The outcome of the request is already
// decided, so errors are only logged.
func (s *server) recordAudit(ctx context.Context, a mariposa.Audit) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.change.RecordAudit(ctx, a); err != nil {
		s.Logger.WarnContext(ctx, "cannot write audit record", "err", err, "action", a.Action)
	}
}

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/store"
)

// requestedAction is the action that the body asks for. What it read is put back.
func requestedAction(r *http.Request) string {
	var doc struct {
		Action string `json:"action"`
	}
	_ = json.Unmarshal(peek(r), &doc) // what is no JSON is refused by whoever reads it next
	return doc.Action
}

// requestedRename is "rename" if the body has a new name.
func requestedRename(r *http.Request) string {
	var doc struct {
		Name string `json:"name"`
	}
	if _ = json.Unmarshal(peek(r), &doc); doc.Name != "" {
		return "rename"
	}
	return ""
}

// requestedReveal reads the parameter as the handlers do: there is more than one way
// to write true.
func requestedReveal(r *http.Request) string {
	reveal, _ := strconv.ParseBool(r.URL.Query().Get("reveal")) // what is none is refused by whoever reads it next
	return strconv.FormatBool(reveal)
}

// peek reads the body of a request and puts it back. What is longer than any
// body may be stays unread.
func peek(r *http.Request) []byte {
	if r.Body == nil {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxWrapped+1))
	rest := io.Reader(r.Body)
	if err != nil {
		rest = failing{err}
	}
	r.Body = &rejoined{Reader: io.MultiReader(bytes.NewReader(body), rest), Closer: r.Body}
	return body
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// session is what is known of a request once it has been let in.
type session struct {
	caller     *auth.Caller
	from       string
	asked      string // method and path
	route      *route
	permission auth.Permission // that the request takes
	again      *replay         // what to keep the answer under; nil: nobody will ask again
	header     http.Header     // of the answer; set with again
}

type sessionKey struct{}

// asking is the session of a request. A request that nobody let in has none, and
// whatever asks for it then is a mistake.
func asking(ctx context.Context) *session { return ctx.Value(sessionKey{}).(*session) }

func caller(ctx context.Context) *auth.Caller { return asking(ctx).caller }

// actor is the name of who asks.
func actor(ctx context.Context) string { return caller(ctx).Actor() }

// require asks for a permission on a project or organization, nil for neither.
// Every permission is asked for here.
func (s *server) require(ctx context.Context, p auth.Permission, on *store.Record) error {
	return s.judge(caller(ctx), p, on)
}

func (s *server) judge(c *auth.Caller, p auth.Permission, on *store.Record) error {
	switch s.directory.May(c, p, on) {
	case auth.Allowed:
		return nil
	case auth.Denied:
		return &mariposa.Error{Code: mariposa.Forbidden, Message: c.Name + " may not do this" + where(on) + ": " + describePermission(p, on), Cause: denial{on}}
	}
	if on != nil {
		if spec, ok := on.Spec.(*mariposa.OrganizationSpec); ok {
			return notFound("there is no organization %q", spec.Name)
		}
	}
	return notFound("there is no such project")
}

func where(on *store.Record) string {
	if on == nil {
		return ""
	}
	switch spec := on.Spec.(type) {
	case *mariposa.ProjectSpec:
		return " in project " + spec.Name
	case *mariposa.OrganizationSpec:
		return " in organization " + spec.Name
	}
	return ""
}

// describePermission says in words what a permission takes.
func describePermission(p auth.Permission, on *store.Record) string {
	owned := on != nil && on.Kind == mariposa.KindOrg
	for _, row := range auth.Table {
		switch {
		case row.Permission != p:
		case row.Project != "" && !(owned && row.Organization != ""):
			return "to " + row.Means + " takes the role " + string(row.Project) + ", and a token that is not bound to less"
		case row.Organization != "":
			return "to " + row.Means + " takes being " + string(row.Organization) + " of the organization, and a token that is not bound to less"
		case row.Installation:
			return "to " + row.Means + " takes a user who runs the installation, and a token without bounds"
		}
	}
	return "it takes another role"
}

// authorize finds the object that a request is about and asks for the permission
// that it takes.
func (s *server) authorize(r *http.Request, rt *route) error {
	ctx := r.Context()
	var on *store.Record
	if rt.object != nil {
		var err error
		if on, err = rt.object.find(s, r, r.PathValue(rt.object.name)); err != nil {
			return err
		}
	}
	permission := rt.permissionFor(r)
	asking(ctx).permission = permission
	return s.require(ctx, permission, on)
}

// authorizeAgain asks once more for what authorize asked for, on what a change is
// really about: a body may take its time, and names and roles change meanwhile. On
// is not looked at where the route has no object.
func (s *server) authorizeAgain(ctx context.Context, on *store.Record) error {
	ses := asking(ctx)
	if ses.route.object == nil {
		on = nil
	}
	if s.directory.May(ses.caller, ses.permission, on) == auth.Hidden {
		return notFound("what this is about is gone")
	}
	return s.require(ctx, ses.permission, on)
}

// denial is the cause of an error that says that somebody may not do something: to
// which project or organization, if to any.
type denial struct{ on *store.Record }

func (denial) Error() string { return "denied" }

// deny notes a request that was refused for want of a permission. Who owns what it
// was about can read of it.
func (s *server) deny(ctx context.Context, err error) {
	ses := asking(ctx)
	a := s.audited(ctx)
	unsaid := 0
	if a.Action == "" { // many reads at once are told with the next one; a change that was denied always is
		var ok bool
		if ok, unsaid, _ = s.denials.Fail(ses.from+" "+ses.caller.User, s.Clock.Now()); !ok {
			return
		}
	}
	a.Outcome, a.Reason, a.Object = mariposa.AuditDenied, err.Error()+describeSuppressed(unsaid), ses.asked
	a.Action = firstOf(a.Action, "read")
	var d denial
	if errors.As(err, &d) && d.on != nil {
		switch spec := d.on.Spec.(type) {
		case *mariposa.ProjectSpec:
			a.Project, a.ProjectName, a.Organization = d.on.ID, spec.Name, spec.Organization
		case *mariposa.OrganizationSpec:
			a.Organization = d.on.ID
		}
	}
	s.note(ctx, a)
}

// describeSuppressed says how many requests before this one were not noted.
func describeSuppressed(unsaid int) string {
	if unsaid == 0 {
		return ""
	}
	return " (and " + many(unsaid, "more request") + " like it)"
}

// note writes an audit record of its own. The request has been answered by then
// as far as its caller is concerned, so what goes wrong here is logged.
func (s *server) note(ctx context.Context, a mariposa.Audit) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.Store.Commit(ctx, store.Unit{Audit: []mariposa.Audit{a}})[0].Err; err != nil {
		s.Logger.WarnContext(ctx, "cannot write an audit record", "err", err, "action", a.Action)
	}
}

// audited begins the audit record of a request.
func (s *server) audited(ctx context.Context) mariposa.Audit {
	ses := asking(ctx)
	c := ses.caller
	a := mariposa.Audit{
		Actor: c.User, ActorName: c.Name, From: ses.from, Request: requestID(ctx), Token: c.Token,
		Action: ses.route.audit, Outcome: mariposa.AuditDone,
	}
	if c.By != "" {
		a.Actor, a.ActorName, a.For, a.ForName = c.By, c.ByName, c.User, c.Name
	}
	return a
}

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

// rule says what a route takes, and what its changes are called in the audit.
type rule struct {
	need  auth.Permission
	on    target
	audit string // empty: it changes nothing
	// by picks another permission by what the request says; which are listed in
	// variants. Nil: there is but one.
	by       func(*http.Request) string
	variants map[string]auth.Permission
}

// target says what of a request the permission is about.
type target uint8

const (
	nothing      target = iota // the caller alone, or the handler asks once it has read the body
	aProject                   // {project}
	aTask                      // the project of {task}
	anInstance                 // the project of {instance}
	organization               // {organization}
	aVolume                    // the project of {volume}, or the organization that has it
	aNetwork                   // the project of {network}, or the organization that shares it
)

// rules is the one list of who may call what. A route without a row answers
// nobody; a test walks all of it with every role.
var rules = map[string]rule{
	"GET /v1/projects":                                           {need: auth.Ask},
	"POST /v1/projects":                                          {need: auth.Ask, audit: "project.create"}, // CreateProject in the organization it names
	"GET /v1/projects/{project}":                                 {need: auth.ReadProject, on: aProject},
	"PUT /v1/projects/{project}":                                 {need: auth.Deploy, on: aProject, audit: "project.update", by: renames, variants: map[string]auth.Permission{"rename": auth.Administer}},
	"DELETE /v1/projects/{project}":                              {need: auth.Administer, on: aProject, audit: "project.delete"},
	"GET /v1/projects/{project}/manifest":                        {need: auth.ReadProject, on: aProject},
	"PUT /v1/projects/{project}/manifest":                        {need: auth.Deploy, on: aProject, audit: "manifest.put"},
	"GET /v1/projects/{project}/metadata":                        {need: auth.ReadProject, on: aProject, by: reveals, variants: revealing},
	"PUT /v1/projects/{project}/metadata":                        {need: auth.Deploy, on: aProject, audit: "metadata.put"},
	"GET /v1/projects/{project}/metadata/{key}":                  {need: auth.ReadProject, on: aProject, by: reveals, variants: revealing},
	"PUT /v1/projects/{project}/metadata/{key}":                  {need: auth.Deploy, on: aProject, audit: "metadata.set"},
	"DELETE /v1/projects/{project}/metadata/{key}":               {need: auth.Deploy, on: aProject, audit: "metadata.delete"},
	"POST /v1/projects/{project}/metadata/{key}/incr":            {need: auth.Deploy, on: aProject, audit: "metadata.incr"},
	"POST /v1/projects/{project}/metadata/{key}/decr":            {need: auth.Deploy, on: aProject, audit: "metadata.decr"},
	"GET /v1/projects/{project}/versions":                        {need: auth.ReadProject, on: aProject},
	"GET /v1/projects/{project}/versions/{version}":              {need: auth.ReadProject, on: aProject},
	"GET /v1/projects/{project}/diff":                            {need: auth.ReadProject, on: aProject},
	"GET /v1/projects/{project}/tags":                            {need: auth.ReadProject, on: aProject},
	"POST /v1/projects/{project}/tags":                           {need: auth.Deploy, on: aProject, audit: "tag.create"},
	"GET /v1/projects/{project}/tags/{tag}":                      {need: auth.ReadProject, on: aProject},
	"DELETE /v1/projects/{project}/tags/{tag}":                   {need: auth.Deploy, on: aProject, audit: "tag.delete"},
	"GET /v1/projects/{project}/state":                           {need: auth.ReadProject, on: aProject},
	"PUT /v1/projects/{project}/state":                           {need: auth.Operate, on: aProject, audit: "state.put", by: action, variants: deploying},
	"GET /v1/projects/{project}/graph":                           {need: auth.ReadProject, on: aProject},
	"GET /v1/projects/{project}/healthchecks":                    {need: auth.ReadProject, on: aProject},
	"GET /v1/projects/{project}/services/{service}/healthchecks": {need: auth.ReadProject, on: aProject},
	"GET /v1/projects/{project}/services":                        {need: auth.ReadProject, on: aProject},
	"GET /v1/projects/{project}/services/{service}":              {need: auth.ReadProject, on: aProject},
	"POST /v1/projects/{project}/services":                       {need: auth.Deploy, on: aProject, audit: "service.create"},
	"PUT /v1/projects/{project}/services/{service}":              {need: auth.Deploy, on: aProject, audit: "service.put"},
	"DELETE /v1/projects/{project}/services/{service}":           {need: auth.Deploy, on: aProject, audit: "service.delete"},
	"GET /v1/projects/{project}/services/{service}/manifest":     {need: auth.ReadProject, on: aProject},
	"PUT /v1/projects/{project}/services/{service}/manifest":     {need: auth.Deploy, on: aProject, audit: "service.put"},
	"GET /v1/projects/{project}/services/{service}/state":        {need: auth.ReadProject, on: aProject},
	"PUT /v1/projects/{project}/services/{service}/state":        {need: auth.Operate, on: aProject, audit: "state.put", by: action, variants: deploying},
	"POST /v1/projects/{project}/copy":                           {need: auth.Deploy, on: aProject, audit: "project.copy"}, // and CreateProject there, and ReadSecrets for secrets
	"POST /v1/projects/{project}/plan":                           {need: auth.ReadProject, on: aProject},
	"POST /v1/projects/{project}/move":                           {need: auth.Administer, on: aProject, audit: "project.move"},
	"GET /v1/projects/{project}/users":                           {need: auth.ReadProject, on: aProject},
	"PUT /v1/projects/{project}/users/{user}":                    {need: auth.ManagePeople, on: aProject, audit: "people.put"},
	"DELETE /v1/projects/{project}/users/{user}":                 {need: auth.ManagePeople, on: aProject, audit: "people.remove"},
	"GET /v1/state":                                          {need: auth.Ask},
	"GET /v1/services":                                       {need: auth.Ask},
	"GET /v1/queue":                                          {need: auth.Ask},
	"GET /v1/queue/{task}":                                   {need: auth.ReadProject, on: aTask},
	"DELETE /v1/queue/{task}":                                {need: auth.Operate, on: aTask, audit: "task.terminate"},
	"GET /v1/instances":                                      {need: auth.Ask},
	"POST /v1/instances":                                     {need: auth.Ask, audit: "instance.create"}, // ManageInstances in the project it names
	"GET /v1/instances/{instance}":                           {need: auth.ReadProject, on: anInstance},
	"PUT /v1/instances/{instance}":                           {need: auth.ManageInstances, on: anInstance, audit: "instance.act"},
	"DELETE /v1/instances/{instance}":                        {need: auth.ManageInstances, on: anInstance, audit: "instance.delete"},
	"GET /v1/instances/{instance}/logs":                      {need: auth.ReadProject, on: anInstance, by: reveals, variants: revealing},
	"GET /v1/instances/{instance}/exec":                      {need: auth.Shell, on: anInstance, audit: "instance.exec"},
	"GET /v1/volumes":                                        {need: auth.Ask},
	"GET /v1/volumes/{volume}":                               {need: auth.ReadVolume, on: aVolume},
	"DELETE /v1/volumes/{volume}":                            {need: auth.DeleteVolume, on: aVolume, audit: "volume.delete"},
	"GET /v1/networks":                                       {need: auth.Ask},
	"GET /v1/networks/{network}":                             {need: auth.ReadNetwork, on: aNetwork},
	"DELETE /v1/networks/{network}":                          {need: auth.DeleteNetwork, on: aNetwork, audit: "network.delete"},
	"GET /v1/events":                                         {need: auth.Ask},
	"GET /v1/audit":                                          {need: auth.Ask}, // AuditProject or AuditOrganization of what it names
	"GET /v1/nodes":                                          {need: auth.RunInstallation},
	"GET /v1/nodes/{node}":                                   {need: auth.RunInstallation},
	"PUT /v1/nodes/{node}":                                   {need: auth.RunInstallation, audit: "node.act"},
	"DELETE /v1/nodes/{node}":                                {need: auth.RunInstallation, audit: "node.delete"},
	"GET /v1/user":                                           {need: auth.Ask},
	"GET /v1/users":                                          {need: auth.Ask},
	"POST /v1/users":                                         {need: auth.RunInstallation, audit: "user.create"},
	"GET /v1/users/{user}":                                   {need: auth.Ask},
	"PUT /v1/users/{user}":                                   {need: auth.RunInstallation, audit: "user.update"},
	"DELETE /v1/users/{user}":                                {need: auth.RunInstallation, audit: "user.delete"},
	"GET /v1/organizations":                                  {need: auth.Ask},
	"POST /v1/organizations":                                 {need: auth.Ask, audit: "organization.create"},
	"GET /v1/organizations/{organization}":                   {need: auth.ReadOrganization, on: organization},
	"PUT /v1/organizations/{organization}":                   {need: auth.AdministerOrganization, on: organization, audit: "organization.update"},
	"DELETE /v1/organizations/{organization}":                {need: auth.AdministerOrganization, on: organization, audit: "organization.delete"},
	"GET /v1/organizations/{organization}/members":           {need: auth.ReadOrganization, on: organization},
	"PUT /v1/organizations/{organization}/members/{user}":    {need: auth.AdministerOrganization, on: organization, audit: "member.put"},
	"DELETE /v1/organizations/{organization}/members/{user}": {need: auth.ReadOrganization, on: organization, audit: "member.remove"}, // AdministerOrganization, unless one leaves
	"GET /v1/organizations/{organization}/quota":             {need: auth.ReadOrganization, on: organization},
	"PUT /v1/organizations/{organization}/quota":             {need: auth.RunInstallation, audit: "quota.put"},
	"GET /v1/tokens":                                         {need: auth.Ask},
	"POST /v1/tokens":                                        {need: auth.Ask, audit: "token.create"},
	"DELETE /v1/tokens/{token}":                              {need: auth.Ask, audit: "token.revoke"}, // one's own, or RunInstallation
	"GET /v1/packages":                                       {need: auth.Ask},
	"PUT /v1/packages/{package}":                             {need: auth.RunInstallation, audit: "package.put"},
	"DELETE /v1/packages/{package}":                          {need: auth.RunInstallation, audit: "package.delete"},
	"POST /v1/keys/rotate":                                   {need: auth.RunInstallation, audit: "key.rotate"},
	"GET /v1/manifest.schema.json":                           {need: auth.Ask},
}

// deploying are the actions that deployers may take too.
var deploying = map[string]auth.Permission{"reprovision": auth.Deploy, "revert": auth.Deploy, "converge": auth.Deploy}

var revealing = map[string]auth.Permission{"true": auth.ReadSecrets}

// permission is what a request takes.
func (u rule) permission(r *http.Request) auth.Permission {
	if u.by != nil {
		if p, ok := u.variants[u.by(r)]; ok {
			return p
		}
	}
	return u.need
}

// action is the action that the body asks for. What it read is put back.
func action(r *http.Request) string {
	var doc struct {
		Action string `json:"action"`
	}
	_ = json.Unmarshal(peek(r), &doc) // what is no JSON is refused by whoever reads it next
	return doc.Action
}

func renames(r *http.Request) string {
	var doc struct {
		Name string `json:"name"`
	}
	if _ = json.Unmarshal(peek(r), &doc); doc.Name != "" {
		return "rename"
	}
	return ""
}

// reveals reads the parameter as the handlers do: there is more than one way to
// write true.
func reveals(r *http.Request) string {
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
	caller *auth.Caller
	from   string
	asked  string // method and path
	need   auth.Permission
	rule   rule
	again  *replay     // what to keep the answer under; nil: nobody will ask again
	header http.Header // of the answer; set with again
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
		return &mariposa.Error{Code: mariposa.Forbidden, Message: c.Name + " may not do this" + where(on) + ": " + takes(p, on), Cause: denial{on}}
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

// takes says in words what a permission takes.
func takes(p auth.Permission, on *store.Record) string {
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

// gate finds what a request is about and asks for the permission it takes.
func (s *server) gate(r *http.Request, u rule) error {
	ctx := r.Context()
	var on *store.Record
	var err error
	switch u.on {
	case aProject:
		on, err = s.findProject(ctx, r.PathValue("project"), r.URL.Query().Get("organization"))
	case aTask:
		on, err = s.projectOfTask(ctx, r.PathValue("task"))
	case anInstance:
		on, err = s.projectOfInstance(ctx, r.PathValue("instance"))
	case organization:
		on, err = s.findOrganization(ctx, r.PathValue("organization"))
	case aVolume:
		on, err = s.ownerOfVolume(ctx, r.PathValue("volume"))
	case aNetwork:
		on, err = s.ownerOfNetwork(ctx, r.PathValue("network"))
	case nothing:
	}
	if err != nil {
		return err
	}
	need := u.permission(r)
	asking(ctx).need = need
	return s.require(ctx, need, on)
}

// askAgain asks once more for what the gate asked for, of what a change is really
// about: a body may take its time, and names and roles change meanwhile. On is not
// looked at where the permission is nobody's.
func (s *server) askAgain(ctx context.Context, on *store.Record) error {
	ses := asking(ctx)
	if ses.rule.on == nothing {
		on = nil
	}
	if s.directory.May(ses.caller, ses.need, on) == auth.Hidden {
		return notFound("what this is about is gone")
	}
	return s.require(ctx, ses.need, on)
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
	a.Outcome, a.Reason, a.Object = mariposa.AuditDenied, err.Error()+and(unsaid), ses.asked
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

func and(unsaid int) string {
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
		Action: ses.rule.audit, Outcome: mariposa.AuditDone,
	}
	if c.By != "" {
		a.Actor, a.ActorName, a.For, a.ForName = c.By, c.ByName, c.User, c.Name
	}
	return a
}

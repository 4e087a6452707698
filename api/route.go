package api

import (
	"cmp"
	"context"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

// topic is a heading of the documentation, with its routes.
type topic struct {
	name, description string
	routes            []route
}

// route is one operation of the API: its path, its permission, its request and
// response, and its documentation. A route without a permission rejects all requests. A
// test calls every route with every role.
type route struct {
	pattern              string // method and path
	id                   string // of the operation; unique
	summary, description string

	admitted   callers
	permission auth.Permission
	object     *object                  // object of the permission; nil: none, or the handler checks it after reading the body
	variation  *permissionRule          // nil: all requests need the same permission
	proof      func(*http.Request) bool // which requests a person at the web page must confirm; nil: none
	audit      string                   // empty: the route changes nothing
	isHeavy    bool                     // only a few requests of a user run at once

	body     body
	status   int
	content  content
	register func(*server, huma.Operation)
}

// handle returns a route for a method of the server. It converts errors to those of the
// contract.
func handle[I, O any](pattern, id, summary string, method func(*server, context.Context, *I) (*O, error)) route {
	return route{pattern: pattern, id: id, summary: summary, register: func(s *server, op huma.Operation) {
		op.Metadata[keysOfBody] = bodyKeys(reflect.TypeFor[I]())
		huma.Register(s.huma, op, func(ctx context.Context, in *I) (*O, error) {
			ctx, cancel := context.WithTimeout(ctx, s.RequestTimeout)
			defer cancel()
			out, err := inTurn(ctx, s, routeOf(&op), in, method)
			if err != nil {
				if mariposa.CodeOf(err) == mariposa.Forbidden { // some permissions are checked after the body is read
					s.deny(ctx, err)
				} else {
					s.recordRefusal(ctx, err)
				}
				return nil, s.explain(ctx, err)
			}
			if ses, ok := ctx.Value(sessionKey{}).(*session); ok && ses.Replayed {
				ses.header.Set(replayedHeader, "true")
			}
			return out, nil
		})
	}}
}

// inTurn calls a method. If the route is heavy, it first waits until the caller may run
// another heavy request. A change that is refused because of what exists is tried once more
// if another replica has just changed something: the object of that name may be another one
// by now.
func inTurn[I, O any](ctx context.Context, s *server, rt *route, in *I, method func(*server, context.Context, *I) (*O, error)) (*O, error) {
	if rt.isHeavy {
		done, err := s.usage.beginHeavy(ctx, caller(ctx))
		if err != nil {
			return nil, err
		}
		defer done()
	}
	from := s.Picture.Revision()
	out, err := method(s, ctx, in)
	switch code := mariposa.CodeOf(err); {
	case rt.audit == "":
		return out, err
	case code != mariposa.ResourceNotFound && code != mariposa.Conflict && code != mariposa.Reauthentication:
		return out, err
	}
	switch moved, behind := s.change.CatchUp(ctx, from); {
	case behind != nil:
		return nil, behind
	case moved:
		return method(s, ctx, in)
	}
	return out, err
}

// handlePlain returns a route for a handler that is not a huma operation. Only the token is
// checked before.
func handlePlain(pattern, id, summary string, handler func(*server) http.Handler) route {
	return route{pattern: pattern, id: id, summary: summary, register: func(s *server, op huma.Operation) {
		s.huma.OpenAPI().AddOperation(&op)
		s.mux.Handle(pattern, handler(s))
	}}
}

// describe sets the description, in addition to the summary.
func (rt route) describe(text string) route { rt.description = text; return rt }

// admits sets who can call the route; default: users.
func (rt route) admits(who callers) route { rt.admitted = who; return rt }

// needs sets the permission that callers need.
func (rt route) needs(p auth.Permission) route { rt.permission = p; return rt }

// on sets the object of the permission.
func (rt route) on(o *object) route { rt.object = o; return rt }

// varies sets a rule by which some requests need another permission.
func (rt route) varies(by *permissionRule) route { rt.variation = by; return rt }

// confirmed sets that people at the web page must have proved recently who they are.
func (rt route) confirmed() route {
	rt.proof = func(*http.Request) bool { return true }
	return rt
}

// confirmedToReveal is like confirmed, for requests that reveal secrets.
func (rt route) confirmedToReveal() route {
	rt.proof = func(r *http.Request) bool { return requestedReveal(r) == "true" }
	return rt
}

// audits sets the action of the route in the audit log.
func (rt route) audits(name string) route { rt.audit = name; return rt }

// heavy marks a route that takes much time or memory. Only a few such requests of one
// user run at once; the others wait.
func (rt route) heavy() route { rt.isHeavy = true; return rt }

// takes sets the kind of request body; default: validated JSON.
func (rt route) takes(b body) route { rt.body = b; return rt }

// answers sets the status of a successful response; default: 200.
func (rt route) answers(status int) route { rt.status = status; return rt }

// serves sets the content of a successful response, if the type of the method does not
// define it.
func (rt route) serves(c content) route { rt.content = c; return rt }

// callers defines who can call a route.
type callers uint8

const (
	users    callers = iota // with a token
	agents                  // with a join token or the key of a node
	replicas                // other replicas, which prove that they have the installation's key
	anybody                 // without a token
)

// object is a kind of object in a path. Find returns the project or organization that it
// belongs to, on which the permission is checked.
type object struct {
	name string // of the path's parameter
	find func(*server, *http.Request, string) (*store.Record, error)
}

var (
	projectInPath = &object{"project", func(s *server, r *http.Request, ref string) (*store.Record, error) {
		p, err := s.findProject(r.Context(), ref, r.URL.Query().Get("organization"))
		return p.Record(), err
	}}
	organizationInPath = inPath("organization", (*server).findOrganization)
	taskInPath         = inPath("task", (*server).projectOfTask)
	instanceInPath     = inPath("instance", (*server).projectOfInstance)
	volumeInPath       = inPath("volume", (*server).ownerOfVolume)
	networkInPath      = inPath("network", (*server).ownerOfNetwork)
)

func inPath[R store.Any](name string, find func(*server, context.Context, string) (R, error)) *object {
	return &object{name, func(s *server, r *http.Request, ref string) (*store.Record, error) {
		on, err := find(s, r.Context(), ref)
		return on.Record(), err
	}}
}

// permissionRule selects another permission by the content of a request.
type permissionRule struct {
	word        func(*http.Request) string
	permissions map[string]auth.Permission // by word; default: the permission of the route
	attempt     string                     // for routes that change nothing: the action of such requests in the audit log
}

var (
	byManifest = &permissionRule{requestedManifest, map[string]auth.Permission{"manifest": auth.Deploy}, actionPlan}
	byAction   = &permissionRule{requestedAction, map[string]auth.Permission{"reprovision": auth.Deploy, "revert": auth.Deploy, "converge": auth.Deploy}, ""}
	byRename   = &permissionRule{requestedRename, map[string]auth.Permission{"rename": auth.Administer}, ""}
	byReveal   = &permissionRule{requestedReveal, map[string]auth.Permission{"true": auth.ReadSecrets}, actionReveal}
)

// Actions in the audit log for requests that change nothing.
const (
	actionPlan   = "project.plan"
	actionReveal = "secret.read"
	actionRead   = "read"
)

// permissionFor returns the permission that a request needs, and its action in the
// audit log if it is denied.
func (rt *route) permissionFor(r *http.Request) (p auth.Permission, action string) {
	if rt.variation != nil {
		if p, ok := rt.variation.permissions[rt.variation.word(r)]; ok {
			return p, cmp.Or(rt.audit, rt.variation.attempt, actionRead)
		}
	}
	return rt.permission, cmp.Or(rt.audit, actionRead)
}

// body is a kind of request body. The zero value is JSON that is validated before the
// handler runs, or no body at all.
type body struct {
	limit     int64 // in bytes; maxBody if zero
	text      bool  // not necessarily JSON; validated by the handler
	unchecked bool  // JSON that is validated by the handler
	optional  bool
	describe  func(huma.Registry) *huma.RequestBody // nil: the handler's type describes it
}

// The limits of text bodies are slightly above the allowed size, so that the parser reports
// which part is too long.
var (
	manifestBody      = body{limit: manifest.MaxBytes + 2, text: true, describe: describeManifest}
	optionalManifest  = body{limit: manifest.MaxBytes + 2, text: true, describe: describeManifest, optional: true}
	newProjectBody    = body{limit: maxWrapped, text: true, describe: describeNewProject}
	wrappedManifest   = body{limit: maxWrapped}
	definitionBody    = body{text: true}
	metadataBody      = body{limit: manifest.MaxValues + 2, text: true}
	metadataValueBody = body{limit: 6*manifest.MaxValue + 1024, text: true} // JSON may escape every byte
	uncheckedJSON     = body{unchecked: true}                               // null and absent have different meanings
)

// describeManifest documents a request body with a manifest.
func describeManifest(huma.Registry) *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/yaml": {Schema: &huma.Schema{Type: huma.TypeString, Description: "A manifest."}},
		"application/json": {Schema: &huma.Schema{Type: huma.TypeObject, Description: "A manifest."}},
	}}
}

// describeNewProject documents a manifest, or a JSON document that contains one.
func describeNewProject(schemas huma.Registry) *huma.RequestBody {
	b := describeManifest(schemas)
	b.Content["application/json"].Schema = schemas.Schema(reflect.TypeFor[contract.NewProject](), true, "")
	return b
}

// content maps the media types of a response to their documents, if any.
type content map[string]reflect.Type

var (
	yamlContent = content{"application/yaml": nil}
	textContent = content{"text/plain": nil}
)

// responses documents the response if the handler's type does not.
func (rt *route) responses(schemas huma.Registry) map[string]*huma.Response {
	if rt.status == http.StatusSwitchingProtocols {
		return map[string]*huma.Response{strconv.Itoa(rt.status): {Description: http.StatusText(rt.status)}}
	}
	if rt.content == nil {
		return nil
	}
	media := map[string]*huma.MediaType{}
	for name, document := range rt.content {
		media[name] = &huma.MediaType{}
		if document != nil {
			media[name].Schema = schemas.Schema(document, true, "")
		}
	}
	return map[string]*huma.Response{"200": {Description: "OK", Content: media}}
}

// routeKey is the metadata key of an operation's route.
const routeKey = "route"

func routeOf(op *huma.Operation) *route { return op.Metadata[routeKey].(*route) }

// add registers a route.
func (s *server) add(t topic, rt *route) {
	method, path, _ := strings.Cut(rt.pattern, " ")
	schemas := s.huma.OpenAPI().Components.Schemas
	op := huma.Operation{
		Method: method, Path: path, OperationID: rt.id, Summary: rt.summary, Description: rt.description, Tags: []string{t.name},
		MaxBodyBytes: cmp.Or(rt.body.limit, maxBody), BodyReadTimeout: s.RequestTimeout, SkipValidateBody: rt.body.text || rt.body.unchecked,
		Responses: rt.responses(schemas), Metadata: map[string]any{routeKey: rt},
	}
	if rt.body.describe != nil {
		op.RequestBody = rt.body.describe(schemas)
	}
	if rt.admitted != anybody {
		op.Security = []map[string][]string{{"token": {}}}
	}
	if rt.status != http.StatusSwitchingProtocols { // huma has no status for a hijacked connection
		op.DefaultStatus = rt.status
	}
	s.admitted[path] = rt.admitted
	rt.register(s, op)
	if rt.body.optional {
		op.RequestBody.Required = false // registration marks raw bodies as required
	}
}

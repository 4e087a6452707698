package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// yamlTypes are the content types that mean YAML. Without any, YAML is assumed:
// JSON is YAML too.
var yamlTypes = []string{"", "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", curlType}

// curlType is what curl says of a body when nobody tells it what it sends.
const curlType = "application/x-www-form-urlencoded"

// SubmissionQuery are the parameters of a new manifest.
type SubmissionQuery struct {
	Previous string `query:"previous" doc:"the newest version that the caller knows, by hash or number"`
	Force    bool   `query:"force" doc:"whatever the newest version is"`
	Rolling  string `query:"rolling" doc:"how many instances at a time: a number or a percentage"`
	Canary   string `query:"canary" doc:"hold after so many instances: a number or a percentage"`
	Message  string `query:"message" doc:"for those who read the versions later" maxLength:"1000"`
}

func (q SubmissionQuery) submission() (*submission, error) {
	rolling, err := parseAmount("rolling", q.Rolling)
	if err != nil {
		return nil, err
	}
	canary, err := parseAmount("canary", q.Canary)
	return &submission{previous: q.Previous, force: q.Force, rolling: rolling, canary: canary, message: q.Message}, err
}

// submission is a manifest on its way in.
type submission struct {
	bytes    []byte
	json     bool
	parsed   *manifest.Project
	values   []byte // a document of metadata; nil: none
	message  string
	rolling  mariposa.Amount
	canary   mariposa.Amount
	previous string
	force    bool
}

// maxMessage bounds what is said of a version.
const maxMessage = 4000

// take copies a body: it is only lent.
func (m *submission) take(contentType string, body []byte) {
	m.bytes, m.json = bytes.Clone(body), mediaType(contentType) == "application/json"
}

// unwrap takes a manifest out of a JSON document: as an object, or as YAML in a
// string.
func (m *submission) unwrap(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return &mariposa.Error{
			Code: mariposa.InvalidArgument, Message: "the manifest is missing",
			Faults: []mariposa.Fault{{Field: "manifest", Code: mariposa.FaultMissing, Message: "is missing"}},
		}
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		m.bytes, m.json = []byte(text), false
		return nil
	}
	m.bytes, m.json = bytes.Clone(raw), true
	return nil
}

var errEmpty = invalid("the manifest is empty: it begins with services:")

func (m *submission) checkMessage() error {
	if len(m.message) > maxMessage || !isText(m.message) {
		return invalid("message must be text of at most %d bytes", maxMessage)
	}
	return nil
}

func (m *submission) check() (err error) {
	if err := m.checkMessage(); err != nil {
		return err
	}
	if len(bytes.TrimSpace(m.bytes)) == 0 {
		return errEmpty
	}
	m.parsed, err = manifest.Parse(m.bytes)
	return err
}

func mediaType(header string) string {
	kind, _, err := mime.ParseMediaType(header)
	if err != nil {
		return strings.ToLower(strings.TrimSpace(header))
	}
	return kind
}

// checkManifestType refuses bodies that are neither YAML nor JSON.
func checkManifestType(header string) error {
	if kind := mediaType(header); kind != "application/json" && !slices.Contains(yamlTypes, kind) {
		return invalid("a manifest is sent with Content-Type: application/yaml or application/json, not %q", kind)
	}
	return nil
}

// readWrapped reads a JSON document with a manifest in it. A JSON body with the
// name in the query may also be the manifest itself: then it has no such key.
func readWrapped(contentType string, body []byte, name string) (doc contract.NewProject, wrapped bool, err error) {
	if err := checkManifestType(contentType); err != nil {
		return doc, false, err
	}
	kind, inside := mediaType(contentType), hasManifest(body)
	if kind != "application/json" && !(kind == curlType && inside) || name != "" && !inside {
		return doc, false, nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return doc, true, jsonFault(err)
	}
	if d.More() {
		return doc, true, invalid("there is more than one JSON document in the body")
	}
	return doc, true, nil
}

// hasManifest reports whether a body is a JSON object with a manifest in it. A
// body that is no JSON has none; the manifest's own reader says with a line what
// is wrong with it.
func hasManifest(body []byte) bool { return hasKey(body, "manifest") }

// hasKey reports whether a body is a JSON object with a key.
func hasKey(body []byte, key string) bool {
	var keys map[string]json.RawMessage
	return json.Unmarshal(body, &keys) == nil && keys[key] != nil
}

func jsonFault(err error) error {
	f := mariposa.Fault{Code: mariposa.FaultSyntax, Message: strings.TrimPrefix(err.Error(), "json: ")}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		f.Field, f.Code, f.Message = wrong.Field, mariposa.FaultInvalid, "must not be a "+wrong.Value
	} else if name, unknown := strings.CutPrefix(f.Message, "unknown field "); unknown {
		f.Field, f.Code, f.Message = strings.Trim(name, `"`), mariposa.FaultUnknown, "unknown field"
	}
	return &mariposa.Error{Code: mariposa.InvalidArgument, Message: "the request is not valid: " + f.String(), Faults: []mariposa.Fault{f}}
}

type manifestOutput struct {
	ContentType string `header:"Content-Type"`
	Version     string `header:"X-Mariposa-Version" doc:"the version that this is"`
	Body        []byte
}

func (s *server) getManifest(ctx context.Context, in *OfProject) (*manifestOutput, error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	found, err := s.Store.Get(ctx, mariposa.KindVersion, mariposa.VersionID(r.ID, r.Spec.(*mariposa.ProjectSpec).Number))
	if err != nil {
		return nil, err
	}
	v := found.Spec.(*mariposa.VersionSpec)
	return &manifestOutput{ContentType: "application/yaml", Version: v.Version, Body: yamlOf(v)}, nil
}

type putManifestInput struct {
	OfProject
	SubmissionQuery
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/yaml"`
}

func (s *server) putManifest(ctx context.Context, in *putManifestInput) (*document[contract.Changed], error) {
	if err := checkManifestType(in.ContentType); err != nil {
		return nil, err
	}
	sub, err := in.submission()
	if err != nil {
		return nil, err
	}
	sub.take(in.ContentType, in.RawBody)
	if err := sub.check(); err != nil {
		return nil, err
	}
	return s.change(ctx, in.OfProject, func(e *edit) (*change, error) {
		submitted, err := e.submit(sub)
		if err != nil || !submitted {
			return &e.change, err
		}
		return e.done(e.taskReason())
	})
}

// submit adds a version and the task that brings it into force. The bytes of
// the newest version again are no change, unless its task was dropped or it was
// rolled back: then they are asked for anew.
func (e *edit) submit(sub *submission) (bool, error) {
	if !sub.force {
		if err := e.basedOn(sub.previous, sub.values != nil); err != nil {
			return false, err
		}
	}
	d := draft{cause: mariposa.CauseManifest, bytes: sub.bytes, json: sub.json, parsed: sub.parsed, message: sub.message}
	if sub.values != nil {
		values, err := e.imported(sub.values)
		if err != nil {
			return false, err
		}
		d.values = values
	}
	if d.parsed == nil {
		d.cause = mariposa.CauseMetadata
	}
	return e.bring(d, mariposa.Patch{Rolling: sub.rolling, Canary: sub.canary})
}

// bring makes a version of a draft and adds the task that brings it into force.
// Other values alone need none, unless services are to take them up at once.
func (e *edit) bring(d draft, p mariposa.Patch) (bool, error) {
	before, first := e.spec.Number, e.nothing()
	m, err := e.makeOrRenew(d)
	if err != nil || m == nil {
		return false, err
	}
	if d.cause == mariposa.CauseMetadata {
		return true, e.takeUp(d, m, p)
	}
	said := "was submitted"
	if e.spec.Number == before {
		said = "was submitted again"
	}
	p.Number = e.spec.Number
	t := mariposa.TaskSpec{
		Component: string(d.cause), Version: e.spec.Version, Origin: mariposa.OriginUser, Supersedes: true,
		Reason: mariposa.Asked(firstOf(d.message, "version "+strconv.Itoa(e.spec.Number)+" "+said)), Patch: p,
	}
	if first { // as when it was created
		t.Task, t.Patch.Goal, t.Supersedes = mariposa.TaskStart, mariposa.GoalStarted, false
	} else if t, err = e.seesTo(m, t); err != nil {
		return false, err
	}
	return true, e.admit(&t)
}

// takeUp adds a task for the services that take other values up at once. Where the
// queue has no place for one, the planner brings the values into force by itself.
func (e *edit) takeUp(d draft, m *made, p mariposa.Patch) error {
	if len(m.moved) == 0 {
		return nil
	}
	services, err := e.brings(m)
	if err != nil {
		return err
	}
	p.Number = e.spec.Number
	err = e.admit(&mariposa.TaskSpec{
		Task: mariposa.TaskReprovision, Component: string(d.cause), Services: services, Version: e.spec.Version,
		Reason: mariposa.Asked("metadata changed: " + strings.Join(m.keys, ", ")),
		Patch:  p,
	})
	if mariposa.CodeOf(err) == mariposa.Conflict {
		return nil
	}
	return err
}

// basedOn refuses a change that is not based on the newest version. Counting goes on
// under one number, so where values change too, the number of such a version is not
// enough.
func (e *edit) basedOn(previous string, values bool) error {
	if !isVersion(previous, e.spec.Version, e.spec.Number) {
		return e.stale(previous)
	}
	if !values || (len(previous) >= 7 && strings.HasPrefix(e.spec.Version, previous)) {
		return nil
	}
	newest, err := e.newest()
	if err != nil || newest == nil || newest.Spec.Counter == "" {
		return err
	}
	return conflict("version %d of %s counts %s and may change under its number: name it by its hash, ?previous=%s",
		e.spec.Number, e.spec.Name, newest.Spec.Counter, e.spec.Version)
}

func (e *edit) stale(previous string) error {
	is := "the newest version of " + e.spec.Name + " is " + numbered(e.spec.Version, e.spec.Number)
	if previous == "" {
		return conflict("%s: say which version the change is based on with ?previous=, or pass ?force=true", is)
	}
	return conflict("%s, not %s: look at what changed, then try again with ?previous=%d", is, previous, e.spec.Number)
}

// unwrapValues takes metadata out of a JSON document: as an object, or as YAML in a
// string.
func (m *submission) unwrapValues(raw json.RawMessage) {
	if len(raw) == 0 || string(raw) == "null" {
		return
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		m.values = []byte(text)
		return
	}
	m.values = yamlOfValues(raw)
}

// isVersion reports whether a reference means a version, by number, hash or the
// beginning of the hash.
func isVersion(ref, sha string, number int) bool {
	return ref == strconv.Itoa(number) || (len(ref) >= 7 && strings.HasPrefix(sha, ref))
}

// serviceIDs names the services of a manifest. An id follows from the project
// and the name, and is kept when a service goes, so that one that comes back is
// the same.
func serviceIDs(project string, old map[string]string, m *manifest.Project) map[string]string {
	ids := make(map[string]string, len(old)+len(m.Services))
	for name, id := range old {
		ids[name] = id
	}
	space := uuid.NewSHA1(uuid.NameSpaceOID, []byte(project))
	for _, svc := range m.Services {
		if ids[svc.Name] == "" {
			ids[svc.Name] = uuid.NewSHA1(space, []byte(svc.Name)).String()
		}
	}
	return ids
}

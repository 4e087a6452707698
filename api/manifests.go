package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"slices"
	"strings"

	"mariposa"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/store"
)

// yamlTypes are the content types for YAML. The default is YAML, which includes JSON.
var yamlTypes = []string{"", "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", curlType}

// curlType is curl's default content type for a body.
const curlType = "application/x-www-form-urlencoded"

// SubmissionQuery are the parameters of a new manifest.
type SubmissionQuery struct {
	Previous string `query:"previous" doc:"hash, number or tag of the newest version that the caller knows; the change is rejected if there is a newer one"`
	Force    bool   `query:"force" doc:"apply the change whatever the newest version is"`
	Rolling  string `query:"rolling" doc:"how many instances to replace at a time: a number or a percentage"`
	Canary   string `query:"canary" doc:"hold the rollout after this many instances: a number or a percentage"`
	Message  string `query:"message" doc:"a message for the version history" maxLength:"1000"`
}

func (q SubmissionQuery) submission() (*change.Submission, error) {
	rolling, err := parseAmount("rolling", q.Rolling)
	if err != nil {
		return nil, err
	}
	canary, err := parseAmount("canary", q.Canary)
	return &change.Submission{Previous: q.Previous, Force: q.Force, Rolling: rolling, Canary: canary, Message: q.Message}, err
}

// setManifest sets the manifest of a submission. It copies the body, whose buffer is
// reused.
func setManifest(sub *change.Submission, contentType string, body []byte) {
	sub.Manifest, sub.JSON = bytes.Clone(body), mediaType(contentType) == "application/json"
}

// unwrapManifest sets the manifest of a submission from a JSON document: an object, or
// YAML in a string.
func unwrapManifest(sub *change.Submission, raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return &mariposa.Error{
			Code: mariposa.InvalidArgument, Message: "the manifest is missing",
			Faults: []mariposa.Fault{{Field: "manifest", Code: mariposa.FaultMissing, Message: "is missing"}},
		}
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		sub.Manifest, sub.JSON = []byte(text), false
		return nil
	}
	sub.Manifest, sub.JSON = bytes.Clone(raw), true
	return nil
}

func mediaType(header string) string {
	kind, _, err := mime.ParseMediaType(header)
	if err != nil {
		return strings.ToLower(strings.TrimSpace(header))
	}
	return kind
}

// checkManifestType rejects bodies that are neither YAML nor JSON.
func checkManifestType(header string) error {
	if kind := mediaType(header); kind != "application/json" && !slices.Contains(yamlTypes, kind) {
		return invalid("unsupported Content-Type %q: send a manifest as application/yaml or application/json", kind)
	}
	return nil
}

// readWrapped reads a JSON document that contains a manifest. If the name is in the
// query, a JSON body without a manifest key is the manifest itself.
func readWrapped(contentType string, body []byte, name string) (doc contract.NewProject, wrapped bool, err error) {
	if err := checkManifestType(contentType); err != nil {
		return doc, false, err
	}
	kind, inside := mediaType(contentType), hasManifest(body)
	if kind != "application/json" && !(kind == curlType && inside) || name != "" && !inside {
		return doc, false, nil
	}
	if err := unmarshalExact(body, &doc); err != nil {
		return doc, true, jsonFault(err)
	}
	return doc, true, nil
}

// hasManifest reports whether a body is a JSON object that contains a manifest. For invalid
// JSON it returns false: the manifest parser then reports the line of the error.
func hasManifest(body []byte) bool { return hasKey(body, "manifest") }

// hasKey reports whether a body is a JSON object with a key.
func hasKey(body []byte, key string) bool {
	var keys map[string]json.RawMessage
	return json.Unmarshal(body, &keys) == nil && keys[key] != nil
}

func jsonFault(err error) error {
	f := mariposa.Fault{Code: mariposa.FaultSyntax, Message: strings.TrimPrefix(err.Error(), "json: ")}
	var wrong *json.UnmarshalTypeError
	var unknown errUnknownKey
	var repeated errRepeatedKey
	var garbled errNotText
	if errors.Is(err, errMoreJSON) {
		return invalid("%s", err.Error())
	}
	if errors.As(err, &wrong) {
		f.Field, f.Code, f.Message = wrong.Field, mariposa.FaultInvalid, "must not be a "+wrong.Value
	} else if errors.As(err, &unknown) {
		f.Field, f.Code, f.Message = unknown.key, mariposa.FaultUnknown, unknownKey(unknown.meant)
	} else if errors.As(err, &repeated) {
		f.Field, f.Code, f.Message = string(repeated), mariposa.FaultInvalid, strings.TrimSpace(repeatedKey)
	} else if errors.As(err, &garbled) {
		f.Field, f.Code, f.Message = cmp.Or(string(garbled), "body"), mariposa.FaultInvalid, strings.TrimSpace(notText)
	} else if name, unknown := strings.CutPrefix(f.Message, "unknown field "); unknown {
		f.Field, f.Code, f.Message = strings.Trim(name, `"`), mariposa.FaultUnknown, "unknown field"
	}
	return &mariposa.Error{Code: mariposa.InvalidArgument, Message: "invalid request: " + f.String(), Faults: []mariposa.Fault{f}}
}

type manifestOutput struct {
	ContentType string `header:"Content-Type"`
	Version     string `header:"X-Mariposa-Version" doc:"hash of the version"`
	Body        []byte
}

func (s *server) getManifest(ctx context.Context, in *OfProject) (*manifestOutput, error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	found, err := s.Store.Get(ctx, mariposa.KindVersion, mariposa.VersionID(r.ID, r.Spec().Number))
	if err != nil {
		return nil, err
	}
	v := (*store.Version)(&found).Spec()
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
	setManifest(sub, in.ContentType, in.RawBody)
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.UpdateProject(ctx, request(ctx), r.ID, "", sub))
}

// unwrapValues sets the metadata of a submission from a JSON document: an object, or
// YAML in a string.
func unwrapValues(sub *change.Submission, raw json.RawMessage) {
	if len(raw) == 0 || string(raw) == "null" {
		return
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		sub.Metadata = []byte(text)
		return
	}
	sub.Metadata = yamlOfValues(raw)
}

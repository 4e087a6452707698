package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

type getMetadataInput struct {
	OfProject
	Reveal bool   `query:"reveal" doc:"show secrets; requires permission to read them"`
	Accept string `header:"Accept" hidden:"true"`
}

func (s *server) getMetadata(ctx context.Context, in *getMetadataInput) (*huma.StreamResponse, error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	r, values, declared, err := s.newestValues(ctx, r)
	if err != nil {
		return nil, err
	}
	spec := r.Spec()
	s.recordReveal(ctx, r, in.Reveal, "all")
	if accepts([]string{in.Accept}, "application/json") {
		doc := contract.Metadata{Version: spec.Version, Number: spec.Number, Keys: keyDocs(declared, values, spec.Protected, in.Reveal), Missing: neverNil(declared.Missing(values))}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			hc.SetHeader("Content-Type", "application/json")
			_ = huma.DefaultJSONFormat.Marshal(hc.BodyWriter(), doc) // the client may be gone
		}}, nil
	}
	text := values.Masked(manifest.Mask)
	if in.Reveal && values != nil {
		text = values.Document
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		hc.SetHeader("Content-Type", "application/yaml")
		hc.SetHeader("Mariposa-Version", spec.Version)
		_, _ = hc.BodyWriter().Write(text) // likewise
	}}, nil
}

// newestValues returns the values of a project, the manifest that declares them, and the
// project that they belong to. If they were replaced and deleted since the project was read,
// it waits until this server shows the newer ones: no later answer is older than this one.
func (s *server) newestValues(ctx context.Context, r *store.Project) (*store.Project, *manifest.Values, *manifest.Project, error) {
	for {
		values, declared, err := s.Cache.ValuesOf(ctx, r.ID, r.Spec())
		if !errors.Is(err, store.ErrNotFound) {
			return r, values, declared, err
		}
		stored, gone := s.Store.Get(ctx, mariposa.KindProject, r.ID)
		if gone != nil || stored.Spec.(*mariposa.ProjectSpec).Metadata == r.Spec().Metadata {
			return nil, nil, nil, err
		}
		s.await(ctx, stored.Revision)
		next := s.Picture.Projects.Get(r.ID)
		switch {
		case next == nil:
			return nil, nil, nil, notFound("project %s was deleted", r.Spec().Name)
		case next.Spec().Metadata == r.Spec().Metadata:
			return nil, nil, nil, mariposa.Errorf(mariposa.Unavailable, "the metadata of project %s has just changed, and this server does not know the newest state yet: try again shortly", r.Spec().Name)
		}
		r = next
	}
}

// recordReveal audits that secrets were shown.
func (s *server) recordReveal(ctx context.Context, r *store.Project, reveal bool, key string) {
	if !reveal {
		return
	}
	a := sessionOf(ctx).Audit()
	spec := r.Spec()
	a.Action, a.Kind, a.ObjectName, a.Project, a.ProjectName = actionReveal, string(mariposa.KindMetadata), key, r.ID, spec.Name
	a.Organization, a.Version, a.Number = spec.Organization, spec.Version, spec.Number
	s.recordAudit(ctx, a)
}

// keyDocs returns every key that is set or declared.
func keyDocs(p *manifest.Project, values *manifest.Values, protected []string, reveal bool) []contract.MetadataKey {
	docs := []contract.MetadataKey{}
	seen := map[string]bool{}
	for _, m := range p.Metadata {
		seen[m.Name] = true
		docs = append(docs, keyDoc(p, values, m.Name, protected, reveal))
	}
	for _, key := range values.Keys() {
		if !seen[key] {
			docs = append(docs, keyDoc(p, values, key, protected, reveal))
		}
	}
	return docs
}

func keyDoc(p *manifest.Project, values *manifest.Values, key string, protected []string, reveal bool) contract.MetadataKey {
	value, set := values.Get(key)
	m, declared := p.Declared(key)
	doc := contract.MetadataKey{
		Key: key, Value: value.Text, Set: set, Secret: value.Secret || m.Secret, Changed: optionalTime(value.Changed), Declared: declared,
		Required: m.Required, Description: m.Description, UsedBy: []string{}, Protected: slices.Contains(protected, key),
		Type: m.Type, Pattern: m.Pattern, Choices: m.Choices, Generate: m.Generate,
	}
	if m.Default != nil {
		doc.Default = *m.Default
	}
	if set {
		doc.CAS = strconv.FormatInt(value.CAS, 10)
	}
	if doc.Secret && set && !reveal {
		doc.Value = manifest.Mask
	}
	for _, svc := range p.Services {
		if slices.Contains(p.Uses(svc.Name), key) || slices.Contains(p.UsesLive(svc.Name), key) {
			doc.UsedBy = append(doc.UsedBy, svc.Name)
		}
	}
	return doc
}

type putMetadataInput struct {
	OfProject
	Previous    string `query:"previous" doc:"hash, number or tag of the newest version that the caller knows; the change is rejected if there is a newer one. Default: no check"`
	Force       bool   `query:"force" doc:"apply the change whatever the newest version is"`
	Rolling     string `query:"rolling" doc:"how many instances to update at a time if services apply new values"`
	Message     string `query:"message" doc:"a message for the version history" maxLength:"1000"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/yaml"`
}

func (s *server) putMetadata(ctx context.Context, in *putMetadataInput) (*document[contract.Changed], error) {
	if err := checkManifestType(in.ContentType); err != nil {
		return nil, err
	}
	rolling, err := parseAmount("rolling", in.Rolling)
	if err != nil {
		return nil, err
	}
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.UpdateProject(ctx, request(ctx), r.ID, "", &change.Submission{
		Metadata: bytes.Clone(in.RawBody), Message: in.Message, Rolling: rolling, Previous: in.Previous, Force: in.Force || in.Previous == "",
	}))
}

// OfKey are the parameters of paths to a metadata key.
type OfKey struct {
	OfProject
	Key string `path:"key" maxLength:"255"`
	CAS string `query:"cas" doc:"apply the change only if this is still the cas of the key; 0: only if the key is not set" maxLength:"20"`
}

// find finds the project, and returns the key with the cas that the caller expects.
func (in *OfKey) find(ctx context.Context, s *server) (project string, key change.Key, err error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return "", key, err
	}
	return r.ID, change.Key{Name: in.Key, CAS: in.CAS}, nil
}

type getKeyInput struct {
	OfProject
	Key    string `path:"key" maxLength:"255"`
	Reveal bool   `query:"reveal" doc:"show the value of a secret; requires permission to read it"`
}

func (s *server) getKey(ctx context.Context, in *getKeyInput) (*document[contract.MetadataKey], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	r, values, declared, err := s.newestValues(ctx, r)
	if err != nil {
		return nil, err
	}
	doc := keyDoc(declared, values, in.Key, r.Spec().Protected, in.Reveal)
	if !doc.Set && !doc.Declared {
		return nil, notFound("project %s has no metadata key %q", r.Spec().Name, shortenText(in.Key))
	}
	s.recordReveal(ctx, r, in.Reveal && doc.Secret, in.Key)
	return answer(doc)
}

type putKeyInput struct {
	OfKey
	Secret      bool   `query:"secret" doc:"mark the key as a secret"`
	Message     string `query:"message" maxLength:"1000"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (s *server) putKey(ctx context.Context, in *putKeyInput) (*document[contract.Changed], error) {
	text, secret, err := in.value()
	if err != nil {
		return nil, err
	}
	project, key, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetKey(ctx, request(ctx), project, key, text, secret || in.Secret, in.Message))
}

// value returns the value of a key: plain text, or JSON.
func (in *putKeyInput) value() (text string, secret bool, err error) {
	kind := mediaType(in.ContentType)
	if kind != "application/json" && !(kind == curlType && hasKey(in.RawBody, "value")) {
		return string(in.RawBody), false, nil
	}
	var doc contract.MetadataValue
	err = unmarshalExact(in.RawBody, &doc)
	if garbled := errNotText(""); errors.As(err, &garbled) {
		return "", false, manifest.NotText(in.Key)
	}
	if wrong := new(errUnknownKey); errors.As(err, wrong) {
		return "", false, jsonFault(err)
	}
	if err != nil || len(doc.Value) == 0 {
		doc = contract.MetadataValue{Value: in.RawBody} // a bare JSON value
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(doc.Value))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return "", false, invalid(`the request body must be JSON such as {"value": "…"}, or plain text with Content-Type: text/plain`)
	}
	switch v := value.(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
	case bool:
		text = strconv.FormatBool(v)
	default:
		return "", false, invalid("value must be a string, a number or a boolean")
	}
	return text, doc.Secret != nil && *doc.Secret, nil
}

type deleteKeyInput struct {
	OfKey
}

func (s *server) deleteKey(ctx context.Context, in *deleteKeyInput) (*document[contract.Changed], error) {
	project, key, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return changed(s.change.DeleteKey(ctx, request(ctx), project, key))
}

type countKeyInput struct {
	OfKey
	By int64 `query:"by" default:"1" minimum:"0" maximum:"1000000000000"`
}

func (s *server) increment(ctx context.Context, in *countKeyInput) (*document[contract.Changed], error) {
	return s.addToKey(ctx, in, in.By)
}

func (s *server) decrement(ctx context.Context, in *countKeyInput) (*document[contract.Changed], error) {
	return s.addToKey(ctx, in, -in.By)
}

func (s *server) addToKey(ctx context.Context, in *countKeyInput, by int64) (*document[contract.Changed], error) {
	project, key, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return changed(s.change.CountKey(ctx, request(ctx), project, key, by))
}

// yamlOfValues converts a JSON object of values to YAML, one key per line.
func yamlOfValues(raw json.RawMessage) []byte {
	var pretty bytes.Buffer
	if json.Indent(&pretty, raw, "", "  ") != nil {
		return raw // the parser reports the error
	}
	return pretty.Bytes()
}

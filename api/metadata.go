package api

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

type getMetadataInput struct {
	OfProject
	Reveal bool   `query:"reveal" doc:"show secrets, to who may read them"`
	Accept string `header:"Accept" hidden:"true"`
}

func (s *server) getMetadata(ctx context.Context, in *getMetadataInput) (*huma.StreamResponse, error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	spec := r.Spec.(*mariposa.ProjectSpec)
	values, declared, err := s.valuesOf(ctx, r)
	if err != nil {
		return nil, err
	}
	s.revealed(ctx, r, in.Reveal, "all")
	if strings.Contains(in.Accept, "application/json") {
		doc := contract.Metadata{Version: spec.Version, Number: spec.Number, Keys: keyDocs(declared, values, in.Reveal), Missing: list(declared.Missing(values))}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			hc.SetHeader("Content-Type", "application/json")
			_ = huma.DefaultJSONFormat.Marshal(hc.BodyWriter(), doc) // whoever asked may be gone
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

// valuesOf are a project's newest values, and the manifest that speaks of them.
func (s *server) valuesOf(ctx context.Context, r *store.Record) (*manifest.Values, *manifest.Project, error) {
	spec := r.Spec.(*mariposa.ProjectSpec)
	values, err := s.Shelf.Values(ctx, r.ID, spec.Metadata)
	if err != nil {
		return nil, nil, err
	}
	if v := s.viewer(ctx).version(r.ID, spec.Number); v != nil {
		return values.Marked(v.Manifest), v.Manifest, nil
	}
	return values, &manifest.Project{}, nil
}

// revealed notes that secrets were shown.
func (s *server) revealed(ctx context.Context, r *store.Record, reveal bool, key string) {
	if !reveal {
		return
	}
	a := s.audited(ctx)
	spec := r.Spec.(*mariposa.ProjectSpec)
	a.Action, a.Kind, a.ObjectName, a.Project, a.ProjectName = "secret.read", string(mariposa.KindMetadata), key, r.ID, spec.Name
	a.Organization, a.Version, a.Number = spec.Organization, spec.Version, spec.Number
	s.note(ctx, a)
}

// keyDocs shows every key that is set or declared.
func keyDocs(p *manifest.Project, values *manifest.Values, reveal bool) []contract.MetadataKey {
	docs := []contract.MetadataKey{}
	seen := map[string]bool{}
	for _, m := range p.Metadata {
		seen[m.Name] = true
		docs = append(docs, keyDoc(p, values, m.Name, reveal))
	}
	for _, key := range values.Keys() {
		if !seen[key] {
			docs = append(docs, keyDoc(p, values, key, reveal))
		}
	}
	return docs
}

func keyDoc(p *manifest.Project, values *manifest.Values, key string, reveal bool) contract.MetadataKey {
	value, set := values.Get(key)
	m, declared := p.Declared(key)
	doc := contract.MetadataKey{
		Key: key, Value: value.Text, Set: set, Secret: value.Secret || m.Secret, Changed: moment(value.Changed), Declared: declared,
		Required: m.Required, Description: m.Description, UsedBy: []string{},
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
	Previous    string `query:"previous" doc:"the newest version that the caller knows, by hash or number; any if left out"`
	Force       bool   `query:"force" doc:"whatever the newest version is"`
	Rolling     string `query:"rolling" doc:"how many instances at a time, where services take other values up"`
	Message     string `query:"message" doc:"for those who read the versions later" maxLength:"1000"`
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
	doc := bytes.Clone(in.RawBody)
	return s.changeValues(ctx, in.OfProject, in.Message, rolling, func(e *edit, old *manifest.Values, _ *manifest.Project) (*manifest.Values, error) {
		if in.Previous != "" && !in.Force {
			if err := e.basedOn(in.Previous, true); err != nil {
				return nil, err
			}
		}
		return e.imported(doc)
	})
}

// imported are the values after a whole document took the place of the old one.
func (e *edit) imported(doc []byte) (*manifest.Values, error) {
	old, err := e.s.Shelf.Values(e.ctx, e.record.ID, e.spec.Metadata)
	if err != nil {
		return nil, err
	}
	return old.Import(doc, e.now)
}

// changeValues changes a project's metadata: build makes the new values of the old.
func (s *server) changeValues(ctx context.Context, in OfProject, message string, rolling mariposa.Amount,
	build func(*edit, *manifest.Values, *manifest.Project) (*manifest.Values, error),
) (*document[contract.Changed], error) {
	return s.change(ctx, in, func(e *edit) (*change, error) {
		old, declared, err := s.valuesOf(ctx, &store.Record{Kind: mariposa.KindProject, ID: e.record.ID, Spec: &e.spec})
		if err != nil {
			return nil, err
		}
		values, err := build(e, old, declared)
		if err != nil {
			return nil, err
		}
		if values == nil {
			values = &manifest.Values{}
		}
		d := draft{cause: mariposa.CauseMetadata, values: values, message: message, counter: e.counter}
		changed, err := e.bring(d, mariposa.Patch{Rolling: rolling})
		if err != nil || !changed {
			return &e.change, err
		}
		e.answer.Reason = e.outdating()
		return e.done(firstOf(e.taskReason(), message, "its metadata changed"))
	})
}

// outdating says which services run with other values than they would be made with
// now, after this change.
func (e *edit) outdating() string {
	var names []string
	for _, w := range e.unit.Writes {
		if v, ok := w.Spec.(*mariposa.VersionSpec); ok && e.answer.Task == nil {
			names = append(names, v.Changed...)
		}
	}
	runs := map[string]bool{}
	e.s.Picture.EachInstanceOf(e.record.ID, func(r *store.Record) bool {
		if spec := r.Spec.(*mariposa.InstanceSpec); spec.Managed && spec.Goal == mariposa.GoalRunning {
			runs[spec.ServiceName] = true
		}
		return true
	})
	names = slices.DeleteFunc(names, func(name string) bool { return !runs[name] })
	if len(names) == 0 {
		return ""
	}
	return strings.Join(names, ", ") + " run with the former values: mariposa project reprovision brings the new ones in"
}

// OfKey are the parameters of a path that leads to a metadata key.
type OfKey struct {
	OfProject
	Key string `path:"key" maxLength:"255"`
	CAS string `query:"cas" doc:"change it only if this is what the caller has seen; 0: only if it is not set" maxLength:"20"`
}

// unchanged refuses to change a key that somebody else has changed meanwhile.
func (in *OfKey) unchanged(old *manifest.Values) error {
	if in.CAS == "" {
		return nil
	}
	if _, err := strconv.ParseInt(in.CAS, 10, 64); err != nil {
		return invalid("cas must be what a read of the key named as its cas, a number, not %q", shorten(in.CAS))
	}
	value, set := old.Get(in.Key)
	is := "0"
	if set {
		is = strconv.FormatInt(value.CAS, 10)
	}
	if in.CAS == is {
		return nil
	}
	if !set {
		return conflict("%s is not set any more: look again, or pass ?cas=0 to set it anew", in.Key)
	}
	return conflict("%s was changed by somebody else (its cas is %s, not %s): look again, then try again", in.Key, is, shorten(in.CAS))
}

type getKeyInput struct {
	OfProject
	Key    string `path:"key" maxLength:"255"`
	Reveal bool   `query:"reveal" doc:"show a secret, to who may read it"`
}

func (s *server) getKey(ctx context.Context, in *getKeyInput) (*document[contract.MetadataKey], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	values, declared, err := s.valuesOf(ctx, r)
	if err != nil {
		return nil, err
	}
	doc := keyDoc(declared, values, in.Key, in.Reveal)
	if !doc.Set && !doc.Declared {
		return nil, notFound("project %s has no metadata key %q", r.Spec.(*mariposa.ProjectSpec).Name, shorten(in.Key))
	}
	s.revealed(ctx, r, in.Reveal && doc.Secret, in.Key)
	return answer(doc)
}

type putKeyInput struct {
	OfKey
	Secret      bool   `query:"secret" doc:"it is a secret from now on"`
	Message     string `query:"message" maxLength:"1000"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (s *server) putKey(ctx context.Context, in *putKeyInput) (*document[contract.Changed], error) {
	text, secret, err := in.value()
	if err != nil {
		return nil, err
	}
	return s.changeKey(ctx, &in.OfKey, in.Message, func(e *edit, old *manifest.Values, p *manifest.Project) (*manifest.Values, error) {
		return old.Set(in.Key, text, secret || in.Secret || p.IsSecret(in.Key), e.now)
	})
}

// value reads the value of a key: plain text, or JSON.
func (in *putKeyInput) value() (text string, secret bool, err error) {
	kind := mediaType(in.ContentType)
	if kind != "application/json" && !(kind == curlType && hasKey(in.RawBody, "value")) {
		return string(in.RawBody), false, nil
	}
	var doc contract.MetadataValue
	d := json.NewDecoder(bytes.NewReader(in.RawBody))
	d.DisallowUnknownFields()
	d.UseNumber()
	if d.Decode(&doc) != nil || len(doc.Value) == 0 {
		doc = contract.MetadataValue{Value: in.RawBody} // a JSON value on its own
	}
	var value any
	d = json.NewDecoder(bytes.NewReader(doc.Value))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return "", false, invalid(`the body must be JSON like {"value": "…"}, or plain text with Content-Type: text/plain`)
	}
	switch v := value.(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
	case bool:
		text = strconv.FormatBool(v)
	default:
		return "", false, invalid("value must be a text, a number or a boolean")
	}
	return text, doc.Secret != nil && *doc.Secret, nil
}

// changeKey changes one key, and answers with its value and cas.
func (s *server) changeKey(ctx context.Context, in *OfKey, message string,
	build func(*edit, *manifest.Values, *manifest.Project) (*manifest.Values, error),
) (*document[contract.Changed], error) {
	return s.changeValues(ctx, in.OfProject, message, mariposa.Amount{}, func(e *edit, old *manifest.Values, p *manifest.Project) (*manifest.Values, error) {
		if err := in.unchanged(old); err != nil {
			return nil, err
		}
		values, err := build(e, old, p)
		if err != nil {
			return nil, err
		}
		doc := keyDoc(p, values.Marked(p), in.Key, false)
		e.answer.Key, e.answer.Value, e.answer.CAS = in.Key, doc.Value, doc.CAS
		e.unit.Audit[0].Reason = "metadata key " + in.Key
		return values, nil
	})
}

type deleteKeyInput struct {
	OfKey
}

func (s *server) deleteKey(ctx context.Context, in *deleteKeyInput) (*document[contract.Changed], error) {
	return s.changeKey(ctx, &in.OfKey, "", func(e *edit, old *manifest.Values, _ *manifest.Project) (*manifest.Values, error) {
		if _, set := old.Get(in.Key); !set {
			return nil, notFound("project %s has no value for the metadata key %q", e.spec.Name, shorten(in.Key))
		}
		return old.Delete(in.Key), nil
	})
}

type countKeyInput struct {
	OfKey
	By int64 `query:"by" default:"1" minimum:"0" maximum:"1000000000000"`
}

func (s *server) increment(ctx context.Context, in *countKeyInput) (*document[contract.Changed], error) {
	return s.count(ctx, in, in.By)
}

func (s *server) decrement(ctx context.Context, in *countKeyInput) (*document[contract.Changed], error) {
	return s.count(ctx, in, -in.By)
}

func (s *server) count(ctx context.Context, in *countKeyInput, by int64) (*document[contract.Changed], error) {
	return s.changeKey(ctx, &in.OfKey, "", func(e *edit, old *manifest.Values, p *manifest.Project) (*manifest.Values, error) {
		e.counter = in.Key
		return old.Add(p, in.Key, by, e.now)
	})
}

// yamlOfValues writes a JSON object of values as YAML, one key a line.
func yamlOfValues(raw json.RawMessage) []byte {
	var pretty bytes.Buffer
	if json.Indent(&pretty, raw, "", "  ") != nil {
		return raw // whoever reads it says what is wrong with it
	}
	return pretty.Bytes()
}

// mayRead asks for the right to read those of some keys that are secret.
func (s *server) mayRead(ctx context.Context, r *store.Record, values *manifest.Values, keys []string) error {
	for _, key := range keys {
		if value, _ := values.Get(key); value.Secret {
			return s.require(ctx, auth.ReadSecrets, r)
		}
	}
	return nil
}

package api

import (
	"bytes"
	"context"
	"encoding/json"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// ServiceSubmission are the parameters of a change of one service. Previous is
// optional here: only the one service is replaced.
type ServiceSubmission struct {
	Previous string `query:"previous" doc:"hash, number or tag of the newest version that the caller knows; the change is rejected if there is a newer one. Default: no check"`
	Rolling  string `query:"rolling" doc:"how many instances to replace at a time: a number or a percentage"`
	Canary   string `query:"canary" doc:"hold the rollout after this many instances: a number or a percentage"`
	Message  string `query:"message" doc:"a message for the version history" maxLength:"1000"`
}

// changeService submits the newest manifest with one service changed.
func (s *server) changeService(ctx context.Context, in OfProject, q ServiceSubmission, edit func(doc []byte, of *mariposa.ProjectSpec) (service string, edited []byte, err error)) (*document[contract.Changed], error) {
	sub, err := SubmissionQuery{Previous: q.Previous, Force: q.Previous == "", Rolling: q.Rolling, Canary: q.Canary, Message: q.Message}.submission()
	if err != nil {
		return nil, err
	}
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.EditService(ctx, request(ctx), r.ID, *sub, func(newest *mariposa.VersionSpec, of *mariposa.ProjectSpec) (string, []byte, error) {
		return edit(manifest.Modernize(yamlOf(newest)), of)
	}))
}

type addServiceInput struct {
	OfProject
	ServiceSubmission
	Name        string `query:"name" doc:"name of the service, unless it is in the request body"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/yaml"`
}

func (s *server) addService(ctx context.Context, in *addServiceInput) (*document[contract.Changed], error) {
	if err := checkManifestType(in.ContentType); err != nil {
		return nil, err
	}
	name, def := in.Name, bytes.Clone(in.RawBody)
	if name == "" {
		const missing = "name is missing: pass it as ?name=, or as name in a JSON body"
		keys, err := unmarshalKeys(def, missing)
		if err != nil {
			return nil, err
		}
		if json.Unmarshal(keys["name"], &name) != nil {
			return nil, invalid(missing)
		}
		delete(keys, "name")
		def, _ = json.Marshal(keys) // decoded JSON can be encoded
	}
	return s.changeService(ctx, in.OfProject, in.ServiceSubmission, func(doc []byte, of *mariposa.ProjectSpec) (string, []byte, error) {
		if _, known := manifest.ServiceText(doc, name); known {
			return "", nil, conflict("project %s already has a service %s: use PUT to replace it", of.Name, name)
		}
		edited, err := manifest.SetService(doc, name, def)
		return name, edited, err
	})
}

type putServiceInput struct {
	OfService
	ServiceSubmission
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/yaml"`
}

func (s *server) putService(ctx context.Context, in *putServiceInput) (*document[contract.Changed], error) {
	if err := checkManifestType(in.ContentType); err != nil {
		return nil, err
	}
	def := bytes.Clone(in.RawBody)
	return s.changeService(ctx, in.OfProject, in.ServiceSubmission, func(doc []byte, of *mariposa.ProjectSpec) (string, []byte, error) {
		name, err := findDeclaredService(doc, of, in.Service)
		if err != nil {
			return "", nil, err
		}
		edited, err := manifest.SetService(doc, name, def)
		return name, edited, err
	})
}

type deleteServiceInput struct {
	OfService
	ServiceSubmission
}

func (s *server) deleteService(ctx context.Context, in *deleteServiceInput) (*document[contract.Changed], error) {
	return s.changeService(ctx, in.OfProject, in.ServiceSubmission, func(doc []byte, of *mariposa.ProjectSpec) (string, []byte, error) {
		name, err := findDeclaredService(doc, of, in.Service)
		if err != nil {
			return "", nil, err
		}
		edited, err := manifest.RemoveService(doc, name)
		return name, edited, err
	})
}

// findDeclaredService finds a service of the newest manifest by id or name.
func findDeclaredService(doc []byte, of *mariposa.ProjectSpec, ref string) (string, error) {
	if _, known := manifest.ServiceText(doc, ref); known {
		return ref, nil
	}
	var declared []string
	for name, id := range of.Services {
		_, known := manifest.ServiceText(doc, name)
		switch {
		case known && id == ref:
			return name, nil
		case known:
			declared = append(declared, name)
		}
	}
	return "", mariposa.UnknownService(of.Name, ref, declared)
}

func (s *server) getServiceManifest(ctx context.Context, in *OfService) (*manifestOutput, error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	of := r.Spec()
	newest, err := s.Cache.Version(ctx, r.ID, of.Number)
	if err != nil {
		return nil, err
	}
	doc := manifest.Modernize(yamlOf(newest.Spec))
	name, err := findDeclaredService(doc, of, in.Service)
	if err != nil {
		return nil, err
	}
	text, _ := manifest.ServiceText(doc, name)
	return &manifestOutput{ContentType: "application/yaml", Version: newest.Spec.Version, Body: text}, nil
}

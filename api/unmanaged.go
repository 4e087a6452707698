package api

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"mariposa/auth"
	"mariposa/contract"
)

type createInstanceInput struct {
	Project      string `query:"project" doc:"id or name of the project, unless it is in the request body" maxLength:"255"`
	Organization string `query:"organization" doc:"the organization in which the project name is looked up; default: the caller's personal organization"`
	RawBody      []byte `contentType:"application/json"`
}

// unmanagedRequest is a request for an unmanaged instance.
type unmanagedRequest struct {
	project, organization, name string
	definition                  []byte
}

// read separates project, organization and name in the body from the definition.
func (in *createInstanceInput) read() (*unmanagedRequest, error) {
	keys, err := unmarshalKeys(in.RawBody, `the request body must be a JSON object such as {"project": "shop", "name": "probe", "compute_type": "process", "command": ["/bin/true"]}`)
	if err != nil {
		return nil, err
	}
	one := &unmanagedRequest{project: in.Project, organization: in.Organization}
	for name, to := range map[string]*string{"project": &one.project, "organization": &one.organization, "name": &one.name} {
		if raw, ok := keys[name]; ok {
			if json.Unmarshal(raw, to) != nil {
				return nil, invalid("%s must be a string", name)
			}
			delete(keys, name)
		}
	}
	if one.project == "" {
		return nil, invalid("project is missing: specify the project of the instance")
	}
	var b bytes.Buffer
	b.WriteString("{\n")
	for i, name := range slices.Sorted(maps.Keys(keys)) {
		if i > 0 {
			b.WriteString(",\n")
		}
		quoted, _ := json.Marshal(name) // a string always marshals
		b.Write(quoted)
		b.WriteString(": ")
		b.Write(keys[name])
	}
	b.WriteString("\n}\n")
	one.definition = b.Bytes()
	return one, nil
}

func (s *server) createInstance(ctx context.Context, in *createInstanceInput) (*document[contract.Changed], error) {
	ask, err := in.read()
	if err != nil {
		return nil, err
	}
	project, err := s.findProject(ctx, ask.project, ask.organization)
	if err != nil {
		return nil, err
	}
	if err := s.require(ctx, auth.ManageInstances, project.Record()); err != nil {
		return nil, err
	}
	return changed(s.change.CreateInstance(ctx, request(ctx), project.ID, ask.name, ask.definition))
}

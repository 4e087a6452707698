package api

import (
	"bytes"
	"cmp"
	"context"

	"mariposa"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

// maxWrapped bounds a JSON document that contains a manifest: escaping may double the
// manifest's size.
const maxWrapped = 2*manifest.MaxBytes + maxBody

type listProjectsInput struct {
	Organization string `query:"organization"`
	Name         string `query:"name" doc:"only the project with this name"`
}

func (s *server) listProjects(ctx context.Context, in *listProjectsInput) (*document[contract.Projects], error) {
	records, err := s.projectsFor(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Projects{Projects: make([]contract.Project, 0, len(records))}
	for _, r := range records {
		if spec := r.Spec(); in.Name == "" || (spec.Name == in.Name && !spec.Deleting) {
			doc := s.projectDoc(v, r)
			doc.Role = s.directory.RoleIn(caller(ctx), r)
			all.Projects = append(all.Projects, doc)
		}
	}
	return answer(all)
}

func (s *server) getProject(ctx context.Context, in *OfProject) (*document[contract.Project], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	doc := s.projectDoc(s.viewer(ctx), r)
	doc.Role = s.directory.RoleIn(caller(ctx), r)
	if doc.Stored, err = s.change.Stored(ctx, r); err != nil {
		return nil, err
	}
	return answer(doc)
}

// projectDoc shows the current state of a project. While it converges, the reason says what
// it is waiting for.
func (s *server) projectDoc(v *viewer, r *store.Project) contract.Project {
	doc := v.project(r)
	if doc.Status == mariposa.StatusBackingOff || doc.Reason == "" && doc.Status == mariposa.StatusConverging {
		if st, ok := s.projectState(v, r.ID); ok && st.Status == doc.Status {
			doc.Reason, doc.ReasonCode = st.Reason, st.ReasonCode
		}
	}
	return doc
}

type createProjectInput struct {
	Name         string `query:"name" doc:"name of the project, if the request body is the manifest itself"`
	Organization string `query:"organization"`
	Message      string `query:"message" doc:"a message for the version history" maxLength:"1000"`
	ContentType  string `header:"Content-Type" hidden:"true"`
	RawBody      []byte `contentType:"application/yaml"`
}

func (s *server) createProject(ctx context.Context, in *createProjectInput) (*document[contract.Changed], error) {
	org, name, sub, err := s.readNewProject(ctx, in)
	if err != nil {
		return nil, err
	}
	return changed(s.change.CreateProject(ctx, request(ctx), org, name, *sub))
}

func (s *server) planNewProject(ctx context.Context, in *createProjectInput) (*document[contract.Plan], error) {
	org, name, sub, err := s.readNewProject(ctx, in)
	if err != nil {
		return nil, err
	}
	return changed(s.change.PlanProject(ctx, request(ctx), org, name, *sub))
}

// readNewProject reads the description of a new project from the query and the body.
func (s *server) readNewProject(ctx context.Context, in *createProjectInput) (org *store.Organization, name string, sub *change.Submission, err error) {
	sub = &change.Submission{Message: in.Message}
	name, organization := in.Name, in.Organization
	if doc, wrapped, err := readWrapped(in.ContentType, in.RawBody, in.Name); err != nil {
		return nil, "", nil, err
	} else if wrapped {
		if (name != "" && name != doc.Name) || (organization != "" && doc.Organization != "" && organization != doc.Organization) {
			return nil, "", nil, invalid("the query and the request body contain different project names: specify the name once")
		}
		name, sub.Message = doc.Name, cmp.Or(doc.Message, in.Message)
		organization = cmp.Or(doc.Organization, organization)
		if err := unwrapManifest(sub, doc.Manifest); err != nil {
			return nil, "", nil, err
		}
		unwrapValues(sub, doc.Metadata)
	} else {
		setManifest(sub, in.ContentType, in.RawBody)
	}
	org, err = s.findDestination(ctx, organization)
	return org, name, sub, err
}

type updateProjectInput struct {
	OfProject
	SubmissionQuery
	Body contract.ProjectChange
}

func (s *server) updateProject(ctx context.Context, in *updateProjectInput) (*document[contract.Changed], error) {
	if in.Body.Name == "" && len(in.Body.Manifest) == 0 && len(in.Body.Metadata) == 0 {
		return nil, invalid("nothing to change: specify a name, a manifest or metadata")
	}
	sub, err := in.read()
	if err != nil {
		return nil, err
	}
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.UpdateProject(ctx, request(ctx), r.ID, in.Body.Name, sub))
}

// read returns the manifest and the metadata of a change; nil if it has neither.
func (in *updateProjectInput) read() (*change.Submission, error) {
	if len(in.Body.Manifest) == 0 && len(in.Body.Metadata) == 0 {
		return nil, nil
	}
	sub, err := in.submission()
	if err != nil {
		return nil, err
	}
	sub.Message = cmp.Or(in.Body.Message, sub.Message)
	unwrapValues(sub, in.Body.Metadata)
	if len(in.Body.Manifest) == 0 {
		return sub, nil
	}
	return sub, unwrapManifest(sub, in.Body.Manifest)
}

type deleteProjectInput struct {
	OfProject
	Force   bool `query:"force" doc:"delete the project even if instances are running"`
	Volumes bool `query:"volumes" doc:"also delete the volumes; by default the organization keeps them"`
}

func (s *server) deleteProject(ctx context.Context, in *deleteProjectInput) (*document[contract.Changed], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.DeleteProject(ctx, request(ctx), r.ID, in.Force, in.Volumes))
}

type copyProjectInput struct {
	OfProject
	Body contract.Copy
}

func (s *server) copyProject(ctx context.Context, in *copyProjectInput) (*document[contract.Changed], error) {
	from, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	org, err := s.findDestination(ctx, cmp.Or(in.Body.Organization, from.Spec().Organization))
	if err != nil {
		return nil, err
	}
	return changed(s.change.CopyProject(ctx, request(ctx), from, org, in.Body.Name, in.Body.Metadata))
}

type moveProjectInput struct {
	OfProject
	Body contract.Move
}

func (s *server) moveProject(ctx context.Context, in *moveProjectInput) (*document[contract.Changed], error) {
	if in.Body.Organization == "" {
		return nil, invalid("organization is missing: specify where to move the project")
	}
	org, err := s.findDestination(ctx, in.Body.Organization)
	if err != nil {
		return nil, err
	}
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.MoveProject(ctx, request(ctx), r.ID, org))
}

type planProjectInput struct {
	OfProject
	Rolling     string `query:"rolling" doc:"how many instances to replace at a time: a number or a percentage"`
	Canary      string `query:"canary" doc:"hold the rollout after this many instances: a number or a percentage"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/yaml"`
}

func (s *server) planProject(ctx context.Context, in *planProjectInput) (*document[contract.Plan], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	var sub *change.Submission
	switch empty := len(bytes.TrimSpace(in.RawBody)) == 0; {
	case empty && (in.Rolling != "" || in.Canary != ""):
		return nil, invalid("rolling, canary: used only when the plan contains a manifest")
	case !empty:
		if err := checkManifestType(in.ContentType); err != nil {
			return nil, err
		}
		if sub, err = (SubmissionQuery{Rolling: in.Rolling, Canary: in.Canary}).submission(); err != nil {
			return nil, err
		}
		setManifest(sub, in.ContentType, in.RawBody)
	}
	plan, err := s.change.Plan(ctx, request(ctx), r.ID, sub)
	if sub != nil && (err == nil || isRefusal(err)) {
		s.recordAttempt(ctx, actionPlan, r.Record(), err)
	}
	return changed(plan, err)
}

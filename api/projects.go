package api

import (
	"context"
	"fmt"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/reason"
	"mariposa/store"
)

// maxWrapped bounds a JSON document with a manifest in it: escaping may double
// the manifest's size.
const maxWrapped = 2*manifest.MaxBytes + maxBody

type listProjectsInput struct {
	Organization string `query:"organization"`
	Name         string `query:"name" doc:"only the project that has this name"`
}

func (s *server) listProjects(ctx context.Context, in *listProjectsInput) (*document[contract.Projects], error) {
	records, err := s.projectsFor(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Projects{Projects: make([]contract.Project, 0, len(records))}
	for _, r := range records {
		if spec := r.Spec.(*mariposa.ProjectSpec); in.Name == "" || (spec.Name == in.Name && !spec.Deleting) {
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
	return answer(doc)
}

// projectDoc shows a project as it is now. On its way, it says what is awaited.
func (s *server) projectDoc(v *viewer, r *store.Record) contract.Project {
	doc := v.project(r)
	if doc.Status == mariposa.StatusBackingOff || doc.Reason == "" && doc.Status == mariposa.StatusConverging {
		if st, ok := s.projectState(v, r.ID); ok && st.Status == doc.Status {
			doc.Reason, doc.ReasonCode = st.Reason, st.ReasonCode
		}
	}
	return doc
}

type createProjectInput struct {
	Name         string `query:"name" doc:"of the project, when the body is the manifest itself"`
	Organization string `query:"organization"`
	Message      string `query:"message" doc:"for those who read the versions later" maxLength:"1000"`
	ContentType  string `header:"Content-Type" hidden:"true"`
	RawBody      []byte `contentType:"application/yaml"`
}

func (s *server) createProject(ctx context.Context, in *createProjectInput) (*document[contract.Changed], error) {
	sub := &submission{message: in.Message}
	name, organization := in.Name, in.Organization
	if doc, wrapped, err := readWrapped(in.ContentType, in.RawBody, in.Name); err != nil {
		return nil, err
	} else if wrapped {
		if (name != "" && name != doc.Name) || (organization != "" && doc.Organization != "" && organization != doc.Organization) {
			return nil, invalid("the query and the body name different projects: name it once")
		}
		name, sub.message = doc.Name, firstOf(doc.Message, in.Message)
		organization = firstOf(doc.Organization, organization)
		if err := sub.unwrap(doc.Manifest); err != nil {
			return nil, err
		}
		sub.unwrapValues(doc.Metadata)
	} else {
		sub.take(in.ContentType, in.RawBody)
	}
	if err := checkName("project", name); err != nil {
		return nil, err
	}
	org, err := s.findDestination(ctx, organization)
	if err != nil {
		return nil, err
	}
	if err := sub.check(); err != nil {
		return nil, err
	}
	changed, err := s.commit(ctx, mariposa.NameID(org.ID, name), func() (*change, error) { return s.newProject(ctx, org, name, sub) })
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// newProject is a whole project in one commit: its name, its spec, its first
// version, and the task that starts it.
func (s *server) newProject(ctx context.Context, org *store.Record, name string, sub *submission) (*change, error) {
	d := draft{cause: mariposa.CauseManifest, bytes: sub.bytes, json: sub.json, parsed: sub.parsed, message: sub.message}
	if sub.values != nil {
		values, err := (*manifest.Values)(nil).Import(sub.values, s.Clock.Now())
		if err != nil {
			return nil, err
		}
		d.values = values
	}
	return s.beginProject(ctx, org, name, d, "the project was created")
}

// beginProject is a whole project from the draft of its first version. Whoever
// makes it is its admin.
func (s *server) beginProject(ctx context.Context, org *store.Record, name string, d draft, reason string) (*change, error) {
	if r := s.Picture.ProjectNamed(org.ID, name); r != nil {
		return nil, s.taken(ctx, r, name)
	}
	id, now := s.NewID(), s.Clock.Now()
	e := &edit{s: s, ctx: ctx, now: now, record: &store.Record{Kind: mariposa.KindProject, ID: id}}
	e.spec = mariposa.ProjectSpec{
		Name: name, Organization: org.ID, Created: now, Author: actor(ctx), Users: map[string]mariposa.Role{caller(ctx).User: mariposa.RoleAdmin},
	}
	e.answer = contract.Changed{ID: id, Name: name}
	nameID := mariposa.NameID(org.ID, name)
	e.unit.Require = []store.Require{
		{Kind: mariposa.KindName, ID: nameID, Absent: true},
		{Kind: mariposa.KindOrg, ID: org.ID, SpecRevision: -1, StatusRevision: -1},
	}
	e.begin()
	if _, err := e.makeVersion(d); err != nil {
		return nil, err
	}
	reason = firstOf(d.message, reason)
	err := e.admit(&mariposa.TaskSpec{
		Task: mariposa.TaskStart, Component: "manifest", Reason: mariposa.Asked(reason), Version: e.spec.Version,
		Patch: mariposa.Patch{Number: 1, Goal: mariposa.GoalStarted},
	})
	if err != nil {
		return nil, err
	}
	e.claimProject(org.ID, 1)
	if err := e.reserve(); err != nil {
		return nil, err
	}
	spec := e.spec
	own := e.unit.Writes
	e.unit.Writes = nil
	e.write(store.Write{Kind: mariposa.KindName, ID: nameID, Spec: &mariposa.NameSpec{Project: id}}, "", nil)
	e.write(store.Write{Kind: mariposa.KindProject, ID: id, Spec: &spec}, "project.created", mariposa.Asked(reason))
	e.unit.Writes = append(e.unit.Writes, own...) // nobody hears of its parts before the project
	return &e.change, nil
}

// taken says that another project has a name; which one is told to who may see it.
func (s *server) taken(ctx context.Context, by *store.Record, name string) error {
	if !s.sees(caller(ctx), by) {
		return conflict("the name %s is taken: choose another", name)
	}
	return conflict("there is a project %s already (%s): choose another name, or update that one", name, by.ID)
}

type updateProjectInput struct {
	OfProject
	SubmissionQuery
	Body contract.ProjectChange
}

func (s *server) updateProject(ctx context.Context, in *updateProjectInput) (*document[contract.Changed], error) {
	switch {
	case in.Body.Name == "" && len(in.Body.Manifest) == 0 && len(in.Body.Metadata) == 0:
		return nil, invalid("nothing to change: give a name, a manifest or metadata")
	}
	if in.Body.Name != "" {
		if err := checkName("project", in.Body.Name); err != nil {
			return nil, err
		}
	}
	sub, err := in.read()
	if err != nil {
		return nil, err
	}
	return s.change(ctx, in.OfProject, func(e *edit) (*change, error) {
		reason := ""
		if in.Body.Name != "" && in.Body.Name != e.spec.Name {
			if err := e.rename(in.Body.Name); err != nil {
				return nil, err
			}
			reason = "renamed to " + in.Body.Name
		}
		if sub != nil {
			submitted, err := e.submit(sub)
			if err != nil {
				return nil, err
			}
			if submitted {
				reason = firstOf(reason, e.taskReason())
			}
		}
		if reason == "" {
			return &e.change, nil
		}
		return e.done(reason)
	})
}

// read reads the manifest and the metadata of a change; nil when it has neither.
func (in *updateProjectInput) read() (*submission, error) {
	if len(in.Body.Manifest) == 0 && len(in.Body.Metadata) == 0 {
		return nil, nil
	}
	sub, err := in.submission()
	if err != nil {
		return nil, err
	}
	sub.message = firstOf(in.Body.Message, sub.message)
	sub.unwrapValues(in.Body.Metadata)
	if len(in.Body.Manifest) == 0 {
		return sub, sub.checkMessage()
	}
	if err := sub.unwrap(in.Body.Manifest); err != nil {
		return nil, err
	}
	return sub, sub.check()
}

// change finds a project and changes it.
func (s *server) change(ctx context.Context, in OfProject, build func(*edit) (*change, error)) (*document[contract.Changed], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	changed, err := s.commit(ctx, r.ID, func() (*change, error) {
		e, err := s.edit(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		return build(e)
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// rename moves the project's name.
func (e *edit) rename(name string) error {
	if r := e.s.Picture.ProjectNamed(e.spec.Organization, name); r != nil {
		return e.s.taken(e.ctx, r, name)
	}
	old, next := mariposa.NameID(e.spec.Organization, e.spec.Name), mariposa.NameID(e.spec.Organization, name)
	e.unit.Require = append(e.unit.Require, store.Require{Kind: mariposa.KindName, ID: next, Absent: true})
	e.write(store.Write{Kind: mariposa.KindName, ID: old, Delete: true}, "", nil)
	e.write(store.Write{Kind: mariposa.KindName, ID: next, Spec: &mariposa.NameSpec{Project: e.record.ID}}, "", nil)
	e.spec.Name, e.answer.Name = name, name
	return nil
}

type deleteProjectInput struct {
	OfProject
	Force   bool `query:"force" doc:"even while instances run"`
	Volumes bool `query:"volumes" doc:"delete its volumes too; otherwise its organization keeps them"`
}

func (s *server) deleteProject(ctx context.Context, in *deleteProjectInput) (*document[contract.Changed], error) {
	return s.change(ctx, in.OfProject, func(e *edit) (*change, error) {
		if n, first := e.s.running(e.record.ID); n > 0 && !in.Force {
			return nil, conflict("project %s still runs %s, %s among them: stop the project, or delete it with ?force=true", e.spec.Name, many(n, "instance"), first)
		}
		err := e.admit(&mariposa.TaskSpec{
			Task: mariposa.TaskStop, Component: "delete", Reason: &mariposa.Reason{Code: mariposa.ReasonProjectDeleted}, Version: e.spec.Version, Lifts: true,
			Patch: mariposa.Patch{Goal: mariposa.GoalDeleted},
		})
		if err != nil {
			return nil, err
		}
		e.spec.Deleting, e.spec.DropVolumes = true, in.Volumes
		e.answer.Reason = e.volumesAfter()
		e.dismiss()
		e.write(store.Write{Kind: mariposa.KindName, ID: mariposa.NameID(e.spec.Organization, e.spec.Name), Delete: true}, "", nil)
		return e.done("its name is free; it goes once its last instance is gone")
	})
}

// volumesAfter says what becomes of the volumes of a project that is deleted.
func (e *edit) volumesAfter() string {
	n := len(e.s.Picture.VolumesOf(e.record.ID))
	switch {
	case n == 0:
		return ""
	case e.spec.DropVolumes:
		return many(n, "volume") + " will be deleted with it"
	}
	return many(n, "volume") + " will be left to organization " + e.s.viewer(e.ctx).orgName(e.spec.Organization)
}

// running counts the instances of a project that run, or may.
func (s *server) running(project string) (n int, first string) {
	for _, r := range s.Picture.InstancesOf(project) {
		spec := r.Spec.(*mariposa.InstanceSpec)
		switch mariposa.StateOf(spec, instanceStatus(r)) {
		case mariposa.StateDestroyed, mariposa.StateStopped, mariposa.StateFailed:
			continue
		}
		if n++; n == 1 {
			first = spec.Name
		}
	}
	return n, first
}

// taskReason is the reason of the task that this edit added.
func (e *edit) taskReason() string {
	for _, w := range e.unit.Writes {
		if t, ok := w.Spec.(*mariposa.TaskSpec); ok {
			return reason.Sentence(t.Reason)
		}
	}
	return ""
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

func numbered(sha string, number int) string { return fmt.Sprintf("%s (number %d)", sha, number) }

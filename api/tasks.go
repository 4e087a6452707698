package api

import (
	"context"
	"errors"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/queue"
	"mariposa/store"
)

type ofTask struct {
	Task string `path:"task" maxLength:"255"`
}

type listTasksInput struct {
	InProject
	Service string             `query:"service" doc:"id or name of a service"`
	State   mariposa.TaskState `query:"state" enum:"queued,active,completed,failed,terminated"`
	All     bool               `query:"all" doc:"include tasks that have ended"`
	Limit   int                `query:"limit" minimum:"1" maximum:"1000" default:"200"`
	Marker  string             `query:"marker" doc:"the marker of the previous page" maxLength:"255"`
}

func (s *server) listTasks(ctx context.Context, in *listTasksInput) (*document[contract.Tasks], error) {
	if err := s.checkMarker(mariposa.KindTask, in.Marker); err != nil {
		return nil, err
	}
	q, err := s.taskQuery(ctx, in)
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	services, err := s.serviceNames(v, s.newVisibility(ctx, caller(ctx)), q.Project, in.Service)
	if err != nil {
		return nil, err
	}
	page := taskPage{v: v, services: services, limit: in.Limit}
	if in.State.Ended() || in.State == "" && in.All {
		q.State = in.State
		err = s.tasksInStore(ctx, q, &page)
	} else {
		s.openTasks(q, in.State, &page)
	}
	if err != nil {
		return nil, err
	}
	return answer(page.doc())
}

// taskQuery returns the query for the requested tasks: of one project, of all projects
// that the caller can see, or of those in one organization.
func (s *server) taskQuery(ctx context.Context, in *listTasksInput) (store.Query, error) {
	q := store.Query{Kind: mariposa.KindTask, Before: in.Marker}
	var err error
	if q.Project, err = s.projectID(ctx, in.InProject); err != nil || q.Project != "" {
		return q, err
	}
	if in.Organization == "" && s.seesAll(caller(ctx)) {
		return q, nil
	}
	projects, err := s.projectsFor(ctx, in.Organization)
	q.Projects = make([]string, len(projects))
	for i, p := range projects {
		q.Projects[i] = p.ID
	}
	return q, err
}

// openTasks adds open tasks to a page. The picture contains all of them.
func (s *server) openTasks(q store.Query, state mariposa.TaskState, page *taskPage) {
	wanted := func(r *store.Task) bool { return state == "" || mariposa.StateOfTask(r.Status()) == state }
	if q.Project == "" && q.Projects == nil {
		for chunk := s.Picture.OpenTasks(q.Before, page.batch()); len(chunk) > 0; chunk = s.Picture.OpenTasks(q.Before, page.batch()) {
			for _, r := range chunk {
				if q.Before = r.ID; wanted(r) && !page.add(r) {
					return
				}
			}
		}
		return
	}
	var open []*store.Task
	for _, p := range append(q.Projects, q.Project) {
		if p != "" { // tasks without a project are about nodes
			open = append(open, s.Picture.TasksOf(p)...)
		}
	}
	slices.SortFunc(open, func(a, b *store.Task) int { return strings.Compare(b.ID, a.ID) })
	for _, r := range open {
		if (q.Before == "" || r.ID < q.Before) && wanted(r) && !page.add(r) {
			return
		}
	}
}

// tasksInStore adds tasks to a page, including ended ones. The store returns the newest
// tasks of any number of projects in one query. Tasks are sorted by creation, so that a
// task that ends between two pages is neither repeated nor missed.
func (s *server) tasksInStore(ctx context.Context, q store.Query, page *taskPage) error {
	for q.Limit = page.batch(); ; {
		found, err := s.Store.List(ctx, q)
		if err != nil {
			return err
		}
		for i := range found {
			if q.Before = found[i].ID; !page.add((*store.Task)(&found[i])) {
				return nil
			}
		}
		if len(found) < q.Limit {
			return nil
		}
	}
}

// serviceNames resolves a filter by service: the name or id of a service that the project
// has or had, or of any project that the caller can see.
func (s *server) serviceNames(v *viewer, g *visibility, project, ref string) ([]string, error) {
	if ref == "" {
		return nil, nil
	}
	if project != "" {
		r := s.Picture.Projects.Get(project)
		name := serviceName(r, ref)
		if r != nil && r.Spec().Services[name] == "" {
			st, _ := s.projectState(v, r.ID)
			return nil, unknownService(st, ref)
		}
		return []string{name}, nil
	}
	if !idPattern.MatchString(ref) {
		return []string{ref}, nil // a project that has it may be created yet
	}
	var owner *store.Project
	s.Picture.Projects.Each(func(r *store.Project) bool {
		if serviceName(r, ref) != ref {
			owner = r
		}
		return owner == nil
	})
	if owner == nil || !g.project(owner.ID) {
		return []string{ref}, nil
	}
	return []string{serviceName(owner, ref)}, nil
}

// serviceName returns the name of a service in a project, or the id if it has no such
// service.
func serviceName(project *store.Project, id string) string {
	if project != nil {
		for name, of := range project.Spec().Services {
			if of == id {
				return name
			}
		}
	}
	return id
}

// taskPage collects tasks up to a limit.
type taskPage struct {
	v        *viewer
	services []string // names; nil: any
	limit    int
	tasks    []contract.Task
	more     bool
}

// batch is how many tasks to read at a time: one more than fits on the page, to find
// out whether there are more. With a filter by service, other tasks may come between.
func (p *taskPage) batch() int {
	if p.services != nil {
		return max(500, p.limit+1)
	}
	return p.limit + 1
}

// add adds a task if it matches; it returns false when the page is full.
func (p *taskPage) add(r *store.Task) bool {
	if p.services != nil && !queue.Overlap(r.Spec().Services, p.services) {
		return true
	}
	if len(p.tasks) == p.limit {
		p.more = true
		return false
	}
	p.tasks = append(p.tasks, p.v.task(r))
	return true
}

func (p *taskPage) doc() contract.Tasks {
	doc := contract.Tasks{Tasks: neverNil(p.tasks)}
	if p.more {
		doc.Marker = p.tasks[len(p.tasks)-1].ID
	}
	return doc
}

type getTaskInput struct {
	Task   string `path:"task" doc:"id of the task" maxLength:"255"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"200" doc:"maximum number of steps"`
	Marker int64  `query:"marker" minimum:"0" doc:"the marker of the previous page of steps"`
}

// findTask finds a task, open or ended.
func (s *server) findTask(ctx context.Context, id string) (*store.Task, error) {
	if r := s.Picture.Tasks.Get(id); r != nil {
		return r, nil
	}
	r, err := s.Store.Get(ctx, mariposa.KindTask, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound("there is no task %q", id)
	}
	return (*store.Task)(&r), err
}

func (s *server) getTask(ctx context.Context, in *getTaskInput) (*document[contract.Task], error) {
	r, err := s.findTask(ctx, in.Task)
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	doc := v.task(r)
	doc.Steps, doc.Marker, err = v.steps(r, in.Marker, in.Limit)
	if err != nil {
		return nil, err
	}
	return answer(doc)
}

// terminateTask ends a task at a user's request.
func (s *server) terminateTask(ctx context.Context, in *ofTask) (*document[contract.Terminated], error) {
	r, err := s.findTask(ctx, in.Task)
	if err != nil {
		return nil, err
	}
	return changed(s.change.Terminate(ctx, request(ctx), r))
}

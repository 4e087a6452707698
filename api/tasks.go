package api

import (
	"container/heap"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"mariposa"
	"mariposa/contract"
	"mariposa/queue"
	"mariposa/store"
)

func (s *server) queueRoutes() {
	serve(s, route(http.MethodGet, "/v1/queue", "queue", "list-tasks", "List tasks, newest first"), s.listTasks)
	serve(s, route(http.MethodGet, "/v1/queue/{task}", "queue", "get-task", "Show a task with its steps"), s.getTask)
	end := accepted(route(http.MethodDelete, "/v1/queue/{task}", "queue", "terminate-task", "Terminate a task"))
	end.Description = "Of an active one no further step begins, what is half-made is finished or removed, and its scope is frozen; the goal stays, " +
		"so a thaw goes on towards it. Of one that waits, its change is dropped and nothing is frozen."
	serve(s, end, s.terminateTask)
}

type ofTask struct {
	Task string `path:"task" maxLength:"255"`
}

type listTasksInput struct {
	InProject
	Service string             `query:"service" doc:"the id or name of a service"`
	State   mariposa.TaskState `query:"state" enum:"queued,active,completed,failed,terminated"`
	All     bool               `query:"all" doc:"those that have ended too"`
	Limit   int                `query:"limit" minimum:"1" maximum:"1000" default:"200"`
	Marker  string             `query:"marker" doc:"tasks older than this one" maxLength:"255"`
}

func (s *server) listTasks(ctx context.Context, in *listTasksInput) (*document[contract.Tasks], error) {
	if err := s.checkMarker(mariposa.KindTask, in.Marker); err != nil {
		return nil, err
	}
	project, err := s.projectID(ctx, in.InProject)
	if err != nil {
		return nil, err
	}
	g := s.sight(ctx, caller(ctx))
	wanted := taskFilter{project: project, state: in.State, services: s.serviceNames(g, project, in.Service), sees: g.project}
	if project == "" && in.Organization != "" {
		if wanted.within, err = s.within(ctx, in.Organization); err != nil {
			return nil, err
		}
	}
	page := taskPage{v: s.viewer(ctx), wanted: wanted, limit: in.Limit}
	if !in.All && !in.State.Ended() { // open tasks are all in the picture
		for _, r := range slices.Backward(s.Picture.All(mariposa.KindTask)) {
			if (in.Marker == "" || r.ID < in.Marker) && !page.add(r) {
				break
			}
		}
		return answer(page.doc())
	}
	q := store.Query{Kind: mariposa.KindTask, Project: project, Before: in.Marker, Limit: page.batch(1)}
	if project == "" && !g.all {
		err = s.tasksAcross(ctx, q, &page)
	} else {
		err = s.tasksOf(ctx, q, page.add)
	}
	if err != nil {
		return nil, err
	}
	return answer(page.doc())
}

// tasksOf hands the tasks of a query to a page, newest first, until it is full. It
// reads as many at a time as the query says.
func (s *server) tasksOf(ctx context.Context, q store.Query, add func(*store.Record) bool) error {
	row := taskRow{rest: q}
	for {
		more, err := row.next(ctx, s.Store)
		if err != nil || !more || !add(row.first) {
			return err
		}
	}
}

// taskRow is the tasks of a query, newest first, read a few at a time.
type taskRow struct {
	first *store.Record // where next has gone to
	ahead []store.Record
	rest  store.Query // what has not been read yet
	whole bool        // nothing is left to read
}

// next goes on to the next task; false when there is none.
func (t *taskRow) next(ctx context.Context, from store.Store) (bool, error) {
	if len(t.ahead) == 0 && !t.whole {
		found, err := from.List(ctx, t.rest)
		if err != nil {
			return false, err
		}
		t.ahead, t.whole = found, len(found) < t.rest.Limit
		if len(found) > 0 {
			t.rest.Before = found[len(found)-1].ID
		}
	}
	if len(t.ahead) == 0 {
		return false, nil
	}
	t.first, t.ahead = &t.ahead[0], t.ahead[1:]
	return true, nil
}

// tasksAcross gathers the tasks of the projects that the caller may see: a few of
// each, not everybody's. The newest of all is always the newest of some project, so
// little more is read than the page takes.
func (s *server) tasksAcross(ctx context.Context, q store.Query, page *taskPage) error {
	projects, err := s.projectsFor(ctx, "")
	if err != nil {
		return err
	}
	q.Limit = page.batch(len(projects))
	rows := make(taskHeap, 0, len(projects))
	for _, p := range projects {
		q.Project = p.ID
		row := &taskRow{rest: q}
		more, err := row.next(ctx, s.Store)
		if err != nil {
			return err
		}
		if more {
			rows = append(rows, row)
		}
	}
	heap.Init(&rows)
	for len(rows) > 0 && page.add(rows[0].first) {
		more, err := rows[0].next(ctx, s.Store)
		switch {
		case err != nil:
			return err
		case more:
			heap.Fix(&rows, 0)
		default:
			heap.Pop(&rows)
		}
	}
	return nil
}

// taskHeap has the newest on top.
type taskHeap []*taskRow

func (h taskHeap) Len() int           { return len(h) }
func (h taskHeap) Less(i, j int) bool { return h[i].first.ID > h[j].first.ID }
func (h taskHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *taskHeap) Push(x any)        { *h = append(*h, x.(*taskRow)) }

func (h *taskHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// within lists the projects of an organization that the caller may see.
func (s *server) within(ctx context.Context, organization string) (map[string]bool, error) {
	projects, err := s.projectsFor(ctx, organization)
	ids := make(map[string]bool, len(projects))
	for _, p := range projects {
		ids[p.ID] = true
	}
	return ids, err
}

// taskFilter says which tasks are wanted.
type taskFilter struct {
	project  string
	state    mariposa.TaskState
	services []string        // names; nil: any
	within   map[string]bool // projects; nil: any
	sees     func(project string) bool
}

func (f taskFilter) takes(r *store.Record) bool {
	spec := r.Spec.(*mariposa.TaskSpec)
	return (f.project == "" || spec.Project == f.project) && (f.within == nil || f.within[spec.Project]) && f.sees(spec.Project) &&
		(f.state == "" || mariposa.StateOfTask(taskStatus(r)) == f.state) &&
		(f.services == nil || queue.Overlap(spec.Services, f.services))
}

// serviceNames resolves a filter by service: a name, or the id of a service of
// the project, or of any that the caller may see.
func (s *server) serviceNames(g *sight, project, ref string) []string {
	if ref == "" {
		return nil
	}
	if !likeID.MatchString(ref) {
		return []string{ref}
	}
	for _, r := range s.Picture.All(mariposa.KindProject) {
		for name, id := range r.Spec.(*mariposa.ProjectSpec).Services {
			if id == ref && (project == "" || project == r.ID) && g.project(r.ID) {
				return []string{name}
			}
		}
	}
	return []string{ref}
}

// taskPage gathers tasks until there are enough.
type taskPage struct {
	v      *viewer
	wanted taskFilter
	limit  int
	tasks  []contract.Task
	more   bool
}

// batch is how many tasks to read at a time where so many projects share a page:
// a little more than falls to each. Where only some are wanted, nobody knows how
// many others stand between them.
func (p *taskPage) batch(projects int) int {
	const some = 500
	if p.wanted.state != "" || p.wanted.services != nil || p.wanted.within != nil {
		return max(some/max(1, projects), 8)
	}
	if projects <= 1 {
		return p.limit + 1 // one more shows that there is more
	}
	return p.limit*5/4/projects + 4
}

// add takes a task if it is wanted; false when the page is full.
func (p *taskPage) add(r *store.Record) bool {
	if !p.wanted.takes(r) {
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
	doc := contract.Tasks{Tasks: list(p.tasks)}
	if p.more {
		doc.Marker = p.tasks[len(p.tasks)-1].ID
	}
	return doc
}

type getTaskInput struct {
	Task   string `path:"task" doc:"its id" maxLength:"255"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"200" doc:"how many steps"`
	Marker int64  `query:"marker" minimum:"0" doc:"steps before this revision"`
}

// findTask finds a task, open or ended.
func (s *server) findTask(ctx context.Context, id string) (*store.Record, error) {
	if r := s.Picture.Get(mariposa.KindTask, id); r != nil {
		return r, nil
	}
	r, err := s.Store.Get(ctx, mariposa.KindTask, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound("there is no task %q", id)
	}
	return &r, err
}

func (s *server) getTask(ctx context.Context, in *getTaskInput) (*document[contract.Task], error) {
	r, err := s.findTask(ctx, in.Task)
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	doc := v.task(r)
	doc.Steps = []contract.TaskStep{}
	q := store.HistoryQuery{Project: r.Project, Task: r.ID, Before: in.Marker, Limit: in.Limit}
	for {
		changes, err := s.Store.History(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range changes {
			q.Before = changes[i].Revision
			if step, ok := v.step(&changes[i]); ok {
				doc.Steps = append(doc.Steps, step)
			}
			if len(doc.Steps) == in.Limit {
				doc.Marker = strconv.FormatInt(q.Before, 10)
				return answer(doc)
			}
		}
		if len(changes) < q.Limit {
			return answer(doc)
		}
	}
}

// asked names what the planner asks of an instance, by the event that says so.
var asked = map[string]string{
	"instance.provisioning": "create", "instance.updating": "update", "instance.stopping": "remove",
	"instance.collected": "collect", "instance.debt": "remove",
}

// step shows a change of an instance as a step of a task: what was asked, or
// what the node made of it.
func (v *viewer) step(c *store.Change) (contract.TaskStep, bool) {
	spec, ok := c.Record.Spec.(*mariposa.InstanceSpec)
	if !ok {
		return contract.TaskStep{}, false
	}
	step := contract.TaskStep{
		Revision: c.Revision, At: c.Time, Instance: c.Record.ID, InstanceName: spec.Name,
		Node: spec.Node, NodeName: v.nodeName(spec.Node), Reason: c.Event.Reason,
	}
	switch {
	case c.Deleted:
		step.Step, step.Result = "collect", "done"
	case c.Spec:
		step.Step, step.Result = firstOf(asked[c.Event.Kind], "update"), "asked"
	default:
		step.Step, step.Result = "create", string(mariposa.StateOf(spec, instanceStatus(&c.Record)))
		if spec.Goal != mariposa.GoalRunning {
			step.Step = "remove"
		} else if spec.Generation > 1 {
			step.Step = "update"
		}
	}
	return step, true
}

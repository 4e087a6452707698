package change

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/store"
)

// Terminate ends a task at a user's request.
func (c *Changer) Terminate(ctx context.Context, req *Request, task *store.Task) (*contract.Terminated, error) {
	spec := task.Spec()
	if spec.OfNode() {
		return commit(ctx, c, req, spec.Node, c.stopDrain(req, task))
	}
	return commit(ctx, c, req, spec.Project, func() (*store.Unit, contract.Terminated, error) {
		e, err := c.edit(ctx, req, spec.Project)
		if err != nil {
			return nil, contract.Terminated{}, err
		}
		doc, err := e.stopTask(task.ID)
		return &e.unit, doc, err
	})
}

// stopTask ends a task, and freezes its scope if it was active.
func (e *edit) stopTask(id string) (contract.Terminated, error) {
	admission, freeze, err := queue.Terminate(e.tasks, id)
	if err != nil {
		return contract.Terminated{}, err
	}
	why := &mariposa.Reason{Code: mariposa.ReasonTerminatedBy, Subject: e.req.actor()}
	doc, by := contract.Terminated{Task: id}, id
	if freeze != nil {
		freeze.Author, freeze.Created = e.req.actor(), e.now
		by = e.c.NewID()
		doc.Freeze = &by
		e.unit.Audit[0].Task = id
		e.write(store.Write{Kind: mariposa.KindTask, ID: by, Spec: freeze}, "task.queued", freeze.Reason)
		e.unit.Writes[len(e.unit.Writes)-1].Event.Task = by
	}
	for _, old := range admission.Terminate {
		e.terminate(old, by)
		st := e.unit.Writes[len(e.unit.Writes)-1].Status.(*mariposa.TaskStatus)
		if old.ID == id {
			st.Reason, st.EndedBy = why, e.req.actor()
			e.unit.Writes[len(e.unit.Writes)-1].Event.Reason = st.Reason
		}
	}
	at := slices.IndexFunc(e.tasks, func(t queue.Task) bool { return t.ID == id })
	if err := e.describe(&doc, e.tasks[at]); err != nil {
		return doc, err
	}
	if _, err := e.finish("task " + id + " was " + reason.Sentence(why)); err != nil {
		return doc, err
	}
	return doc, nil
}

// describe adds the current state of a task's scope, and the commands to continue or
// undo.
func (e *edit) describe(doc *contract.Terminated, task queue.Task) error {
	spec := task.Spec
	doc.Goal, doc.Actual = map[string]int{}, map[string]int{}
	for name, ss := range e.serviceNames() {
		if doc.Goal[name], doc.Actual[name] = ss.Scale, 0; ss.Removed {
			doc.Goal[name] = 0
		}
	}
	for _, r := range e.c.Picture.InstancesOf(e.record.ID) {
		i := r.Spec()
		if i.Managed { // instances of a removed service have a goal of 0
			doc.Goal[i.ServiceName] += 0
			doc.Actual[i.ServiceName] += 0
		}
		if i.Managed && !i.Kept && mariposa.StateOf(i, r.Status()) == mariposa.StateRunning && e.c.reachable(i.Node) {
			doc.Actual[i.ServiceName]++
		}
	}
	beside := func(name string, _ int) bool { return !queue.Overlap(spec.Services, []string{name}) }
	maps.DeleteFunc(doc.Goal, beside)
	maps.DeleteFunc(doc.Actual, beside)
	if doc.Freeze == nil {
		doc.ContinueWith = e.command(continueCommand(spec))
		return nil
	}
	doc.ContinueWith = e.command("project thaw" + serviceWords(spec.Services))
	undo, err := e.undoCommands(task)
	doc.UndoWith = e.chain(undo)
	return err
}

// serviceNames returns the services in force; before the first plan, those of the
// manifest.
func (e *edit) serviceNames() map[string]*mariposa.ServiceStatus {
	if st := e.record.Status(); st != nil {
		return st.Services
	}
	return e.goals()
}

// command returns a command about the project as the caller would type it.
func (e *edit) command(words string) string {
	return "mariposa -j " + e.spec.Name + e.organizationFlag() + " " + words
}

// organizationFlag returns the flag for the project's organization if it is not the
// caller's own.
func (e *edit) organizationFlag() string {
	if e.spec.Organization == e.req.Caller.Home {
		return ""
	}
	return " -o " + e.c.name(mariposa.KindOrg, e.spec.Organization)
}

// continueCommand returns the command that requests again what a task was to do.
func continueCommand(spec *mariposa.TaskSpec) string {
	p := spec.Patch
	switch {
	case p.StopVersion > 0:
		return fmt.Sprintf("project stop --version %d", p.StopVersion) + serviceWords(spec.Services)
	case p.Number > 0 && spec.Task != mariposa.TaskStart && p.KeepScale:
		return fmt.Sprintf("project revert %d", p.Number)
	case p.Number > 0 && spec.Task != mariposa.TaskStart:
		return fmt.Sprintf("project revert %d --with-scale", p.Number)
	case len(p.Scale)+len(p.ScaleBy) > 0:
		return "project scale " + scaleWords(p.Scale, p.ScaleBy)
	case spec.Task == mariposa.TaskReprovision:
		return "project reprovision" + serviceWords(spec.Services)
	}
	return "project " + string(spec.Task) + serviceWords(spec.Services)
}

func serviceWords(services []string) string {
	var b strings.Builder
	for _, name := range services {
		b.WriteString(" --service " + name)
	}
	return b.String()
}

func scaleWords(scales, by map[string]int) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(scales)) {
		words = append(words, fmt.Sprintf("%s=%d", name, scales[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		words = append(words, fmt.Sprintf("%s=%+d", name, by[name]))
	}
	return strings.Join(words, " ")
}

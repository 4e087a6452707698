package cli

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// Users refer to objects by the names that they see. The server knows names and prefixes
// of ids. Slots, names with a project prefix and prefixes of task ids are resolved here.

var (
	wholeID = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	aSlot   = regexp.MustCompile(`^[a-z0-9-]+\.[0-9]+$`)
)

// instanceRef resolves the name of an instance to one that the server knows:
// hello/web.2-ab12cd is an instance of a project, web.2 is the current instance in that
// slot.
func (a *app) instanceRef(ctx context.Context, c *client.Client, word string) (string, error) {
	project, err := a.anyProject(false)
	if err != nil {
		return "", err
	}
	return a.instanceIn(ctx, c, project, word)
}

// instanceIn resolves an instance within a project, unless the name includes another
// project. Another project may have an instance with the same name, so with a project only
// a whole id is left to the server.
func (a *app) instanceIn(ctx context.Context, c *client.Client, project, word string) (string, error) {
	if p, name, ok := strings.Cut(word, "/"); ok {
		project, word = p, name
	}
	isSlot := aSlot.MatchString(word)
	if !isSlot && (project == "" || wholeID.MatchString(word)) {
		return word, nil
	}
	f, what := client.InstanceFilter{Project: project}, fmt.Sprintf("instance %q in project %s", word, project)
	if service, _, ok := strings.Cut(word, "."); ok {
		f.Service = service
	}
	is := func(i contract.Instance) bool {
		return i.Name == word || len(word) >= 4 && strings.HasPrefix(i.ID, word)
	}
	if isSlot {
		what = fmt.Sprintf("instance in slot %q", word)
		is = func(i contract.Instance) bool { return i.Slot == word && i.Goal == mariposa.GoalRunning }
	}
	found, err := findInstances(ctx, c, f, is)
	if mariposa.CodeOf(err) == mariposa.ResourceNotFound && f.Service != "" { // what is before the dot is no service
		f.Service = ""
		found, err = findInstances(ctx, c, f, is)
	}
	if err != nil {
		return "", err
	}
	return a.pick(found, what, "instance list")
}

// findInstances returns the instances of a list that match.
func findInstances(ctx context.Context, c *client.Client, f client.InstanceFilter, is func(contract.Instance) bool) (found []candidate, err error) {
	for i, err := range c.Instances(ctx, f) {
		if err != nil {
			return nil, err
		}
		if is(i) {
			found = append(found, candidate{i.ID, i.ProjectName + "/" + i.Name})
		}
	}
	return found, nil
}

// taskRef resolves a prefix of a task's id. It searches all open tasks, regardless of
// their age.
func (a *app) taskRef(ctx context.Context, c *client.Client, word string) (string, error) {
	if wholeID.MatchString(word) {
		return word, nil
	}
	var found []candidate
	for _, f := range []client.TaskFilter{{}, {All: true, Limit: 1000}} {
		tasks, err := c.Queue(ctx, f)
		if err != nil {
			return "", err
		}
		for _, t := range tasks.Tasks {
			if one := (candidate{t.ID, describeTask(&t)}); strings.HasPrefix(t.ID, word) && !slices.Contains(found, one) {
				found = append(found, one)
			}
		}
	}
	return a.pick(found, fmt.Sprintf("task %q", word), "queue list --all")
}

// A candidate is an object that a name may refer to.
type candidate struct{ id, name string }

// pick requires exactly one candidate.
func (a *app) pick(found []candidate, what, list string) (string, error) {
	switch len(found) {
	case 0:
		return "", withHint(mariposa.Errorf(mariposa.ResourceNotFound, "there is no %s", what), "see `%s %s`", a.samePrefix(), list)
	case 1:
		return found[0].id, nil
	}
	var like []string
	for _, c := range found[:min(len(found), 5)] {
		like = append(like, c.name+" ("+c.id+")")
	}
	return "", withHint(mariposa.Errorf(mariposa.InvalidArgument, "there is more than one %s", what), "use the id of one of them: %s", strings.Join(like, ", "))
}

// describeTask describes a task briefly: scale hello/web, drain host-7. It uses the user's
// term for the task if there is one.
func describeTask(t *contract.Task) string {
	scope := cmp.Or(t.ProjectName, t.NodeName, t.Node)
	if len(t.Services) > 0 {
		scope = fmt.Sprintf("%s/%s", t.ProjectName, strings.Join(t.Services, ","))
	}
	return taskVerb(t) + " " + scope
}

func taskVerb(t *contract.Task) string { return mariposa.TaskWord(t.Task, t.Component) }

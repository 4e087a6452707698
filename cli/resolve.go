package cli

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// People name things by what they see: an instance by its name or slot, a node
// by its name, anything by the beginning of its id. The API wants ids.

var wholeID = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// A candidate is something that a word may stand for.
type candidate struct {
	id    string
	names []string // the first is how we speak of it
}

// pick finds the one candidate that a word stands for. A whole name goes before
// the beginning of an id.
func pick(kind, word string, all []candidate) (string, error) {
	var named, begun []candidate
	for _, c := range all {
		for _, n := range c.names {
			if n == word {
				named = append(named, c)
				break
			}
		}
		if strings.HasPrefix(c.id, word) {
			begun = append(begun, c)
		}
	}
	found := named
	if len(found) == 0 {
		found = begun
	}
	switch len(found) {
	case 0:
		return "", hinted(mariposa.Errorf(mariposa.ResourceNotFound, "there is no %s %q", kind, word), "see `mariposa %s list`", kind)
	case 1:
		return found[0].id, nil
	}
	var like []string
	for _, c := range found[:min(len(found), 5)] {
		like = append(like, c.names[0]+" ("+c.id+")")
	}
	return "", hinted(mariposa.Errorf(mariposa.InvalidArgument, "%q means %d %ss", word, len(found), kind), "give the id of one: %s", strings.Join(like, ", "))
}

func (a *app) instanceID(ctx context.Context, c *client.Client, word string) (string, error) {
	if wholeID.MatchString(word) {
		return word, nil
	}
	project, err := a.anyProject(false)
	if err != nil {
		return "", err
	}
	// hello/web.2 names the project too, as events and the live view do.
	if p, name, ok := strings.Cut(word, "/"); ok {
		project, word = p, name
	}
	var all []candidate
	for i, err := range c.Instances(ctx, client.InstanceFilter{Project: project}) {
		if err != nil {
			return "", err
		}
		k := candidate{id: i.ID, names: []string{i.Name}}
		if i.Goal == mariposa.GoalRunning {
			k.names = append(k.names, i.Slot) // a slot means who fills it now
		}
		all = append(all, k)
	}
	return pick("instance", word, all)
}

func nodeID(ctx context.Context, c *client.Client, word string) (string, error) {
	if wholeID.MatchString(word) {
		return word, nil
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return "", err
	}
	var all []candidate
	for _, n := range nodes.Nodes {
		all = append(all, candidate{n.ID, []string{n.Name}})
	}
	return pick("node", word, all)
}

func taskID(ctx context.Context, c *client.Client, word string) (string, error) {
	if wholeID.MatchString(word) {
		return word, nil
	}
	tasks, err := c.Queue(ctx, client.TaskFilter{All: true})
	if err != nil {
		return "", err
	}
	var all []candidate
	for _, t := range tasks.Tasks {
		all = append(all, candidate{t.ID, []string{what(&t)}})
	}
	id, err := pick("task", word, all)
	if mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		err = hinted(mariposa.Errorf(mariposa.ResourceNotFound, "there is no task %q", word), "see `mariposa queue list --all`")
	}
	return id, err
}

// what a task does, in few words: scale hello/web.
func what(t *contract.Task) string {
	scope := t.ProjectName
	if len(t.Services) > 0 {
		scope = fmt.Sprintf("%s/%s", t.ProjectName, strings.Join(t.Services, ","))
	}
	return string(t.Task) + " " + scope
}

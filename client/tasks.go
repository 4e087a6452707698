package client

import (
	"context"
	"net/url"
	"strconv"

	"mariposa/contract"
)

// TaskFilter selects tasks of the queue.
type TaskFilter struct {
	Project string
	Service string
	State   string
	All     bool // include those that have ended
	Limit   int  // the newest n; 0: all
}

// largestPage is the server's maximum page size.
const largestPage = 1000

// Queue lists tasks, newest first. It reads all pages up to the limit. A marker in the
// response means that there are more.
func (c *Client) Queue(ctx context.Context, f TaskFilter) (*contract.Tasks, error) {
	q := c.projectQuery(f.Project)
	setParameter(q, "service", f.Service, "state", f.State)
	setIf(q, "all", f.All)
	setPageSize(q, f.Limit)
	all := &contract.Tasks{Tasks: []contract.Task{}}
	err := pages(q, func() (string, error) {
		page, err := send[contract.Tasks](ctx, c, get("/v1/queue", q))
		if err != nil {
			return "", err
		}
		all.Tasks, all.Marker = append(all.Tasks, page.Tasks...), page.Marker
		if over := len(all.Tasks) - f.Limit; f.Limit > 0 && over >= 0 {
			if over > 0 {
				all.Tasks = all.Tasks[:f.Limit]
				all.Marker = all.Tasks[f.Limit-1].ID
			}
			return "", nil
		}
		return page.Marker, nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// setPageSize sets the page size for a limit; 0 means all.
func setPageSize(q url.Values, limit int) {
	if limit <= 0 {
		limit = largestPage
	}
	q.Set("limit", strconv.Itoa(min(limit, largestPage)))
}

// Task returns one task with its newest steps.
func (c *Client) Task(ctx context.Context, id string) (*contract.Task, error) {
	return send[contract.Task](ctx, c, get(pathUnder("/v1/queue", id), nil))
}

// TaskSteps returns one task with its newest steps, up to limit; 0 means all. It reads
// all pages up to the limit. A marker in the response means that there are more.
func (c *Client) TaskSteps(ctx context.Context, id string, limit int) (*contract.Task, error) {
	q := url.Values{}
	setPageSize(q, limit)
	var task *contract.Task
	err := pages(q, func() (string, error) {
		page, err := send[contract.Task](ctx, c, get(pathUnder("/v1/queue", id), q))
		if err != nil {
			return "", err
		}
		if task == nil {
			task = page
		} else {
			task.Steps, task.Marker = append(task.Steps, page.Steps...), page.Marker
		}
		if over := len(task.Steps) - limit; limit > 0 && over >= 0 {
			if over > 0 {
				task.Steps = task.Steps[:limit]
				task.Marker = strconv.FormatInt(task.Steps[limit-1].Revision, 10)
			}
			return "", nil
		}
		return page.Marker, nil
	})
	return task, err
}

// TerminateTask terminates a task. If it is active, its scope is frozen.
func (c *Client) TerminateTask(ctx context.Context, id string) (*contract.Terminated, error) {
	return send[contract.Terminated](ctx, c, remove(pathUnder("/v1/queue", id), nil))
}

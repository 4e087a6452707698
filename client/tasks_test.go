package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"mariposa/contract"
)

// taskServer is a server with a number of tasks, or steps of a task, newest first, and
// a maximum page size.
func taskServer(t *testing.T, total, most int) *Client {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		limit, _ := strconv.Atoi(r.FormValue("limit"))
		begin, end := total, 0
		if m, err := strconv.Atoi(r.FormValue("marker")); err == nil {
			begin = m - 1
		}
		end = max(0, begin-min(limit, most))
		tasks, task := contract.Tasks{Tasks: []contract.Task{}}, contract.Task{ID: "t1"}
		for n := begin; n > end; n-- {
			tasks.Tasks = append(tasks.Tasks, contract.Task{ID: fmt.Sprint(n)})
			task.Steps = append(task.Steps, contract.TaskStep{Revision: int64(n)})
		}
		if end > 0 {
			tasks.Marker, task.Marker = fmt.Sprint(end+1), fmt.Sprint(end+1)
		}
		if r.URL.Path == "/v1/queue" {
			_ = json.NewEncoder(w).Encode(tasks)
			return
		}
		_ = json.NewEncoder(w).Encode(task)
	})
}

func TestPagesAreTurnedUntilThereIsEnough(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, c := range []struct {
		name               string
		total, most, limit int
		want               int
		more               string
	}{
		{"nothing", 0, 10, 0, 0, ""},
		{"all on one page", 7, 10, 0, 7, ""},
		{"all on many pages", 25, 10, 0, 25, ""},
		{"exactly as many as there are", 20, 10, 20, 20, ""},
		{"fewer than there are", 25, 10, 20, 20, "6"},
		{"in the middle of a page", 25, 10, 15, 15, "11"},
		{"more than there are", 25, 10, 100, 25, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := taskServer(t, c.total, c.most)
			tasks, err := s.Queue(ctx, TaskFilter{All: true, Limit: c.limit})
			if err != nil || len(tasks.Tasks) != c.want || tasks.Marker != c.more {
				t.Errorf("tasks: %d, marker %q, %v", len(tasks.Tasks), tasks.Marker, err)
			}
			task, err := s.TaskSteps(ctx, "t1", c.limit)
			if err != nil || len(task.Steps) != c.want || task.Marker != c.more || task.ID != "t1" {
				t.Errorf("steps: %d, marker %q, %v", len(task.Steps), task.Marker, err)
			}
			for n, step := range task.Steps {
				if want := c.total - n; step.Revision != int64(want) || tasks.Tasks[n].ID != fmt.Sprint(want) {
					t.Fatalf("at %d are step %d and task %s", n, step.Revision, tasks.Tasks[n].ID)
				}
			}
		})
	}
}

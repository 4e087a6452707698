package mariposa

import "time"

// TaskSpec says who asked for which change and why. A task carries its change
// of goal and the planner applies it when the task becomes active.
type TaskSpec struct {
	Project     string    `json:"project"`
	ProjectName string    `json:"project_name,omitempty"` // when the task was made: the project may be gone before its tasks are
	Services    []string  `json:"services,omitempty"`     // names; none: the whole project
	Component   string    `json:"component,omitempty"`
	Task        TaskKind  `json:"task"`
	Origin      Origin    `json:"origin"`
	Author      string    `json:"author,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	Created     time.Time `json:"created"`
	Version     string    `json:"version,omitempty"`
	Patch       Patch     `json:"patch,omitzero"`
}

// Patch is a change of a project's goal.
type Patch struct {
	Number      int            `json:"number,omitempty"` // bring this version into force
	Goal        ProjectGoal    `json:"goal,omitempty"`
	Scale       map[string]int `json:"scale,omitempty"`
	ScaleBy     map[string]int `json:"scale_by,omitempty"`
	Rolling     Amount         `json:"rolling,omitzero"`
	Reprovision []string       `json:"reprovision,omitempty"` // services whose instances are all to be made anew
}

// TaskStatus is how far a task is.
type TaskStatus struct {
	State    TaskState `json:"state"`
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	Moved    time.Time `json:"moved,omitzero"` // when progress was last made
	Progress Progress  `json:"progress"`
	Reason   string    `json:"reason,omitempty"`
	EndedBy  string    `json:"ended_by,omitempty"`
}

// Progress never runs backwards.
type Progress struct {
	Done  int `json:"done"`
	Total int `json:"total"`
}

// TaskKind names what a task does.
type TaskKind string

const (
	TaskStart       TaskKind = "start"
	TaskStop        TaskKind = "stop"
	TaskScale       TaskKind = "scale"
	TaskReprovision TaskKind = "reprovision"
	TaskFreeze      TaskKind = "freeze"
)

// Origin says whether a person or Mariposa itself asked.
type Origin string

const (
	OriginUser     Origin = "user"
	OriginMariposa Origin = "mariposa"
)

// TaskState is where a task is in its life.
type TaskState string

const (
	TaskQueued     TaskState = "queued"
	TaskActive     TaskState = "active"
	TaskCompleted  TaskState = "completed"
	TaskFailed     TaskState = "failed"
	TaskTerminated TaskState = "terminated"
)

// Ended reports whether a task will never change again.
func (s TaskState) Ended() bool {
	return s == TaskCompleted || s == TaskFailed || s == TaskTerminated
}

// StateOfTask is the state of a task; one that no planner has touched is queued.
func StateOfTask(s *TaskStatus) TaskState {
	if s == nil || s.State == "" {
		return TaskQueued
	}
	return s.State
}

package mariposa

import "time"

// TaskSpec says who asked for which change and why. A task carries its change
// of goal and the planner applies it when the task becomes active.
type TaskSpec struct {
	Project     string         `json:"project"`
	ProjectName string         `json:"project_name,omitempty"` // when the task was made: the project may be gone before its tasks are
	Services    []string       `json:"services,omitempty"`     // names; none: the whole project
	Component   string         `json:"component,omitempty"`
	Task        TaskKind       `json:"task"`
	Origin      Origin         `json:"origin"`
	Author      string         `json:"author,omitempty"`
	Reason      *Reason        `json:"reason,omitempty"`
	Created     time.Time      `json:"created"`
	Version     string         `json:"version,omitempty"`
	Patch       Patch          `json:"patch,omitzero"`
	Before      map[string]int `json:"before,omitempty"` // of a change of scale: what it was
	// LiftsFreeze: it ends the freeze of the services it names. Without it, a task on a
	// frozen scope waits for the thaw.
	LiftsFreeze bool `json:"lifts,omitempty"`
	// Immediate: it begins at once, whatever else is open (thaw, pause, resume,
	// converge, accept).
	Immediate bool `json:"aside,omitempty"`
	// Supersedes: it takes the place of a start in its scope (a new manifest, a
	// deploy, a revert). Without it, a task waits for the start to end.
	Supersedes bool `json:"supersedes,omitempty"`
}

// Patch is a change of a project's goal. Goal and Mode speak of the services of
// the task that carries it, or of the whole project where it names none.
type Patch struct {
	Number      int            `json:"number,omitempty"` // bring this version into force
	Goal        ProjectGoal    `json:"goal,omitempty"`
	Mode        Mode           `json:"mode,omitempty"`
	Scale       map[string]int `json:"scale,omitempty"`
	ScaleBy     map[string]int `json:"scale_by,omitempty"`
	Rolling     Amount         `json:"rolling,omitzero"`
	Canary      Amount         `json:"canary,omitzero"`       // hold after so many; zero: as the service says (of a reprovision: go on to the end)
	Reprovision []string       `json:"reprovision,omitempty"` // services whose instances are all to be made anew
	Filter      *Filter        `json:"filter,omitempty"`      // of those, only what matches
	Retry       bool           `json:"retry,omitempty"`       // do not wait for the end of back-offs, this once
	Accept      bool           `json:"accept,omitempty"`      // the goal becomes what runs
	KeepScale   bool           `json:"keep_scale,omitempty"`  // whatever the version says of scales (revert)
	Rollback    bool           `json:"undo,omitempty"`        // take the version in force back: scales too, and no undoing of this
}

// Mode is how much of a goal is worked on.
type Mode string

const (
	ModeFreeze Mode = "freeze" // nothing is changed once all has settled
	ModeThaw   Mode = "thaw"
	ModePause  Mode = "pause" // rollouts hold, repairs go on
	ModeResume Mode = "resume"
)

// TaskStatus is how far a task is.
type TaskStatus struct {
	State        TaskState `json:"state"`
	Started      time.Time `json:"started,omitzero"`
	Finished     time.Time `json:"finished,omitzero"`
	LastProgress time.Time `json:"moved,omitzero"` // when progress was last made
	Progress     Progress  `json:"progress"`
	Remaining    int       `json:"left,omitempty"` // the least there was left to do since its scope was last changed; 0: not known
	Reason       *Reason   `json:"reason,omitempty"`
	EndedBy      string    `json:"ended_by,omitempty"`
	Fault        *Reason   `json:"fault,omitempty"` // it will end failed: what it brought is being rolled back
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

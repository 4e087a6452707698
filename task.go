package mariposa

import "time"

// TaskSpec says who requested which change and why. A task contains its change of the
// goal, which the planner applies when the task becomes active.
type TaskSpec struct {
	Project     string    `json:"project"`
	ProjectName string    `json:"project_name,omitempty"` // at the time of the task: the project may be deleted before its tasks
	Services    []string  `json:"services,omitempty"`     // names; none: the whole project
	Component   string    `json:"component,omitempty"`
	Task        TaskKind  `json:"task"`
	Origin      Origin    `json:"origin"`
	Author      string    `json:"author,omitempty"`
	Reason      *Reason   `json:"reason,omitempty"`
	Created     time.Time `json:"created"`
	Version     string    `json:"version,omitempty"`
	Number      int       `json:"number,omitempty"` // of that version; 0 in tasks of earlier releases
	Patch       Patch     `json:"patch,omitzero"`
	// LiftsFreeze: it ends the freeze of the services it names. Without it, a
	// task on a frozen scope waits for the thaw.
	LiftsFreeze bool `json:"lifts,omitempty"`
	// Immediate: it begins at once, even if other tasks are open (thaw, pause, resume,
	// converge, accept).
	Immediate bool `json:"aside,omitempty"`
	// Supersedes: it replaces a start in its scope (a new manifest, a deploy, a revert).
	// Without it, a task waits for the start to end.
	Supersedes bool `json:"supersedes,omitempty"`
	// Node is the node that a task is about: a drain. One of the whole node has no project;
	// its work is done by tasks in projects, of which it is the Parent.
	Node     string `json:"node,omitempty"`
	NodeName string `json:"node_name,omitempty"` // at the time of the task
	Parent   string `json:"parent,omitempty"`
}

// DrainComponent is the component of tasks that move instances off a node.
const DrainComponent = "drain"

// OfNode reports whether a task is about a whole node, not about a project.
func (s *TaskSpec) OfNode() bool { return s.Project == "" && s.Node != "" }

// Patch is a change of a project's goal. Goal and Mode apply to the services of
// the task that carries it, or to the whole project if it names none.
type Patch struct {
	Number      int            `json:"number,omitempty"` // bring this version into force
	Goal        ProjectGoal    `json:"goal,omitempty"`
	Mode        Mode           `json:"mode,omitempty"`
	Scale       map[string]int `json:"scale,omitempty"`
	ScaleBy     map[string]int `json:"scale_by,omitempty"`
	Rolling     Amount         `json:"rolling,omitzero"`
	Canary      Amount         `json:"canary,omitzero"`        // hold after this many; zero: as the service says (for a reprovision: no hold)
	Reprovision []string       `json:"reprovision,omitempty"`  // services whose instances are all replaced
	Filter      *Filter        `json:"filter,omitempty"`       // replace only the matching ones of those
	StopVersion int            `json:"stop_version,omitempty"` // stop only the instances of this version
	All         bool           `json:"all,omitempty"`          // of a reprovision: also replace what a held rollout has brought to its target
	Retry       bool           `json:"retry,omitempty"`        // skip the back-offs, this once
	Reschedule  bool           `json:"reschedule,omitempty"`   // replace the instances on nodes that are lost now, without further waiting
	Accept      bool           `json:"accept,omitempty"`       // what runs becomes the goal
	KeepScale   bool           `json:"keep_scale,omitempty"`   // keep the scales, whatever the version says (revert)
	SkipCanary  bool           `json:"skip_canary,omitempty"`  // ignore update.canary of the services (revert); Canary still counts
	Rollback    bool           `json:"undo,omitempty"`         // roll back the version in force, its scales too; this is not rolled back itself
}

// Mode limits what is done towards a goal.
type Mode string

const (
	ModeFreeze Mode = "freeze" // nothing is changed once everything has settled
	ModeThaw   Mode = "thaw"
	ModePause  Mode = "pause" // rollouts are paused, repairs continue
	ModeResume Mode = "resume"
)

// TaskStatus is the state and progress of a task.
type TaskStatus struct {
	State        TaskState `json:"state"`
	Started      time.Time `json:"started,omitzero"`
	Finished     time.Time `json:"finished,omitzero"`
	LastProgress time.Time `json:"moved,omitzero"` // when progress was last made
	Progress     Progress  `json:"progress"`
	Remaining    int       `json:"left,omitempty"` // the lowest number of remaining steps since its scope last changed; 0: unknown
	Reason       *Reason   `json:"reason,omitempty"`
	EndedBy      string    `json:"ended_by,omitempty"`
	Fault        *Reason   `json:"fault,omitempty"` // it will end as failed: its version is being rolled back
	Before       *Before   `json:"before,omitempty"`
}

// Before is the part of the state that a task changed, as it was when the task began: an
// undo restores it.
type Before struct {
	Number     int             `json:"number,omitempty"`  // the version in force; 0: none
	Scale      map[string]int  `json:"scale,omitempty"`   // of the services whose scale it changed
	Flipped    []string        `json:"flipped,omitempty"` // the services that it started or stopped, sorted
	FlippedAll bool            `json:"flipped_all,omitempty"`
	Held       map[string]Hold `json:"held,omitempty"` // the services whose held rollout it continued or replaced
}

// Hold is a held rollout: a canary of Count instances, while the others were at version
// From.
type Hold struct {
	Count int `json:"count"`
	From  int `json:"from,omitempty"`
}

// Progress is how much of the known work of a task is done. It never decreases, and it is
// not complete while a rollout is held.
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

// TaskWord returns the word that people use for what a task does: a task of the kind
// freeze whose component is thaw is a thaw.
func TaskWord(kind TaskKind, component string) string {
	switch component {
	case "thaw", "pause", "resume", "converge", "accept", "delete", "repair", "cleanup", "rollback", DrainComponent:
		return component
	case "instance":
		if kind == TaskReprovision {
			return "replace"
		}
	}
	return string(kind)
}

// Word returns the word that people use for what the task does.
func (s *TaskSpec) Word() string { return TaskWord(s.Task, s.Component) }

// Origin says whether a user or Mariposa itself requested a task.
type Origin string

const (
	OriginUser     Origin = "user"
	OriginMariposa Origin = "mariposa"
)

// TaskState is the stage of a task's life.
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

// StateOfTask returns the state of a task; one that no planner has touched is
// queued.
func StateOfTask(s *TaskStatus) TaskState {
	if s == nil || s.State == "" {
		return TaskQueued
	}
	return s.State
}

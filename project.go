package mariposa

import (
	"fmt"
	"slices"
	"time"
)

// ProjectSpec is what users set for a project. The API writes it.
type ProjectSpec struct {
	Name         string            `json:"name"`
	Organization string            `json:"organization"`
	Created      time.Time         `json:"created"`
	Author       string            `json:"author,omitempty"`
	Version      string            `json:"version"`                // the newest submitted version
	Number       int               `json:"number"`                 // its number
	Services     map[string]string `json:"services"`               // name -> id of every service it ever had
	Deleting     bool              `json:"deleting,omitempty"`     // its name is free again; it is deleted once its last instance is removed
	DropVolumes  bool              `json:"drop_volumes,omitempty"` // of one being deleted: its volumes are removed too
	Users        map[string]Role   `json:"users,omitempty"`        // by user id, in addition to their role in the organization
	Metadata     int               `json:"metadata,omitempty"`     // the newest generation of its values; 0: none
	Versions     []int             `json:"versions,omitempty"`     // the numbers of the versions that are kept, oldest first
	Tags         map[string]int    `json:"tags,omitempty"`         // tag -> version number, set by users
	Protected    []string          `json:"protected,omitempty"`    // metadata keys that only approved versions may use, sorted
	Approvals    []Approval        `json:"approvals,omitempty"`    // what operators have approved, oldest first
	Unmanaged    Resources         `json:"single,omitzero"`        // what its unmanaged instances use
	Demand       Resources         `json:"demand,omitzero"`        // what is reserved for it in its organization's quota, including Unmanaged
}

// ProjectStatus is the goal in force and how far the project has converged to it. The
// project's planner writes it.
type ProjectStatus struct {
	Goal           ProjectGoal    `json:"goal"`
	Version        string         `json:"version"` // the version in force
	Number         int            `json:"number"`
	Completed      int            `json:"completed,omitempty"` // the version that was last fully in force
	RolledBack     int            `json:"undone,omitempty"`    // the newest version that was rolled back
	RollbackReason *Reason        `json:"undone_why,omitempty"`
	Fallback       map[string]int `json:"fallback,omitempty"` // the scales of Completed, for a rollback; nil while it is in force
	Frozen         bool           `json:"frozen,omitempty"`   // new services are frozen too; see IsFrozen
	Paused         bool           `json:"paused,omitempty"`   // likewise
	Status         Status         `json:"status"`
	Reason         *Reason        `json:"reason,omitempty"`
	// Services are by name; removed ones stay until their last instance is removed. In
	// the store each is a separate record, which the picture adds here. Stores of older
	// releases have them here.
	Services map[string]*ServiceStatus `json:"services,omitempty"`
}

// IsFrozen reports whether the whole project is frozen: each of its services.
func (s *ProjectStatus) IsFrozen() bool {
	return s.isWhole(s.Frozen, func(ss *ServiceStatus) bool { return ss.Frozen != nil })
}

// FrozenServices returns the services of a scope that are frozen, sorted. No services
// means the whole project.
func (s *ProjectStatus) FrozenServices(scope []string) []string {
	var names []string
	for name, ss := range s.Services {
		if ss.Frozen != nil && !ss.Removed && (len(scope) == 0 || slices.Contains(scope, name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// IsPaused reports whether the whole project is paused: each of its services.
func (s *ProjectStatus) IsPaused() bool {
	return s.isWhole(s.Paused, func(ss *ServiceStatus) bool { return ss.Paused })
}

// isWhole reports whether a predicate is true for each service; without services, it
// returns the value for new ones.
func (s *ProjectStatus) isWhole(empty bool, is func(*ServiceStatus) bool) bool {
	n := 0
	for _, ss := range s.Services {
		if ss.Removed {
			continue
		}
		if n++; !is(ss) {
			return false
		}
	}
	return n > 0 || empty
}

// RunningScale returns how many instances of a service a goal wants to run; 0 if it is
// stopped.
func (s *ProjectStatus) RunningScale(name string) int {
	if s == nil || s.Goal != GoalStarted || s.Services[name] == nil || s.Services[name].Removed || s.Services[name].Stopped {
		return 0
	}
	return s.Services[name].Scale
}

// ServiceSpec says which project a service belongs to.
type ServiceSpec struct {
	Project string `json:"project"`
	Name    string `json:"name"`
}

// ServiceID is the id of a project's service in the store.
func ServiceID(project, name string) string { return project + "/" + name }

// ServiceStatus is the goal of one service and how far it has converged.
type ServiceStatus struct {
	ID      string  `json:"id"`
	Scale   int     `json:"scale"`
	Number  int     `json:"number"`            // the version whose definition of the service is in force
	Removed bool    `json:"removed,omitempty"` // no longer in the manifest: its instances are removed
	Stopped bool    `json:"stopped,omitempty"` // stopped alone, while the project is started
	Retired int     `json:"retired,omitempty"` // a user stopped this version: its instances are the first to be removed; 0: none
	Frozen  *Freeze `json:"frozen,omitempty"`  // nothing is changed until the thaw
	Paused  bool    `json:"paused,omitempty"`  // its rollout is paused; repairs go on
	// Accepted: a user accepted what was running though it did not match Number. No
	// version counts as completed until the service is rolled out again.
	Accepted bool     `json:"accepted,omitempty"`
	Rollout  *Rollout `json:"rollout,omitempty"` // nil: outdated instances are left alone
	Backoff  *Backoff `json:"backoff,omitempty"`
	// RescheduleNow is when a user asked to replace its instances on lost nodes without
	// further waiting. It counts only for nodes that were lost before that time.
	RescheduleNow time.Time `json:"reschedule_now,omitzero"`
	// Bindings are what its references to other services resolve to.
	Bindings *Bindings `json:"bindings,omitempty"`
	// Yields are instances that will be removed once no other service refers to them;
	// those services follow other instances first. Sorted.
	Yields []string `json:"yields,omitempty"`
	Status Status   `json:"status"`
	Reason *Reason  `json:"reason,omitempty"`
	// Drain is why its instances on nodes that are being drained do not move now; nil: they
	// do, or there are none.
	Drain *Reason `json:"drain,omitempty"`
}

// Freeze keeps a service as it is. The service settles first: instances that were never
// ready are removed, and those that are stopping finish.
type Freeze struct {
	Since   time.Time `json:"since"`
	By      string    `json:"by,omitempty"`     // who asked for it; empty: not known
	Values  int       `json:"values,omitempty"` // the version whose live values its instances keep; 0: the newest (freezes of earlier releases)
	Settled bool      `json:"settled,omitempty"`
}

// Rollout brings a service's instances to the definition in force, batch by
// batch. Update, reprovision, canary, revert and rollback are all rollouts.
type Rollout struct {
	Number          int       `json:"number"`             // target version
	From            int       `json:"from,omitempty"`     // the version in force before
	Batch           Amount    `json:"batch,omitzero"`     // how many at a time; zero: as the service says
	Before          time.Time `json:"before,omitzero"`    // also replace instances created before this (reprovision)
	Filter          *Filter   `json:"filter,omitempty"`   // replace only what matches; nil: everything outdated
	Metadata        bool      `json:"metadata,omitempty"` // also replace instances that differ only in metadata values
	Limit           int       `json:"limit,omitempty"`    // hold once this many instances are at the target (canary); 0: no hold
	Held            bool      `json:"held,omitempty"`     // the limit has been reached
	HoldsAgain      bool      `json:"rest,omitempty"`     // it was held before a filtered part of it was requested, and will be held again
	First           bool      `json:"first,omitempty"`    // it starts the service: nothing of it ran before
	Follows         string    `json:"follows,omitempty"`  // it began because this service, which it refers to, has another instance
	IsRollback      bool      `json:"undo,omitempty"`     // it is a rollback, and is not rolled back itself
	AwaitsFollowers bool      `json:"asks,omitempty"`     // it waits until other services stop using its yielding instances
	Progress        time.Time `json:"progress"`           // when it last made progress, or could begin to
	Waiting         bool      `json:"waiting,omitempty"`  // it waits for others: that time does not count
	MostServing     int       `json:"fresh"`              // the highest number of ready instances at the target
	Failures        int       `json:"failures"`           // failures at the target since the last progress
	FailureReason   *Reason   `json:"stopped,omitempty"`  // why it stopped by itself; nil while it continues
}

// HasFailed reports whether a rollout stopped by itself.
func (r *Rollout) HasFailed() bool { return r != nil && r.FailureReason != nil }

// Filter selects instances of a service. A field that is not set matches every
// instance.
type Filter struct {
	Version   int      `json:"version,omitempty"` // the number of the version it was created from
	Image     string   `json:"image,omitempty"`
	Instances []string `json:"instances,omitempty"` // ids; any of them
	Nodes     []string `json:"nodes,omitempty"`     // ids; on any of them
}

// Backoff delays the refilling of a service whose instances keep failing.
type Backoff struct {
	Failures int       `json:"failures"`
	Until    time.Time `json:"until"`
	First    time.Time `json:"first"` // when the first failure happened that still counts
	Last     time.Time `json:"last"`
}

// ProjectGoal is the desired state of a project as a whole.
type ProjectGoal string

const (
	GoalStarted ProjectGoal = "started"
	GoalStopped ProjectGoal = "stopped"
	GoalDeleted ProjectGoal = "deleted"
)

// Status is the status of a project or service, in one word.
type Status string

const (
	StatusConverged  Status = "converged"
	StatusConverging Status = "converging"
	StatusBackingOff Status = "backing-off"
	StatusBlocked    Status = "blocked"
	StatusHeld       Status = "held"
	StatusFrozen     Status = "frozen"
	StatusPaused     Status = "paused"
	StatusFailed     Status = "failed"
	StatusStopped    Status = "stopped"
)

// VersionSpec is one submitted manifest, kept byte for byte.
type VersionSpec struct {
	Project  string                 `json:"project"`
	Version  string                 `json:"version"` // SHA-1 over the manifest and a keyed digest of the metadata
	Number   int                    `json:"number"`
	Manifest []byte                 `json:"manifest"`
	JSON     bool                   `json:"json,omitempty"` // it was submitted as JSON
	Created  time.Time              `json:"created"`
	Author   string                 `json:"author,omitempty"`
	Message  string                 `json:"message,omitempty"`
	Changed  []string               `json:"services_changed"`
	Metadata int                    `json:"metadata,omitempty"` // the generation of values that belongs to it; 0: none
	Cause    Cause                  `json:"cause,omitempty"`
	Keys     []string               `json:"keys,omitempty"`     // metadata keys that differ from the version before
	Counter  string                 `json:"counter,omitempty"`  // the key that it incremented, if it changed nothing else
	From     int                    `json:"from,omitempty"`     // of a revert: the version made current again
	Packages map[string]PackageSpec `json:"packages,omitempty"` // the sizes it names, as they were then
	Images   map[string]ImagePin    `json:"images,omitempty"`   // what the images of its containers meant then, by their names
	// Refreshed: its images were resolved anew after the manifest was submitted, so they are
	// part of its hash.
	Refreshed bool `json:"refreshed,omitempty"`
}

// ImagePin is what the name of an image meant when a version was created. A tag may move
// later; instances of the version are created from the same image nevertheless.
type ImagePin struct {
	Digest string `json:"digest,omitempty"` // sha256:…; empty: the name could not be resolved
	Why    string `json:"why,omitempty"`    // why not, as a sentence part
	ImageLabels
}

// Cause is the kind of change that created a version.
type Cause string

const (
	CauseManifest Cause = "manifest"
	CauseMetadata Cause = "metadata" // with the manifest of the version before
	CauseRevert   Cause = "revert"
	CauseRefresh  Cause = "refresh" // with the manifest of the version before, and images resolved anew
)

// VersionStatus says whether a version ever completed.
type VersionStatus struct {
	Completed time.Time `json:"completed,omitzero"`
}

// VersionID is the id of a project's version in the store. The ids of one
// project sort by number.
func VersionID(project string, number int) string { return fmt.Sprintf("%s/%08d", project, number) }

// NameSpec is the owner of a name. A project's name has the id of the organization and
// the name; it is removed when the deletion of the project begins, which frees the name.
// Users and organizations share one namespace, that of no organization.
type NameSpec struct {
	Project      string `json:"project,omitempty"`
	Organization string `json:"organization,omitempty"`
	User         string `json:"user,omitempty"`
}

// NameStatus is empty: a name has no status of its own.
type NameStatus struct{}

// NameID is the id of a name in the store; organization is an id, empty for the
// names of users and organizations themselves.
func NameID(organization, name string) string { return organization + "/" + name }

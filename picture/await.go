package picture

import (
	"maps"
	"slices"

	"mariposa"
	"mariposa/queue"
)

// AwaitedBy returns what a task waits for if none of its services makes progress; nil:
// nothing. It prefers the reason of a stuck service to that of one that waits for another.
func AwaitedBy(task *mariposa.TaskSpec, st *mariposa.ProjectStatus) (why *mariposa.Reason) {
	if mode := task.Patch.Mode; st == nil || mode == mariposa.ModeFreeze || mode == mariposa.ModePause {
		return nil // it only settles
	}
	stuck := false
	for _, name := range slices.Sorted(maps.Keys(st.Services)) {
		ss := st.Services[name]
		if !queue.Overlap(task.Services, []string{name}) || ss.Status == mariposa.StatusConverged || ss.Status == mariposa.StatusStopped {
			continue
		}
		if ss.Status == mariposa.StatusConverging && !isWait(ss.Reason) {
			return nil
		}
		if is := ss.Status != mariposa.StatusConverging; ss.Reason != nil && (why == nil || is && !stuck) {
			why, stuck = ss.Reason.About(name), is
		}
	}
	return why
}

// isWait reports whether a converging service is waiting for something else to happen.
func isWait(why *mariposa.Reason) bool {
	return why != nil && why.Code != "" && !why.Is(
		mariposa.ReasonCounts, mariposa.ReasonLeftovers, mariposa.ReasonUnplanned, mariposa.ReasonFollows, mariposa.ReasonFollowsOther,
		mariposa.ReasonStartLimit, mariposa.ReasonSlotBusy, mariposa.ReasonOutdated, mariposa.ReasonOutdatedValues)
}

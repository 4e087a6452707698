package reason

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
)

// words defines the sentence of a code.
type words struct {
	text func(r *mariposa.Reason, now time.Time) string
	join string // the text before the cause; empty: a colon
}

// plain is a sentence without parameters.
func plain(text string) words {
	return words{text: func(*mariposa.Reason, time.Time) string { return text }}
}

// say is a sentence that does not depend on the time.
func say(text func(r *mariposa.Reason) string) words {
	return words{text: func(r *mariposa.Reason, _ time.Time) string { return text(r) }}
}

// waits is a sentence about what something waits for.
func waits(text func(r *mariposa.Reason) string) words {
	return say(func(r *mariposa.Reason) string { return "waits for " + r.Subject + text(r) })
}

// joined returns the words with another text before the cause.
func (w words) joined(by string) words {
	w.join = by
	return w
}

// quoted returns text from elsewhere.
var quoted = say(func(r *mariposa.Reason) string { return r.Detail })

// table defines the sentence of every code.
var table = map[mariposa.ReasonCode]words{
	// Why a service is not at its goal.
	mariposa.ReasonVersionLost: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("version %d, which defines it, is lost; submit the manifest again", r.Version)
	}),
	mariposa.ReasonNodeAway: {text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + "; it is replaced at " + stamp(r.Until, now)
	}},
	mariposa.ReasonNodeAwayNever: {text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + ", and reschedule.never is set"
	}},
	mariposa.ReasonStranded: {text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + "; it is removed when the node returns"
	}},
	mariposa.ReasonStartLimit: plain("the limit of instances that start at once is reached"),
	mariposa.ReasonSlotBusy: say(func(r *mariposa.Reason) string {
		return "slot " + r.Subject + " is still in use by an instance that is stopping"
	}),
	mariposa.ReasonWaitsMissing: waits(func(*mariposa.Reason) string { return ": there is no such service" }),
	mariposa.ReasonWaitsStopped: waits(func(*mariposa.Reason) string { return ": it is stopped" }),
	mariposa.ReasonWaitsInstances: waits(func(r *mariposa.Reason) string {
		return fmt.Sprintf(": %d of %d running", r.Count, r.Of) + frozen(r, ", and it is frozen")
	}).joined("; "),
	mariposa.ReasonWaitsRollout: waits(func(r *mariposa.Reason) string {
		if r.Cause != nil {
			return ""
		}
		return ": its rollout is in progress"
	}),
	mariposa.ReasonWaitsHeld:  waits(func(*mariposa.Reason) string { return ", whose rollout is held" }),
	mariposa.ReasonWaitsScale: waits(func(*mariposa.Reason) string { return ": its scale is 0, so there is nothing to refer to; scale it up" }),
	mariposa.ReasonWaitsRest:  waits(func(*mariposa.Reason) string { return ": it is still changing" }),
	mariposa.ReasonWaitsField: waits(func(r *mariposa.Reason) string { return ": " + r.Other + " has no " + quotedDetail(r) }),
	mariposa.ReasonWaitsReference: waits(func(r *mariposa.Reason) string {
		return ": " + r.Other + ", which it refers to, is gone"
	}),
	mariposa.ReasonFollows:      say(func(r *mariposa.Reason) string { return "follows " + r.Subject + " to " + r.Other }),
	mariposa.ReasonFollowsOther: plain("some of its instances refer to instances that have been replaced"),
	mariposa.ReasonReferenceGone: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("refers to %s, which is gone; it is updated once %s is running again", r.Other, r.Subject)
	}),
	mariposa.ReasonProves: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("refers to %s, which is gone; it is updated once %s has been up for %s", r.Other, r.Subject, span(r.For))
	}),
	mariposa.ReasonReferrers: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s is kept until %s, which refers to it, uses another", r.Subject, r.Other)
	}),
	mariposa.ReasonGoesAfter: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("is removed after %s, which depends on it and still has %s", r.Subject, Many(r.Count, "instance")) + frozen(r, " and is frozen")
	}),
	mariposa.ReasonBackingOff: {text: func(r *mariposa.Reason, now time.Time) string {
		next := "retrying now"
		if now.IsZero() || r.Until.After(now) {
			next = "next retry at " + stamp(r.Until, now)
		}
		return failedTimes(r.Count) + "; " + next
	}},
	mariposa.ReasonPaused: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the rollout of version %d is paused: %d of %d are up to date", r.Version, r.Count, r.Of)
	}).joined("; "),
	mariposa.ReasonHeld: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%d of %d at version %d; continue with mariposa project reprovision, or undo with mariposa project revert", r.Count, r.Of, r.Version)
	}),
	mariposa.ReasonFrozen:        say(afterThaw),
	mariposa.ReasonNeedsMetadata: say(missingValues),
	mariposa.ReasonWaitsApproval: say(func(r *mariposa.Reason) string {
		what := "the protected secret "
		if len(r.Keys) > 1 {
			what = "the protected secrets "
		}
		return fmt.Sprintf("waits for an operator to approve version %d, which uses %s%s: mariposa version approve %d", r.Version, what, listNames(r.Keys), r.Version)
	}),
	mariposa.ReasonStoppedFailures: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the rollout of version %d stopped after %s", r.Version, Many(r.Count, "failure"))
	}),
	mariposa.ReasonStoppedDeadline: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the rollout of version %d stopped: no progress for %s", r.Version, span(r.For))
	}),
	mariposa.ReasonStartFailures: say(func(r *mariposa.Reason) string {
		return "failed to start " + Many(r.Count, "time")
	}),
	mariposa.ReasonStartDeadline: say(func(r *mariposa.Reason) string {
		return "did not start within " + span(r.For)
	}),
	mariposa.ReasonNotFollowed: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the rollout of version %d stopped: %s, which refers to it, was not updated", r.Version, r.Subject)
	}),
	mariposa.ReasonFailure: say(func(r *mariposa.Reason) string {
		if r.Subject == "" {
			return "its instances do not stay up"
		}
		return r.Subject + " " + firstNonEmpty(quotedDetail(r), "ended")
	}),
	mariposa.ReasonIsFrozen:    plain("it is frozen"),
	mariposa.ReasonIsPaused:    plain("its rollout is paused"),
	mariposa.ReasonIsHeld:      plain("its rollout is held"),
	mariposa.ReasonIsFollowing: plain("it is being updated"),
	mariposa.ReasonIsWaiting:   say(func(r *mariposa.Reason) string { return "it waits for " + r.Subject }),
	mariposa.ReasonIsRemoved:   plain("it is being removed"),
	mariposa.ReasonStorm: {text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("%s is on node %s, which was lost together with others (%s); it is not replaced until they return; to replace it now, run mariposa project converge %s --reschedule-now",
			r.Subject, r.Node, lostNodes(r, now), firstNonEmpty(r.Other, "NAME"))
	}},
	mariposa.ReasonStormSlow: {text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + " together with others; it is replaced at " + stamp(r.Until, now)
	}},
	mariposa.ReasonDrainRollout: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s moves off node %s, which is being drained, after the rollout of version %d", r.Subject, r.Node, r.Version)
	}),

	// Why a step is taken.
	mariposa.ReasonScale: say(func(r *mariposa.Reason) string { return fmt.Sprintf("scale is %d", r.Count) }),
	mariposa.ReasonReplacesFailed: say(func(r *mariposa.Reason) string {
		return "replaces " + r.Subject + " (" + firstNonEmpty(quotedDetail(r), "ended") + ")"
	}),
	mariposa.ReasonReplacesLost: {text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("replaces %s, whose node %s has been unknown since %s", r.Subject, r.Node, stamp(r.Since, now))
	}},
	mariposa.ReasonVersionReplaces: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("version %d replaces %s", r.Version, firstNonEmpty(r.Subject, "it"))
	}),
	mariposa.ReasonFollowReplaces: say(func(r *mariposa.Reason) string {
		if r.Subject == "" {
			return "it follows " + r.Other + ", which it refers to"
		}
		return fmt.Sprintf("replaces %s, to follow %s, which it refers to", r.Subject, r.Other)
	}),
	mariposa.ReasonInPlace:        say(func(r *mariposa.Reason) string { return fmt.Sprintf("version %d changes it in place", r.Version) }),
	mariposa.ReasonNothingLeft:    plain("fully removed"),
	mariposa.ReasonPlaceTaken:     plain("its slot is taken"),
	mariposa.ReasonSlotHeld:       say(func(r *mariposa.Reason) string { return "another instance holds slot " + r.Subject }),
	mariposa.ReasonFrozenUnserved: plain("the service was frozen before it was up"),
	mariposa.ReasonProjectStopped: plain("the project is stopped"),
	mariposa.ReasonProjectDeleted: plain("the project is deleted"),
	mariposa.ReasonServiceStopped: plain("the service is stopped"),
	mariposa.ReasonServiceRemoved: plain("the service is no longer in the manifest"),
	mariposa.ReasonKept:           plain("kept for inspection"),
	mariposa.ReasonNotKept:        plain("ended instances are not kept"),
	mariposa.ReasonKeptNewer:      plain("only the newest ended instances are kept"),
	mariposa.ReasonKeptLong:       plain("kept for a day after it ended"),
	mariposa.ReasonDrains: say(func(r *mariposa.Reason) string {
		if r.Subject == "" {
			return "its node " + r.Node + " is being drained"
		}
		return fmt.Sprintf("replaces %s, to drain node %s", r.Subject, r.Node)
	}),

	// Why an instance cannot be created now, because of nodes or volumes.
	mariposa.ReasonNoNodes:   plain("no node has joined yet"),
	mariposa.ReasonNoNode:    say(noNode).joined("; "),
	mariposa.ReasonPortsHeld: plain("older instances may hold its fixed port; `update: {order: stop-first}` frees it first"),
	mariposa.ReasonNodeRefuses: say(func(r *mariposa.Reason) string {
		return "node " + r.Node + " " + quotedDetail(r)
	}),
	mariposa.ReasonVolumeNodeGone: say(func(r *mariposa.Reason) string {
		return hasVolume(r) + "has been removed: delete the volume with mariposa volume rm " + idAt(r, 0) + " to start with an empty one"
	}),
	mariposa.ReasonVolumeNodeAway: {text: func(r *mariposa.Reason, now time.Time) string {
		why := firstNonEmpty(quotedDetail(r), "cannot be reached")
		if !r.Since.IsZero() {
			why = "has been unknown since " + stamp(r.Since, now)
		}
		return hasVolume(r) + why + "; it starts when the node returns"
	}},
	mariposa.ReasonVolumeDrained: say(func(r *mariposa.Reason) string {
		return hasVolume(r) + "is drained; it starts when the drain ends"
	}),
	mariposa.ReasonVolumeNoRoom: say(func(r *mariposa.Reason) string {
		return hasVolume(r) + quotedDetail(r) + "; it starts when there is room"
	}),
	mariposa.ReasonVolumeCompute: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s: its volume %s belongs to compute type %s; use another volume name, or delete this volume with mariposa volume rm %s",
			r.Subject, r.Other, quotedDetail(r), idAt(r, 0))
	}),
	mariposa.ReasonVolumesApart: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s has its volume %s on node %s and its volume %s on node %s: delete the one that is not needed, with mariposa volume rm %s or %s",
			r.Subject, keyAt(r, 0), r.Node, keyAt(r, 1), r.Other, idAt(r, 0), idAt(r, 1))
	}),
	mariposa.ReasonPlanRepeats: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the plan of this project keeps repeating; Mariposa waits up to %s between retries; please report this", span(r.For))
	}),
	mariposa.ReasonLeftovers: plain("leftovers are being removed"),
	mariposa.ReasonNoFallback: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("version %d failed, and there is no earlier version to roll back to", r.Version)
	}),
	mariposa.ReasonUnplanned: plain("not planned yet"),
	mariposa.ReasonCounts:    say(counts),
	mariposa.ReasonOutdated: say(func(r *mariposa.Reason) string {
		them := "them"
		if r.Count == 1 {
			them = "it"
		}
		return fmt.Sprintf("%s outdated: made from version %d, while version %d is in force; replace %s with mariposa project reprovision --service %s",
			Many(r.Count, "instance"), r.Version, r.Of, them, r.Subject)
	}),
	mariposa.ReasonOutdatedValues: say(func(r *mariposa.Reason) string {
		what := "what they are made from"
		switch {
		case len(r.Keys) > 0:
			what = "metadata " + keys(r)
		case r.Count == 1:
			what = "what it is made from"
		}
		return fmt.Sprintf("%s outdated: %s changed since version %d; apply the change with mariposa project reprovision --service %s",
			Many(r.Count, "instance"), what, r.Version, r.Subject)
	}),
	mariposa.ReasonLingers: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s has no stop timeout (stop.timeout is negative); force it with mariposa instance rm --force %s", r.Subject, r.Subject)
	}),
	mariposa.ReasonUnused: plain("nothing that uses it runs yet"),

	// Tasks.
	mariposa.ReasonAsked:  quoted,
	mariposa.ReasonClears: say(func(r *mariposa.Reason) string { return "cleans up " + r.Subject }),
	mariposa.ReasonThawed: plain("thawed"),
	mariposa.ReasonStillFrozen: say(func(r *mariposa.Reason) string {
		return "still frozen: " + listNames(r.Keys)
	}),
	mariposa.ReasonTargetLost: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("version %d is lost; submit the manifest again", r.Version)
	}),
	mariposa.ReasonTakenOver:    say(func(r *mariposa.Reason) string { return "taken over by " + r.Subject }),
	mariposa.ReasonEndedBy:      say(func(r *mariposa.Reason) string { return "ended by task " + r.Subject }),
	mariposa.ReasonTerminated:   say(func(r *mariposa.Reason) string { return "task " + r.Subject + " was terminated" }),
	mariposa.ReasonTerminatedBy: say(func(r *mariposa.Reason) string { return "terminated by " + r.Subject }),
	mariposa.ReasonNoProgress: {text: func(r *mariposa.Reason, now time.Time) string {
		return "no progress since " + stamp(r.Since, now)
	}},
	mariposa.ReasonNotUp: plain("its instances do not start"),
	mariposa.ReasonRollbackFailed: say(func(r *mariposa.Reason) string {
		if r.RolledBackTo == mariposa.NoVersion {
			return fmt.Sprintf("version %d failed; there is no completed version to roll back to, and stopping everything failed too", r.Version)
		}
		return fmt.Sprintf("version %d failed and was rolled back to version %d, which failed too", r.Version, r.RolledBackTo)
	}),

	// Tasks that block others.
	mariposa.ReasonAwaitTask: say(func(r *mariposa.Reason) string { return "wait for it to end (mariposa queue show " + r.Subject + ")" }),
	mariposa.ReasonAwaitOrStop: say(func(r *mariposa.Reason) string {
		return "wait for it to end (mariposa queue show " + r.Subject + "), or stop the project"
	}),
	mariposa.ReasonThawFirst: plain("it is already frozen; thaw it with mariposa project thaw"),
	mariposa.ReasonThawEnds: say(func(r *mariposa.Reason) string {
		command := "end it with mariposa project thaw"
		for _, service := range r.Keys {
			command += " --service " + service
		}
		return command
	}),

	// Instances, volumes, networks and nodes.
	mariposa.ReasonReported:    quoted,
	mariposa.ReasonUnreachable: say(func(r *mariposa.Reason) string { return "its node " + r.Node + " cannot be reached" }),
	mariposa.ReasonNotSeen: {text: func(r *mariposa.Reason, now time.Time) string {
		return "no heartbeat since " + stamp(r.Since, now)
	}},
	mariposa.ReasonReboots: {text: func(r *mariposa.Reason, now time.Time) string {
		return "announced a reboot at " + stamp(r.Since, now)
	}},
	mariposa.ReasonPlaysDead: plain("it was lost on request"),
	mariposa.ReasonAwaitsApproval: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("waiting for approval: run mariposa node accept %s --fingerprint SHA256:… with the fingerprint in the log of its agent", r.Subject)
	}),
	mariposa.ReasonNameTaken: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("cannot be accepted, because another node has the name %s: remove that node with mariposa node rm %s; "+
			"or remove this one with mariposa node rm %s, and start its agent with another --name", r.Subject, idAt(r, 0), idAt(r, 1))
	}),
	mariposa.ReasonApproved: say(func(r *mariposa.Reason) string {
		return "approved by " + r.Subject + "; its agent connects within seconds"
	}),
	mariposa.ReasonPendingExpired: {text: func(r *mariposa.Reason, now time.Time) string {
		return "it was not accepted, and has not connected since " + stamp(r.Since, now)
	}},
	mariposa.ReasonKeyRotated: say(func(r *mariposa.Reason) string { return "the fingerprint of its new key is " + r.Subject }),
	mariposa.ReasonRejected:   say(func(r *mariposa.Reason) string { return "rejected by " + r.Subject }),
	mariposa.ReasonQuarantine: say(func(r *mariposa.Reason) string {
		if r.Count == 1 {
			return "found 1 instance that this store does not know; it is left running until purged"
		}
		return fmt.Sprintf("found %d instances that this store does not know; they are left running until purged", r.Count)
	}),
	mariposa.ReasonQuarantineOver: plain("nothing is in quarantine any more"),
	mariposa.ReasonReportCut: say(func(r *mariposa.Reason) string {
		return "reports more than is kept, so it was cut: " + strings.Join(r.Keys, ", ") + "; its agent may be faulty or hostile"
	}),
	mariposa.ReasonOrphaned:      plain("its project is deleted; it is removed when its node returns"),
	mariposa.ReasonMadeFor:       say(func(r *mariposa.Reason) string { return "created for " + r.Subject }),
	mariposa.ReasonVolumeLeft:    plain("its project is deleted; it now belongs to the organization"),
	mariposa.ReasonVolumeDropped: plain("its project is deleted with its volumes"),
	mariposa.ReasonNetworkUsed:   say(func(r *mariposa.Reason) string { return "used by " + r.Subject + " of " + r.Other }),
	mariposa.ReasonRetention:     plain("only the newest versions are kept"),
	mariposa.ReasonNodeGivenUp:   plain("unmanaged instances were removed with their node"),
	mariposa.ReasonRehomed:       say(func(r *mariposa.Reason) string { return "its organization " + r.Subject + " does not exist" }),
	mariposa.ReasonNetworkLeft:   say(func(r *mariposa.Reason) string { return r.Subject + " no longer uses it" }),
	mariposa.ReasonUnstable: {text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("it was lost %s within an hour; until %s it gets instances only if no other node fits", Many(r.Count, "time"), stamp(r.Until, now))
	}},
	mariposa.ReasonReserved: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("reserved by %s; it gets no new instances until mariposa node unreserve %s", r.Subject, r.Node)
	}),

	// Drains, and a loss of many nodes at once.
	mariposa.ReasonDrainLeft: say(func(r *mariposa.Reason) string { return fmt.Sprintf("%s on node %s", left(r), r.Node) }),
	mariposa.ReasonDrainStopped: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the drain was stopped by %s with %s left; continue with mariposa node drain %s, or let the node take instances again with mariposa node undrain %s",
			r.Subject, Many(r.Count, "instance"), r.Node, r.Node)
	}),
	mariposa.ReasonDrainDeadline: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the drain was not complete at its deadline: %s on node %s", left(r), r.Node)
	}),
	mariposa.ReasonDrainDone: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("drained by %s; it gets no new instances until mariposa node undrain %s", r.Subject, r.Node)
	}),
	mariposa.ReasonDrainVolumes: say(func(r *mariposa.Reason) string {
		return r.Subject + " has volumes on the node: " + listNames(r.Keys)
	}),
	mariposa.ReasonDrainUnmanaged: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s belongs to no service; remove it with mariposa instance rm %s, or drain with --force", r.Subject, r.Subject)
	}),
	mariposa.ReasonDrainFrozen: say(func(r *mariposa.Reason) string { return staysBecause(r) + "frozen" }),
	mariposa.ReasonDrainPaused: say(func(r *mariposa.Reason) string { return staysBecause(r) + "paused" }),
	mariposa.ReasonDrainService: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s of %s cannot be moved now", r.Subject, r.Other)
	}),
	mariposa.ReasonDrainAway: {text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("node %s has been unknown since %s", r.Node, stamp(r.Since, now))
	}},
	mariposa.ReasonDrainStopping: say(func(r *mariposa.Reason) string { return r.Subject + " is stopping" }),
	mariposa.ReasonDrainStarts: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s is removed once its successor %s runs, which is being started", r.Subject, r.Other)
	}),
	mariposa.ReasonDrainProves: {text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("%s is removed once its successor %s, which has been up since %s, has been up for min_healthy", r.Subject, r.Other, stamp(r.Since, now))
	}},
	mariposa.ReasonDrainLost: {text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("%s stays, because its successor %s is on node %s, which has been unknown since %s", r.Subject, r.Other, r.Node, stamp(r.Since, now))
	}},
	mariposa.ReasonDrainTurn: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s waits for its turn: %s moves %s at a time (update.rolling)", r.Subject, keyAt(r, 0), Many(r.Count, "instance"))
	}),
	mariposa.ReasonDrainMissing: say(func(r *mariposa.Reason) string { return waitsForOthers(r) + "what is missing starts first" }),
	mariposa.ReasonDrainDown: say(func(r *mariposa.Reason) string {
		return waitsForOthers(r) + "no more may be down at once (update.rolling)"
	}),
	mariposa.ReasonDrainGone:   say(func(r *mariposa.Reason) string { return "node " + r.Node + " was removed by " + r.Subject }),
	mariposa.ReasonDrainUndone: say(func(r *mariposa.Reason) string { return r.Subject + " lets node " + r.Node + " take instances again" }),
	mariposa.ReasonStormBegan: {text: func(r *mariposa.Reason, now time.Time) string {
		return lostNodes(r, now) + "; their instances are not replaced until they return"
	}},
	mariposa.ReasonStormLasts: {text: func(r *mariposa.Reason, now time.Time) string {
		switch n := r.Tally[mariposa.TallyWaiting]; n {
		case 0:
			return lostNodes(r, now) + "; no instance waits for them"
		case 1:
			return lostNodes(r, now) + "; 1 instance on them is not replaced until they return"
		default:
			return fmt.Sprintf("%s; %d instances on them are not replaced until they return", lostNodes(r, now), n)
		}
	}},
	mariposa.ReasonStormEnded: say(func(r *mariposa.Reason) string {
		switch r.Count {
		case 0:
			return "the lost nodes are back or were removed"
		case 1:
			return "1 node is still lost; its instances are replaced"
		}
		return fmt.Sprintf("%d nodes are still lost; their instances are replaced", r.Count)
	}),
	mariposa.ReasonRescheduledNow: say(func(r *mariposa.Reason) string { return r.Subject + " asked to replace its instances now" }),
}

// lostNodes says how many nodes were lost at once, and when.
func lostNodes(r *mariposa.Reason, now time.Time) string {
	return fmt.Sprintf("%d of %d nodes with instances have been lost since %s", r.Count, r.Of, stamp(r.Since, now))
}

// left says how many instances are left of a drain.
func left(r *mariposa.Reason) string {
	n := strconv.Itoa(r.Count)
	if r.Of > 0 {
		n += " of " + strconv.Itoa(r.Of)
	}
	if r.Count == 1 && r.Of <= 1 {
		return n + " instance is left"
	}
	if r.Count == 1 {
		return n + " instances is left"
	}
	return n + " instances are left"
}

// staysBecause begins to say why an instance stays on a node that is being drained.
func staysBecause(r *mariposa.Reason) string {
	return fmt.Sprintf("%s stays, because %s of %s is ", r.Subject, keyAt(r, 0), r.Other)
}

// waitsForOthers begins to say why an instance cannot leave a node before others of its
// service run.
func waitsForOthers(r *mariposa.Reason) string {
	return fmt.Sprintf("%s waits, because %d of %d instances of %s run, and ", r.Subject, r.Count, r.Of, keyAt(r, 0))
}

func unreachableNode(r *mariposa.Reason, now time.Time) string {
	return fmt.Sprintf("%s is on node %s, which has been unknown since %s", r.Subject, r.Node, stamp(r.Since, now))
}

func hasVolume(r *mariposa.Reason) string {
	return fmt.Sprintf("%s has its volume %s on node %s, which ", r.Subject, r.Other, r.Node)
}

func frozen(r *mariposa.Reason, text string) string {
	if r.Frozen {
		return text
	}
	return ""
}

// span formats a duration.
func span(d time.Duration) string {
	if d >= time.Second {
		d = d.Round(100 * time.Millisecond)
	}
	return d.String()
}

// keys names the metadata keys.
func keys(r *mariposa.Reason) string {
	if len(r.Keys) == 1 {
		return "key " + r.Keys[0]
	}
	return "keys " + listNames(r.Keys)
}

// missingValues says which values are missing, and how to set them.
func missingValues(r *mariposa.Reason) string {
	var how []string
	for _, k := range r.Keys {
		value := "VALUE"
		if slices.Contains(r.Secrets, k) {
			value = "-" // from standard input: other users can see command-line arguments
		}
		how = append(how, "mariposa meta set "+k+" "+value)
	}
	them := "them"
	if len(r.Keys) == 1 {
		them = "it"
	}
	return "needs the metadata " + keys(r) + ": set " + them + " with " + listNames(how)
}

// afterThaw says what would be done to a frozen service.
func afterThaw(r *mariposa.Reason) string {
	var says []string
	say := func(name, one, more string) {
		switch n := r.Tally[name]; {
		case n == 1:
			says = append(says, "1 instance "+one)
		case n > 1:
			says = append(says, fmt.Sprintf("%d instances %s", n, firstNonEmpty(more, one)))
		}
	}
	say(mariposa.TallyRunning, "is running and would be removed after thaw", "are running and would be removed after thaw")
	say(mariposa.TallyFailed, "is gone and would be replaced after thaw", "are gone and would be replaced after thaw")
	say(mariposa.TallyUnknown, "is on a node that cannot be reached", "are on nodes that cannot be reached")
	say(mariposa.TallyMissing, "would be started after thaw", "")
	say(mariposa.TallySurplus, "would be removed after thaw", "")
	say(mariposa.TallyOutdated, "would be replaced by the rollout after thaw", "")
	say(mariposa.TallyStopping, "is stopping", "are stopping")
	if len(r.Keys) > 0 {
		says = append(says, "would follow "+listNames(r.Keys)+" after thaw")
	}
	if r.Version > 0 {
		says = append(says, fmt.Sprintf("version %d waits for the thaw", r.Version))
	}
	if len(says) == 0 {
		return "nothing would change after thaw"
	}
	return strings.Join(says, "; ")
}

// noNode says what the nodes lack, and how many of them lack it.
func noNode(r *mariposa.Reason) string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(r.Tally)) {
		lacks := strings.TrimPrefix(strings.TrimPrefix(why, "is "), "has ") // the text is a sentence about the node
		parts = append(parts, fmt.Sprintf("%s (%d of %d)", clip(lacks, 60), r.Tally[why], r.Of))
	}
	return strings.TrimSuffix("no node fits this "+strings.TrimPrefix(clip(r.Detail, 60)+" ", " ")+"instance: "+listNames(parts), ": ")
}

// counts says how many instances are in which state, and names one that does
// not run.
func counts(r *mariposa.Reason) string {
	text := fmt.Sprintf("%d of %d running", r.Count, r.Of)
	if r.Count > r.Of { // a rollout has extra instances, or some are still to be removed
		text = fmt.Sprintf("%d running, %d wanted", r.Count, r.Of)
	}
	for _, one := range [...]struct{ name, what string }{
		{mariposa.TallyStarting, "starting"},
		{mariposa.TallyStopping, "stopping"},
		{mariposa.TallyFailed, "failed"},
		{mariposa.TallyUnknown, "unknown"},
		{mariposa.TallyOutdated, "outdated"},
		{mariposa.TallyYoung, fmt.Sprintf("not yet up for %g s", r.For.Seconds())},
	} {
		if n := r.Tally[one.name]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, one.what)
		}
	}
	if r.Subject == "" {
		return text
	}
	text += "; " + r.Subject + " is " + quotedDetail(r)
	if r.Node != "" {
		text += " on node " + r.Node
	}
	return text
}

func failedTimes(n int) string {
	if n < 2 {
		return "failed"
	}
	return "failed " + Many(n, "time") + " in a row"
}

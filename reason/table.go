package reason

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mariposa"
)

// words defines the sentence of a code.
type words struct {
	text func(r *mariposa.Reason, now time.Time) string
	join string // the text before the cause; empty: a colon
	help func(r *mariposa.Reason, run string) string
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

// withHelp returns the words with what the reader can do. It comes last, so that nothing
// follows the command. Run is the verb before a command that only operators may run: "run",
// or whom to ask.
func (w words) withHelp(help func(r *mariposa.Reason, run string) string) words {
	w.help = help
	return w
}

// advise is help that everybody can follow who sees the reason.
func (w words) advise(help func(r *mariposa.Reason) string) words {
	return w.withHelp(func(r *mariposa.Reason, _ string) string { return help(r) })
}

// command quotes a command, so that it can be told from the sentence and copied.
func command(parts ...string) string { return "`mariposa " + strings.Join(parts, " ") + "`" }

// quoted returns text from elsewhere.
var quoted = say(func(r *mariposa.Reason) string { return r.Detail })

// table defines the sentence of every code.
var table = merge(general, drains)

// merge returns the sentences of several tables.
func merge(all ...map[mariposa.ReasonCode]words) map[mariposa.ReasonCode]words {
	table := map[mariposa.ReasonCode]words{}
	for _, one := range all {
		maps.Copy(table, one)
	}
	return table
}

// general defines the sentences that are not about drains.
var general = map[mariposa.ReasonCode]words{
	// Why a service is not at its goal.
	mariposa.ReasonVersionLost: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("version %d, which defines it, is lost; submit the manifest again", r.Version)
	}),
	mariposa.ReasonNodeAway: words{text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + "; it is replaced at " + stamp(r.Until, now)
	}}.withHelp(rescheduleNow),
	mariposa.ReasonNodeAwayNever: words{text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + ", and reschedule.never is set"
	}}.advise(func(r *mariposa.Reason) string {
		return "if the node will not return, ask an admin of the installation to remove it with " + command("node rm", r.Node, "--force")
	}),
	mariposa.ReasonNodeAwayVolumes: words{text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + ", and has volumes there: " + listNames(r.Keys) + "; it starts when the node returns"
	}}.advise(func(r *mariposa.Reason) string {
		return "if the node will not return, ask an admin of the installation to remove it with " + command("node rm", r.Node, "--force")
	}),
	mariposa.ReasonStranded: {text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + "; it is removed when the node returns"
	}},
	mariposa.ReasonStartLimit: plain("the limit of concurrently starting instances is reached"),
	mariposa.ReasonSlotBusy: say(func(r *mariposa.Reason) string {
		return "slot " + r.Subject + " is still in use by an instance that is stopping"
	}),
	mariposa.ReasonWaitsMissing: waits(func(*mariposa.Reason) string { return ": there is no such service" }),
	mariposa.ReasonWaitsStopped: waits(func(*mariposa.Reason) string { return ": it is stopped" }),
	mariposa.ReasonWaitsInstances: waits(func(r *mariposa.Reason) string {
		return fmt.Sprintf(": %d of %d %s", r.Count, r.Of, cmp.Or(clip(r.Detail, maxDetail), "running")) + frozen(r, ", and it is frozen")
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
		return fmt.Sprintf("%s is kept until %s, which refers to it, switches to another instance", r.Subject, r.Other)
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
		return fmt.Sprintf("%d of %d at version %d", r.Count, r.Of, r.Version)
	}).advise(func(*mariposa.Reason) string {
		return "continue with " + command("project reprovision") + ", or undo with " + command("project revert")
	}),
	mariposa.ReasonFrozen:        say(afterThaw),
	mariposa.ReasonNeedsMetadata: say(missingValues),
	mariposa.ReasonWaitsApproval: say(func(r *mariposa.Reason) string {
		what := "the protected secret "
		if len(r.Keys) > 1 {
			what = "the protected secrets "
		}
		return fmt.Sprintf("waits for an operator to approve version %d, which uses %s%s: `mariposa version approve %d`", r.Version, what, listNames(r.Keys), r.Version)
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
	mariposa.ReasonStorm: words{text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("%s is on node %s, which was lost together with others (%s); it is not replaced until they return", r.Subject, r.Node, lostNodes(r, now))
	}}.withHelp(rescheduleNow),
	mariposa.ReasonStormSlow: words{text: func(r *mariposa.Reason, now time.Time) string {
		return unreachableNode(r, now) + " together with others; it is replaced at " + stamp(r.Until, now)
	}}.withHelp(rescheduleNow),
	mariposa.ReasonUnhealthy: say(func(r *mariposa.Reason) string {
		return notHealthy(r) + "; it is removed once its successor is healthy"
	}),
	mariposa.ReasonUnhealthyRecheck: say(func(r *mariposa.Reason) string {
		return notHealthy(r) + "; it is checked again before it is replaced, because others have become healthy"
	}),
	mariposa.ReasonUnhealthyTurn: say(func(r *mariposa.Reason) string {
		return notHealthy(r) + "; it is replaced once others of the service are healthy"
	}),
	mariposa.ReasonCheckNeverPassed: say(func(r *mariposa.Reason) string {
		return notHealthy(r) + ", but no instance has ever passed this check, so it is not replaced; check `healthchecks` in the manifest"
	}),
	mariposa.ReasonDrainRollout: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s moves off node %s, which is being drained, after the rollout of version %d", r.Subject, r.Node, r.Version)
	}),

	// Why a step is taken.
	mariposa.ReasonScale: say(func(r *mariposa.Reason) string { return fmt.Sprintf("scale is %d", r.Count) }),
	mariposa.ReasonReplacesFailed: say(func(r *mariposa.Reason) string {
		return "replaces " + r.Subject + " (" + firstNonEmpty(quotedDetail(r), "ended") + ")"
	}),
	mariposa.ReasonReplacesUnhealthy: say(func(r *mariposa.Reason) string {
		return "replaces " + r.Subject + " (" + firstNonEmpty(quotedDetail(r), "not healthy") + ")"
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
		return hasVolume(r) + "has been removed"
	}).advise(func(r *mariposa.Reason) string {
		return "to start with an empty volume, delete this one with " + command("volume rm", idAt(r, 0))
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
		return fmt.Sprintf("%s: its volume %s belongs to compute type %s", r.Subject, r.Other, quotedDetail(r))
	}).advise(func(r *mariposa.Reason) string {
		return "use another volume name, or delete this volume with " + command("volume rm", idAt(r, 0))
	}),
	mariposa.ReasonVolumesApart: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s has its volume %s on node %s and its volume %s on node %s", r.Subject, keyAt(r, 0), r.Node, keyAt(r, 1), r.Other)
	}).advise(func(r *mariposa.Reason) string {
		return "delete the one that is not needed, with " + command("volume rm", idAt(r, 0)) + " or " + command("volume rm", idAt(r, 1))
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
		return fmt.Sprintf("%s outdated: created from version %d, while version %d is in force", Many(r.Count, "instance"), r.Version, r.Of)
	}).advise(func(r *mariposa.Reason) string {
		them := "them"
		if r.Count == 1 {
			them = "it"
		}
		return "replace " + them + " with " + command("project reprovision --service", r.Subject)
	}),
	mariposa.ReasonOutdatedValues: say(func(r *mariposa.Reason) string {
		what := "what they were created from"
		switch {
		case len(r.Keys) > 0:
			what = "metadata " + keys(r)
		case r.Count == 1:
			what = "what it was created from"
		}
		return fmt.Sprintf("%s outdated: %s changed since version %d", Many(r.Count, "instance"), what, r.Version)
	}).advise(func(r *mariposa.Reason) string {
		return "apply the change with " + command("project reprovision --service", r.Subject)
	}),
	mariposa.ReasonLingers: say(func(r *mariposa.Reason) string {
		return r.Subject + " has no stop timeout (stop.timeout is negative)"
	}).advise(func(r *mariposa.Reason) string { return "force it with " + command("instance rm --force", r.Subject) }),
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
	mariposa.ReasonAwaitTask: say(func(r *mariposa.Reason) string {
		return "wait for it to end (" + command("queue show", r.Subject) + ")"
	}),
	mariposa.ReasonAwaitOrStop: say(func(r *mariposa.Reason) string {
		freezes := ""
		if r.Frozen {
			freezes = ", which freezes its services until you thaw them"
		}
		return fmt.Sprintf("wait for it to end (%s), end it with %s%s, or stop the project", command("queue show", r.Subject), command("queue terminate", r.Subject), freezes)
	}).joined("; it waits: "),
	mariposa.ReasonThawFirst: plain("it is already frozen; thaw it with " + command("project thaw")),
	mariposa.ReasonThawEnds: say(func(r *mariposa.Reason) string {
		flags := serviceFlags(r.Keys)
		if len(r.Keys) > maxServiceFlags {
			return "end it for each of its " + Many(len(r.Keys), "service") + " with " + command(append([]string{"project thaw"}, flags...)...)
		}
		return "end it with " + command(append([]string{"project thaw"}, flags...)...)
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
	mariposa.ReasonPlaysDead: plain("it was made unreachable on request"),
	mariposa.ReasonCopyRefused: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("an agent at %s uses a copy of the data directory of this node and was refused; stop it, or give it an empty data directory", r.Subject)
	}),
	mariposa.ReasonAwaitsApproval: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("waiting for approval: run `mariposa node accept %s --fingerprint SHA256:…` with the fingerprint in the log of its agent", r.Subject)
	}),
	mariposa.ReasonNameTaken: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("cannot be accepted, because another node has the name %s: remove that node with `mariposa node rm %s`; "+
			"or remove this one with `mariposa node rm %s`, and start its agent with another --name", r.Subject, idAt(r, 0), idAt(r, 1))
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
	mariposa.ReasonOrphaned:    plain("its project is deleted; it is removed when its node returns"),
	mariposa.ReasonMadeFor:     say(func(r *mariposa.Reason) string { return "created for " + r.Subject }),
	mariposa.ReasonVolumeGrows: plain("the manifest sets a larger size"),
	mariposa.ReasonVolumeReturned: say(func(r *mariposa.Reason) string {
		return r.Subject + " got another volume " + r.Other + " before this one could be attached; it belongs to the organization again"
	}),
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
		return "reserved by " + r.Subject
	}).advise(func(r *mariposa.Reason) string {
		return "it gets no new instances until " + command("node unreserve", r.Node)
	}),
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

// missingValues says which values are missing, and how to set them. The commands of many
// would be too long to read.
func missingValues(r *mariposa.Reason) string {
	const few = 2
	need := "needs the metadata " + keys(r) + ": set "
	if len(r.Keys) > few {
		return need + "each with " + setEach(r)
	}
	var how []string
	for _, k := range r.Keys {
		value := "VALUE"
		if slices.Contains(r.Secrets, k) {
			value = "-" // from standard input: other users can see command-line arguments
		}
		how = append(how, command("meta set", k, value))
	}
	them := "them"
	if len(r.Keys) == 1 {
		them = "it"
	}
	return need + them + " with " + listNames(how)
}

// setEach returns the command that sets one of many values.
func setEach(r *mariposa.Reason) string {
	plain, secret := command("meta set", "KEY", "VALUE"), command("meta set", "KEY", "-")
	secrets := 0
	for _, k := range r.Keys {
		if slices.Contains(r.Secrets, k) {
			secrets++
		}
	}
	switch secrets {
	case 0:
		return plain
	case len(r.Keys):
		return secret
	}
	return plain + ", or " + secret + " if it is secret"
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
	say(mariposa.TallySick, "is not healthy and would be replaced after thaw", "are not healthy and would be replaced after thaw")
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
		{mariposa.TallyUnproven, "not healthy yet"},
		{mariposa.TallySick, "unhealthy"},
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

// notHealthy says which instance fails its health checks, and which.
func notHealthy(r *mariposa.Reason) string {
	return r.Subject + " is not healthy (" + firstNonEmpty(quotedDetail(r), "its checks fail") + ")"
}

package reason

import (
	"fmt"
	"strconv"
	"time"

	"mariposa"
)

// drains defines the sentences about drains, and about a loss of many nodes at once. Those
// about drains are read by people who may run the commands of nodes.
var drains = map[mariposa.ReasonCode]words{
	mariposa.ReasonDrainLeft: say(func(r *mariposa.Reason) string { return fmt.Sprintf("%s on node %s", left(r), r.Node) }).advise(func(r *mariposa.Reason) string {
		if !r.Cause.Is(mariposa.ReasonNoNode, mariposa.ReasonNoNodes, mariposa.ReasonBackingOff) {
			return "" // it only takes time, or the cause says what to do
		}
		return waitOrUndrain(r)
	}),
	mariposa.ReasonDrainStopped: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the drain was stopped by %s with %s left", r.Subject, Many(r.Count, "instance"))
	}).advise(func(r *mariposa.Reason) string {
		return "continue with " + command("node drain", r.Node) + ", or let the node take instances again with " + command("node undrain", r.Node)
	}),
	mariposa.ReasonDrainDeadline: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("the drain was not complete at its deadline: %s on node %s", left(r), r.Node)
	}).advise(func(r *mariposa.Reason) string { return "continue with " + command("node drain", r.Node) }),
	mariposa.ReasonDrainDone: say(func(r *mariposa.Reason) string { return "drained by " + r.Subject }).
		advise(func(r *mariposa.Reason) string {
			return "it gets no new instances until " + command("node undrain", r.Node)
		}),
	mariposa.ReasonDrainVolumes: say(func(r *mariposa.Reason) string {
		return r.Subject + " has volumes on the node: " + listNames(r.Keys)
	}).advise(func(r *mariposa.Reason) string {
		if r.Other == "" || len(r.IDs) == 0 {
			return ""
		}
		return "to stop it until the node is back, run " + command("project stop", r.Other, "--service", r.IDs[0])
	}),
	mariposa.ReasonDrainUnmanaged: say(func(r *mariposa.Reason) string { return r.Subject + " belongs to no service" }).
		advise(func(r *mariposa.Reason) string {
			name := r.Subject
			if r.Other != "" {
				name = r.Other + "/" + name
			}
			return "remove it with " + command("instance rm", name) + ", or drain with " + command("node drain", firstNonEmpty(r.Node, "NODE"), "--force")
		}),
	mariposa.ReasonDrainFrozen: say(func(r *mariposa.Reason) string { return staysBecause(r) + "frozen" }).
		advise(func(r *mariposa.Reason) string {
			return "thaw it with " + command("project thaw", r.Other, "--service", keyAt(r, 0))
		}),
	mariposa.ReasonDrainPaused: say(func(r *mariposa.Reason) string { return staysBecause(r) + "paused" }).
		advise(func(r *mariposa.Reason) string {
			return "resume it with " + command("project resume", r.Other, "--service", keyAt(r, 0))
		}),
	mariposa.ReasonDrainService: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s of %s cannot be moved now", r.Subject, r.Other)
	}).advise(func(r *mariposa.Reason) string {
		if r.Node == "" {
			return ""
		}
		return waitOrUndrain(r)
	}),
	mariposa.ReasonDrainAway: words{text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("node %s has been unknown since %s", r.Node, stamp(r.Since, now))
	}}.advise(func(r *mariposa.Reason) string {
		return "to replace its instances now, run " + command("node reschedule-now", r.Node)
	}),
	mariposa.ReasonDrainStopping: say(func(r *mariposa.Reason) string { return r.Subject + " is stopping" }),
	mariposa.ReasonDrainStarts: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s is removed once its successor %s has started", r.Subject, r.Other)
	}),
	mariposa.ReasonDrainProves: {text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("%s is removed once its successor %s, which has been up since %s, has been up for min_healthy", r.Subject, r.Other, stamp(r.Since, now))
	}},
	mariposa.ReasonDrainLost: words{text: func(r *mariposa.Reason, now time.Time) string {
		return fmt.Sprintf("%s stays, because its successor %s is on node %s, which has been unknown since %s", r.Subject, r.Other, r.Node, stamp(r.Since, now))
	}}.advise(func(r *mariposa.Reason) string {
		return "to replace the successor now, run " + command("node reschedule-now", r.Node)
	}),
	mariposa.ReasonDrainTurn: say(func(r *mariposa.Reason) string {
		return fmt.Sprintf("%s waits for its turn: %s moves %s at a time (update.rolling)", r.Subject, keyAt(r, 0), Many(r.Count, "instance"))
	}),
	mariposa.ReasonDrainMissing: say(func(r *mariposa.Reason) string {
		missing := "the missing ones start first"
		if r.Of-r.Count == 1 {
			missing = "the missing one starts first"
		}
		return fmt.Sprintf("%s waits: only %d of %d instances of %s are running, and %s", r.Subject, r.Count, r.Of, keyAt(r, 0), missing)
	}),
	mariposa.ReasonDrainDown: words{text: waitsForLost}.advise(func(r *mariposa.Reason) string {
		if len(r.IDs) == 0 {
			return ""
		}
		return "to replace its instances now, run " + command("node reschedule-now", r.IDs[0])
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

// waitOrUndrain says what to do about instances that cannot be moved now.
func waitOrUndrain(r *mariposa.Reason) string {
	first := "wait"
	if r.Cause.Is(mariposa.ReasonNoNode, mariposa.ReasonNoNodes) {
		first = "add nodes, make room"
	}
	return first + ", or end the drain with " + command("node undrain", r.Node)
}

// waitsForLost says that an instance of a stop-first service waits for a lost node.
func waitsForLost(r *mariposa.Reason, now time.Time) string {
	who := r.Subject + " waits"
	if r.Node != "" {
		who += fmt.Sprintf(" for node %s, which has been unknown since %s", r.Node, stamp(r.Since, now))
	}
	limit := r.Tally[mariposa.TallyLimit]
	if limit == 0 { // of an earlier release
		return fmt.Sprintf("%s: %d of %d instances of %s are running, and update.rolling allows no more to be down", who, r.Count, r.Of, keyAt(r, 0))
	}
	return fmt.Sprintf("%s: %d of %d instances of %s are running, and at most %d may be down at once (update.rolling)", who, r.Count, r.Of, keyAt(r, 0), limit)
}

// rescheduleNow says how to replace the instances on lost nodes without waiting.
func rescheduleNow(r *mariposa.Reason, run string) string {
	it := "it"
	if r.More > 0 {
		it = "them"
	}
	return "to replace " + it + " now, " + run + " " + command("project converge", firstNonEmpty(r.Other, "NAME"), "--reschedule-now")
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

package mariposa

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Reason says why something is in its state, or why it is done, as data. Package reason
// turns it into a sentence; nothing else parses or builds sentences from it. A nil reason
// means that there is none.
//
// A reason has at most one subject and one cause, so it never nests or grows: set Cause
// with Because, and count the others in More.
type Reason struct {
	Code         ReasonCode     `json:"code,omitempty"`    // empty: Detail is the whole sentence
	Service      string         `json:"service,omitempty"` // the service it is about, in a context with several
	Subject      string         `json:"subject,omitempty"` // the service, slot or instance it is about, by name
	Other        string         `json:"other,omitempty"`   // a second name that the sentence needs
	Node         string         `json:"node,omitempty"`    // the node it is about, by name
	Version      int            `json:"version,omitempty"` // the number of a version
	RolledBackTo int            `json:"back,omitempty"`    // the version that was rolled back to because of it; NoVersion: there was none
	Count        int            `json:"count,omitempty"`
	Of           int            `json:"of,omitempty"`
	Since        time.Time      `json:"since,omitzero"`
	Until        time.Time      `json:"until,omitzero"`
	For          time.Duration  `json:"for,omitempty"`
	Frozen       bool           `json:"frozen,omitempty"`        // the subject is frozen
	Keys         []string       `json:"keys,omitempty"`          // metadata keys, or names
	Secrets      []string       `json:"secrets,omitempty"`       // those of Keys that are secret
	IDs          []string       `json:"ids,omitempty"`           // of objects that a command takes
	Tally        map[string]int `json:"tally,omitempty"`         // counts by name
	Detail       string         `json:"detail,omitempty"`        // text from elsewhere: a driver, a program, a user
	More         int            `json:"more,omitempty"`          // how many more instances of the service wait, for this or something else
	MoreServices int            `json:"more_services,omitempty"` // of a project: how many more services have the same status
	Cause        *Reason        `json:"cause,omitempty"`         // never has a cause of its own
}

// NoVersion in RolledBackTo means that everything was stopped, because no version ever
// completed.
const NoVersion = -1

// ReasonCode is a stable name of a kind of reason.
type ReasonCode string

// Why a service is not at its goal. The comment is the sentence.
const (
	ReasonVersionLost      ReasonCode = "version-lost"       // version 3, which defines it, is lost; submit the manifest again
	ReasonNodeAway         ReasonCode = "node-away"          // web.1-a is on node n1, which has been unknown since 10:00:00; it is replaced at 10:01:00; to replace it now, run `mariposa project converge shop (Other) --reschedule-now`
	ReasonNodeAwayNever    ReasonCode = "node-away-never"    // … since 10:00:00, and reschedule.never is set; if the node will not return, ask an admin of the installation to remove it with `mariposa node rm n1 --force`
	ReasonNodeAwayVolumes  ReasonCode = "node-away-volumes"  // … since 10:00:00, and has volumes there: data, logs (Keys); it starts when the node returns; if the node will not return, ask an admin of the installation to remove it with `mariposa node rm n1 --force`
	ReasonStranded         ReasonCode = "stranded"           // … since 10:00:00; it is removed when the node returns
	ReasonStartLimit       ReasonCode = "start-limit"        // the limit of concurrently starting instances is reached
	ReasonSlotBusy         ReasonCode = "slot-busy"          // slot web.3 is still in use by an instance that is stopping
	ReasonWaitsMissing     ReasonCode = "waits-missing"      // waits for db: there is no such service
	ReasonWaitsStopped     ReasonCode = "waits-stopped"      // waits for db: it is stopped
	ReasonWaitsInstances   ReasonCode = "waits-instances"    // waits for db: 0 of 1 running[, and it is frozen][; CAUSE]
	ReasonWaitsRollout     ReasonCode = "waits-rollout"      // waits for db: its rollout is in progress | CAUSE
	ReasonWaitsHeld        ReasonCode = "waits-held"         // waits for db, whose rollout is held
	ReasonWaitsScale       ReasonCode = "waits-scale"        // waits for db: its scale is 0, so there is nothing to refer to; scale it up
	ReasonWaitsRest        ReasonCode = "waits-rest"         // waits for db: it is still changing
	ReasonWaitsField       ReasonCode = "waits-field"        // waits for db: db.1-a (Other) has no address (Detail)
	ReasonWaitsReference   ReasonCode = "waits-reference"    // waits for db: db.1-a (Other), which it refers to, is gone
	ReasonFollows          ReasonCode = "follows"            // follows db to db.1-a (Other)
	ReasonFollowsOther     ReasonCode = "follows-other"      // some of its instances refer to instances that have been replaced
	ReasonReferenceGone    ReasonCode = "reference-gone"     // refers to db.1-a (Other), which is gone; it is updated once db (Subject) is running again
	ReasonProves           ReasonCode = "proves"             // refers to db.1-a (Other), which is gone; it is updated once db.1-b (Subject) has been up for 5s (For)
	ReasonReferrers        ReasonCode = "referrers"          // db.1-a (Subject) is kept until web (Other), which refers to it, switches to another instance[: CAUSE]
	ReasonGoesAfter        ReasonCode = "goes-after"         // is removed after web (Subject), which depends on it and still has 2 instances (Count)[ and is frozen]
	ReasonBackingOff       ReasonCode = "backing-off"        // failed 3 times in a row; next retry at 10:00:00: CAUSE
	ReasonPaused           ReasonCode = "paused"             // the rollout of version 2 is paused: 1 of 3 are up to date
	ReasonHeld             ReasonCode = "held"               // 1 of 3 at version 2; continue with `mariposa project reprovision`, or undo with `mariposa project revert`
	ReasonFrozen           ReasonCode = "frozen"             // Tally and Keys: what would be done after thaw; Version: the version that waits for it
	ReasonNeedsMetadata    ReasonCode = "needs-metadata"     // needs the metadata key mode: set it with `mariposa meta set mode VALUE`
	ReasonWaitsApproval    ReasonCode = "waits-approval"     // waits for an operator to approve version 7, which uses the protected secret db-password (Keys): `mariposa version approve 7`
	ReasonStoppedFailures  ReasonCode = "rollout-failures"   // the rollout of version 2 stopped after 3 failures: CAUSE
	ReasonStoppedDeadline  ReasonCode = "rollout-deadline"   // the rollout of version 2 stopped: no progress for 10m0s[: CAUSE]
	ReasonStartFailures    ReasonCode = "start-failures"     // failed to start 3 times: CAUSE
	ReasonStartDeadline    ReasonCode = "start-deadline"     // did not start within 10m0s[: CAUSE]
	ReasonNotFollowed      ReasonCode = "rollout-no-follow"  // the rollout of version 2 stopped: web (Subject), which refers to it, was not updated[: CAUSE]
	ReasonFailure          ReasonCode = "failure"            // web.1-a exited with 1 (Detail); without Subject: its instances do not stay up
	ReasonIsFrozen         ReasonCode = "is-frozen"          // it is frozen
	ReasonIsPaused         ReasonCode = "is-paused"          // its rollout is paused
	ReasonIsHeld           ReasonCode = "is-held"            // its rollout is held
	ReasonIsFollowing      ReasonCode = "is-following"       // it is being updated
	ReasonIsWaiting        ReasonCode = "is-waiting"         // it waits for db (Subject)
	ReasonIsRemoved        ReasonCode = "is-removed"         // it is being removed
	ReasonStorm            ReasonCode = "storm"              // web.1-a is on node n1, which was lost together with others (5 of 12 nodes with instances have been lost since 10:00:00); it is not replaced until they return; to replace it now, run `mariposa project converge shop (Other) --reschedule-now`
	ReasonStormSlow        ReasonCode = "storm-slow"         // web.1-a is on node n1, which has been unknown since 10:00:00 together with others; it is replaced at 10:01:00; to replace it now, run `mariposa project converge shop (Other) --reschedule-now`
	ReasonUnhealthy        ReasonCode = "unhealthy"          // web.1-a is not healthy (http :8080/health answered 503, 3 times in 15 s); it is removed once its successor is healthy
	ReasonUnhealthyRecheck ReasonCode = "unhealthy-recheck"  // web.1-a is not healthy (…); it is checked again before it is replaced, because others have become healthy
	ReasonUnhealthyTurn    ReasonCode = "unhealthy-turn"     // web.1-a is not healthy (…); it is replaced once others of the service are healthy
	ReasonCheckNeverPassed ReasonCode = "check-never-passed" // web.1-a is not healthy (…), but no instance has ever passed this check, so it is not replaced; check `healthchecks` in the manifest
	ReasonDrainRollout     ReasonCode = "drain-rollout"      // web.1-a moves off node n1, which is being drained, after the rollout of version 2
)

// Why a step is taken. The comment is the sentence.
const (
	ReasonScale             ReasonCode = "scale"              // scale is 3
	ReasonReplacesFailed    ReasonCode = "replaces-failed"    // replaces web.1-a (exited with 1)
	ReasonReplacesUnhealthy ReasonCode = "replaces-unhealthy" // replaces web.1-a (http :8080/health answered 503, 3 times in 15 s)
	ReasonReplacesLost      ReasonCode = "replaces-lost"      // replaces web.1-a, whose node n1 has been unknown since 10:00:00
	ReasonVersionReplaces   ReasonCode = "version-replaces"   // version 2 replaces web.1-a; without Subject: version 2 replaces it
	ReasonFollowReplaces    ReasonCode = "follow-replaces"    // replaces web.1-a, to follow db (Other), which it refers to; without Subject: it follows db, which it refers to
	ReasonInPlace           ReasonCode = "in-place"           // version 2 changes it in place
	ReasonNothingLeft       ReasonCode = "nothing-left"       // fully removed
	ReasonPlaceTaken        ReasonCode = "place-taken"        // its slot is taken
	ReasonSlotHeld          ReasonCode = "slot-held"          // another instance holds slot web.3
	ReasonFrozenUnserved    ReasonCode = "frozen-unserved"    // the service was frozen before it was up
	ReasonProjectStopped    ReasonCode = "project-stopped"    // the project is stopped
	ReasonProjectDeleted    ReasonCode = "project-deleted"    // the project is deleted
	ReasonServiceStopped    ReasonCode = "service-stopped"    // the service is stopped
	ReasonServiceRemoved    ReasonCode = "service-removed"    // the service is no longer in the manifest
	ReasonKept              ReasonCode = "kept"               // kept for inspection
	ReasonNotKept           ReasonCode = "not-kept"           // ended instances are not kept
	ReasonKeptNewer         ReasonCode = "kept-newer"         // only the newest ended instances are kept
	ReasonKeptLong          ReasonCode = "kept-long"          // kept for a day after it ended
	ReasonDrains            ReasonCode = "drains"             // replaces web.1-a (Subject), to drain node n1; without Subject: its node n1 is being drained
)

// Why an instance cannot be created now, because of nodes or volumes.
const (
	ReasonNoNodes        ReasonCode = "no-nodes"        // no node has joined yet
	ReasonNoNode         ReasonCode = "no-node"         // no node fits this docker (Detail) instance: full (2 of 3), drained (1 of 3) (Tally, Of)[; CAUSE]
	ReasonPortsHeld      ReasonCode = "ports-held"      // older instances may hold its fixed port; `update: {order: stop-first}` frees it first
	ReasonNodeRefuses    ReasonCode = "node-refuses"    // node n1 is full (Detail)
	ReasonVolumeNodeGone ReasonCode = "volume-lost"     // web.1 has its volume data (Other) on node n1, which has been removed; to start with an empty volume, delete this one with `mariposa volume rm ID (IDs)`
	ReasonVolumeNodeAway ReasonCode = "volume-away"     // web.1 has its volume data on node n1, which has been unknown since 10:00:00 | is not connected (Detail); it starts when the node returns
	ReasonVolumeDrained  ReasonCode = "volume-drained"  // web.1 has its volume data on node n1, which is drained; it starts when the drain ends
	ReasonVolumeNoRoom   ReasonCode = "volume-no-room"  // web.1 has its volume data on node n1, which is full (Detail); it starts when there is room
	ReasonVolumeCompute  ReasonCode = "volume-compute"  // web.1: its volume data belongs to compute type dummy (Detail); use another volume name, or delete this volume with `mariposa volume rm ID`
	ReasonVolumesApart   ReasonCode = "volumes-apart"   // web.1 has its volume data (Keys) on node n1 and its volume logs (Keys) on node n2 (Other); delete the one that is not needed, with `mariposa volume rm ID` or `mariposa volume rm ID`
	ReasonPlanRepeats    ReasonCode = "plan-repeats"    // the plan of this project keeps repeating; Mariposa waits up to 4s (For) between retries; please report this
	ReasonLeftovers      ReasonCode = "leftovers"       // leftovers are being removed
	ReasonNoFallback     ReasonCode = "no-fallback"     // version 2 failed, and there is no earlier version to roll back to: CAUSE
	ReasonUnplanned      ReasonCode = "unplanned"       // not planned yet
	ReasonCounts         ReasonCode = "counts"          // 1 of 3 running, 2 starting (Tally), 1 not yet up for 5 s (For); web.1-a is starting (Detail) on node n1
	ReasonOutdated       ReasonCode = "outdated"        // 2 instances outdated: created from version 1, while version 3 (Of) is in force; replace them with `mariposa project reprovision --service web (Subject)`
	ReasonOutdatedValues ReasonCode = "outdated-values" // 2 instances outdated: metadata key mode (Keys) changed since version 1; apply the change with `mariposa project reprovision --service web (Subject)`
	ReasonLingers        ReasonCode = "lingers"         // web.1-a has no stop timeout (stop.timeout is negative); force it with `mariposa instance rm --force web.1-a`
	ReasonUnused         ReasonCode = "unused"          // nothing that uses it runs yet
)

// Reasons of tasks.
const (
	ReasonAsked          ReasonCode = "asked"           // Detail: the words of a user, or a description of the request
	ReasonClears         ReasonCode = "clears"          // cleans up web.1-a
	ReasonThawed         ReasonCode = "thawed"          // thawed
	ReasonStillFrozen    ReasonCode = "still-frozen"    // still frozen: db
	ReasonTargetLost     ReasonCode = "target-lost"     // version 3 is lost; submit the manifest again
	ReasonTakenOver      ReasonCode = "taken-over"      // taken over by ID (Subject)
	ReasonEndedBy        ReasonCode = "ended-by"        // ended by task ID (Subject)
	ReasonTerminated     ReasonCode = "terminated"      // task ID (Subject) was terminated
	ReasonTerminatedBy   ReasonCode = "terminated-by"   // terminated by ann (Subject)
	ReasonNoProgress     ReasonCode = "no-progress"     // no progress since 10:00:00: CAUSE
	ReasonNotUp          ReasonCode = "not-up"          // its instances do not start
	ReasonRollbackFailed ReasonCode = "rollback-failed" // version 2 failed and was rolled back to version 1 (Back), which failed too: CAUSE
)

// What to do about a task that blocks another.
const (
	ReasonAwaitTask   ReasonCode = "await-task"    // wait for it to end (`mariposa queue show ID (Subject)`)
	ReasonAwaitOrStop ReasonCode = "await-or-stop" // wait for it to end (`mariposa queue show ID (Subject)`), end it with `mariposa queue terminate ID`[, which freezes its services until you thaw them (Frozen: it is active)], or stop the project[; it waits: CAUSE]
	ReasonThawFirst   ReasonCode = "thaw-first"    // it is already frozen; thaw it with `mariposa project thaw`
	ReasonThawEnds    ReasonCode = "thaw-ends"     // end it with `mariposa project thaw`
)

// Reasons of instances, volumes, networks and nodes.
const (
	ReasonReported       ReasonCode = "reported"        // Detail: the words of the node or of a driver
	ReasonUnreachable    ReasonCode = "unreachable"     // its node n1 cannot be reached
	ReasonNotSeen        ReasonCode = "unheard"         // no heartbeat since 10:00:00
	ReasonReboots        ReasonCode = "reboots"         // announced a reboot at 10:00:00
	ReasonPlaysDead      ReasonCode = "plays-dead"      // it was made unreachable on request
	ReasonCopyRefused    ReasonCode = "copy-refused"    // an agent at 10.0.0.9 (Subject) uses a copy of the data directory of this node and was refused; stop it, or give it an empty data directory
	ReasonAwaitsApproval ReasonCode = "awaits-approval" // waiting for approval: run `mariposa node accept n1 (Subject) --fingerprint SHA256:…` with the fingerprint in the log of its agent
	ReasonApproved       ReasonCode = "approved"        // approved by ann (Subject); its agent connects within seconds
	ReasonRejected       ReasonCode = "rejected"        // rejected by ann (Subject)
	ReasonNameTaken      ReasonCode = "name-taken"      // cannot be accepted, because another node has the name n1 (Subject): remove that node with `mariposa node rm ID (IDs)`; or remove this one with `mariposa node rm ID (IDs)`, and start its agent with another --name
	ReasonPendingExpired ReasonCode = "pending-expired" // it was not accepted, and has not connected since 10:00:00
	ReasonKeyRotated     ReasonCode = "key-rotated"     // the fingerprint of its new key is SHA256:abc (Subject)
	ReasonQuarantine     ReasonCode = "quarantine"      // found 2 instances that this store does not know; they are left running until purged
	ReasonQuarantineOver ReasonCode = "quarantine-over" // nothing is in quarantine any more
	ReasonReportCut      ReasonCode = "report-cut"      // reports more than is kept, so it was cut: its drivers, the reason of an instance (Keys); its agent may be faulty or hostile
	ReasonOrphaned       ReasonCode = "debt"            // its project is deleted; it is removed when its node returns
	ReasonMadeFor        ReasonCode = "made-for"        // created for web.1-a
	ReasonVolumeGrows    ReasonCode = "volume-grows"    // the manifest sets a larger size
	ReasonVolumeReturned ReasonCode = "volume-returned" // db.1 (Subject) got another volume data (Other) before this one could be attached; it belongs to the organization again
	ReasonVolumeLeft     ReasonCode = "volume-left"     // its project is deleted; it now belongs to the organization
	ReasonVolumeDropped  ReasonCode = "volume-dropped"  // its project is deleted with its volumes
	ReasonNetworkUsed    ReasonCode = "network-used"    // used by web of shop (Other)
	ReasonRetention      ReasonCode = "retention"       // only the newest versions are kept
	ReasonNodeGivenUp    ReasonCode = "node-given-up"   // unmanaged instances were removed with their node
	ReasonRehomed        ReasonCode = "rehomed"         // its organization acme (Subject) does not exist
	ReasonNetworkLeft    ReasonCode = "network-left"    // shop no longer uses it
	ReasonUnstable       ReasonCode = "unstable"        // it was lost 4 times (Count) within an hour; until 10:00:00 it gets instances only if no other node fits, and no replacements of lost ones
	ReasonReserved       ReasonCode = "reserved"        // reserved by ann (Subject); it gets no new instances until `mariposa node unreserve n1`
)

// Reasons of drains, and of a loss of many nodes at once.
const (
	ReasonDrainLeft      ReasonCode = "drain-left"      // 2 of 7 instances are left on node n1[: CAUSE]
	ReasonDrainStopped   ReasonCode = "drain-stopped"   // the drain was stopped by ann (Subject) with 2 instances left (Count); continue with `mariposa node drain n1`, or let the node take instances again with `mariposa node undrain n1`
	ReasonDrainDeadline  ReasonCode = "drain-deadline"  // the drain was not complete at its deadline: 2 instances are left (Count) on node n1[: CAUSE]; continue with `mariposa node drain n1`
	ReasonDrainDone      ReasonCode = "drain-done"      // drained by ann (Subject); it gets no new instances until `mariposa node undrain n1`
	ReasonDrainVolumes   ReasonCode = "drain-volumes"   // web.1-a has volumes on the node: data (Keys); to stop it until the node is back, run `mariposa project stop shop (Other) --service web (IDs)`
	ReasonDrainUnmanaged ReasonCode = "drain-unmanaged" // web-1 belongs to no service; remove it with `mariposa instance rm shop (Other)/web-1`, or drain with `mariposa node drain n1 --force`
	ReasonDrainFrozen    ReasonCode = "drain-frozen"    // web.1-a stays, because web (Keys) of shop (Other) is frozen; thaw it with `mariposa project thaw shop --service web`
	ReasonDrainPaused    ReasonCode = "drain-paused"    // web.1-a stays, because web (Keys) of shop (Other) is paused; resume it with `mariposa project resume shop --service web`
	ReasonDrainService   ReasonCode = "drain-service"   // web.1-a of shop (Other) cannot be moved now[: CAUSE]; wait, or end the drain with `mariposa node undrain n1`
	ReasonDrainAway      ReasonCode = "drain-away"      // node n1 has been unknown since 10:00:00; to replace its instances now, run `mariposa node reschedule-now n1`
	ReasonDrainStopping  ReasonCode = "drain-stopping"  // web.1-a is stopping
	ReasonDrainStarts    ReasonCode = "drain-starts"    // web.1-a is removed once its successor web.1-b (Other) has started
	ReasonDrainProves    ReasonCode = "drain-proves"    // web.1-a is removed once its successor web.1-b (Other), which has been up since 10:00:00, has been up for min_healthy
	ReasonDrainLost      ReasonCode = "drain-lost"      // web.1-a stays, because its successor web.1-b (Other) is on node n2, which has been unknown since 10:00:00; to replace the successor now, run `mariposa node reschedule-now n2`
	ReasonDrainTurn      ReasonCode = "drain-turn"      // web.1-a waits for its turn: web (Keys) moves 1 instance (Count) at a time (update.rolling)
	ReasonDrainMissing   ReasonCode = "drain-missing"   // web.1-a waits: only 2 of 3 instances of web (Keys) are running, and the missing one starts first[: CAUSE]
	ReasonDrainDown      ReasonCode = "drain-down"      // web.1-a waits for node n3, which has been unknown since 10:00:00: 2 of 3 instances of web (Keys) are running, and at most 1 (Tally) may be down at once (update.rolling); to replace its instances now, run `mariposa node reschedule-now n3 (IDs)`
	ReasonDrainGone      ReasonCode = "drain-gone"      // node n1 was removed by ann (Subject)
	ReasonDrainUndone    ReasonCode = "drain-undone"    // ann (Subject) lets node n1 take instances again
	ReasonStormBegan     ReasonCode = "storm-began"     // 5 of 12 nodes with instances have been lost since 10:00:00; their instances are not replaced until they return
	ReasonStormLasts     ReasonCode = "storm-lasts"     // 5 of 12 nodes with instances have been lost since 10:00:00; 7 instances (Tally) on them are not replaced until they return | no instance waits for them
	ReasonStormEnded     ReasonCode = "storm-ended"     // 1 node is still lost; its instances are replaced | the lost nodes are back or were removed
	ReasonRescheduledNow ReasonCode = "rescheduled-now" // ann (Subject) asked to replace its instances now
)

// The names in the Tally of a frozen service and of other counts.
const (
	TallyRunning  = "running"   // of a service that stops: would be removed after thaw
	TallyFailed   = "failed"    // gone; would be replaced after thaw
	TallySick     = "unhealthy" // not healthy; would be replaced after thaw
	TallyUnknown  = "unknown"   // on nodes that cannot be reached
	TallyMissing  = "missing"   // would be started after thaw
	TallySurplus  = "surplus"   // would be removed after thaw
	TallyOutdated = "outdated"  // would be replaced by the rollout after thaw
	TallyStarting = "starting"
	TallyStopping = "stopping"
	TallyUnproven = "unproven" // running, but its checks have not passed yet
	TallyYoung    = "young"    // running, but not for long enough yet
	TallyWaiting  = "waiting"  // on lost nodes and not replaced
	TallyLimit    = "limit"    // of instances that may be down
)

// Asked returns the reason for what a user requested, in their words or the API's.
func Asked(text string) *Reason {
	if text == "" {
		return nil
	}
	return &Reason{Code: ReasonAsked, Detail: text}
}

// Reported returns a reason in the words of a node.
func Reported(text string) *Reason {
	if text == "" {
		return nil
	}
	return &Reason{Code: ReasonReported, Detail: text}
}

// TextReason returns a reason with a given text; nil if it is empty.
func TextReason(text string) *Reason {
	if text == "" {
		return nil
	}
	return &Reason{Detail: text}
}

// Because returns the reason with a cause. The cause of the cause is left out:
// reasons never nest.
func (r *Reason) Because(cause *Reason) *Reason {
	if r == nil || cause == nil {
		return r
	}
	c, flat := *r, *cause
	flat.Cause = nil
	c.Cause = &flat
	return &c
}

// AndMore returns the reason with a number of more instances.
func (r *Reason) AndMore(n int) *Reason {
	if r == nil || n == 0 {
		return r
	}
	c := *r
	c.More = n
	return &c
}

// AndMoreServices returns the reason with a number of more services.
func (r *Reason) AndMoreServices(n int) *Reason {
	if r == nil || n == 0 {
		return r
	}
	c := *r
	c.MoreServices = n
	return &c
}

// Equal reports whether two reasons are the same.
func (r *Reason) Equal(o *Reason) bool {
	if r == o {
		return true
	}
	if r == nil || o == nil {
		return false
	}
	return r.Code == o.Code && r.Service == o.Service && r.Subject == o.Subject && r.Other == o.Other && r.Node == o.Node &&
		r.Version == o.Version && r.RolledBackTo == o.RolledBackTo && r.Count == o.Count && r.Of == o.Of && r.Since.Equal(o.Since) && r.Until.Equal(o.Until) &&
		r.For == o.For && r.Frozen == o.Frozen && slices.Equal(r.Keys, o.Keys) && slices.Equal(r.Secrets, o.Secrets) && slices.Equal(r.IDs, o.IDs) &&
		maps.Equal(r.Tally, o.Tally) && r.Detail == o.Detail && r.More == o.More && r.MoreServices == o.MoreServices && r.Cause.Equal(o.Cause)
}

// About returns the reason with the service that it is about, for contexts with
// more than one service.
func (r *Reason) About(service string) *Reason {
	if r == nil || r.Service == service {
		return r
	}
	c := *r
	c.Service = service
	return &c
}

// Root returns the cause of a reason if it has one, else the reason itself.
func (r *Reason) Root() *Reason {
	if r == nil || r.Cause == nil {
		return r
	}
	return r.Cause.About(r.Service)
}

// Is reports whether a reason has one of the codes.
func (r *Reason) Is(codes ...ReasonCode) bool {
	if r == nil {
		return false
	}
	for _, c := range codes {
		if r.Code == c {
			return true
		}
	}
	return false
}

// PlainText returns the text of a reason, and whether the reason is nothing but text.
func (r *Reason) PlainText() (text string, onlyText bool) {
	if r == nil {
		return "", true
	}
	return r.Detail, r.Code == "" && r.Equal(&Reason{Detail: r.Detail})
}

type plainReason Reason

// UnmarshalJSON also reads a string: older releases stored sentences.
func (r *Reason) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		*r = Reason{}
		return json.Unmarshal(data, &r.Detail)
	}
	return json.Unmarshal(data, (*plainReason)(r))
}

// MarshalJSON writes what encoding/json would. A large start stores one reason a
// hundred thousand times, and finding out by reflection that most of its fields
// are empty costs more than the rest of an instance.
func (r *Reason) MarshalJSON() ([]byte, error) {
	out := make([]byte, 1, 96)
	out[0] = '{'
	plain := r.Since.IsZero() && r.Until.IsZero() && r.For == 0 && !r.Frozen && r.Cause == nil &&
		len(r.Keys)+len(r.Secrets)+len(r.IDs)+len(r.Tally) == 0
	text := func(name, value string) {
		if plain = plain && isPlain(value); value != "" {
			out = append(append(append(append(out, name...), '"'), value...), '"', ',')
		}
	}
	number := func(name string, value int) {
		if value != 0 {
			out = append(strconv.AppendInt(append(out, name...), int64(value), 10), ',')
		}
	}
	text(`"code":`, string(r.Code))
	text(`"service":`, r.Service)
	text(`"subject":`, r.Subject)
	text(`"other":`, r.Other)
	text(`"node":`, r.Node)
	number(`"version":`, r.Version)
	number(`"back":`, r.RolledBackTo)
	number(`"count":`, r.Count)
	number(`"of":`, r.Of)
	text(`"detail":`, r.Detail)
	number(`"more":`, r.More)
	number(`"more_services":`, r.MoreServices)
	if !plain {
		return json.Marshal((*plainReason)(r))
	}
	if len(out) > 1 {
		out = out[:len(out)-1]
	}
	return append(out, '}'), nil
}

// isPlain reports whether a text needs no escapes in JSON.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

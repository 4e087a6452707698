package mariposa

import (
	"encoding/json"
	"time"
)

// Reason says why something is as it is, or why it is done, as data. The reason
// room turns it into a sentence; nothing else parses or builds sentences from
// it. A nil reason says nothing.
//
// A reason has at most one subject and one cause, so it never nests or grows:
// set Cause with Because, and count what else there is in More.
type Reason struct {
	Code    ReasonCode     `json:"code,omitempty"`    // empty: Detail is the whole sentence
	Subject string         `json:"subject,omitempty"` // the service, slot or instance it is about, by name
	Other   string         `json:"other,omitempty"`   // a second name that the sentence needs
	Node    string         `json:"node,omitempty"`    // the node it is about, by name
	Version int            `json:"version,omitempty"` // the number of a version
	Count   int            `json:"count,omitempty"`
	Of      int            `json:"of,omitempty"`
	Since   time.Time      `json:"since,omitzero"`
	Until   time.Time      `json:"until,omitzero"`
	For     time.Duration  `json:"for,omitempty"`
	Frozen  bool           `json:"frozen,omitempty"`  // the subject is frozen
	Keys    []string       `json:"keys,omitempty"`    // metadata keys, or names
	Secrets []string       `json:"secrets,omitempty"` // those of Keys that are secret
	Tally   map[string]int `json:"tally,omitempty"`   // counts by name
	Detail  string         `json:"detail,omitempty"`  // the words of somebody else: a driver, a program, a person
	More    int            `json:"more,omitempty"`    // how many others there are like it
	Cause   *Reason        `json:"cause,omitempty"`   // never has a cause of its own
}

// ReasonCode is a stable word for a kind of reason.
type ReasonCode string

// Why a service is not at its goal. The comment is the sentence.
const (
	ReasonVersionLost     ReasonCode = "version-lost"      // version 3, which defines it, is lost; submit the manifest again
	ReasonNodeAway        ReasonCode = "node-away"         // web.1-a is on node n1, which cannot be reached since 10:00:00; it is replaced at 10:01:00
	ReasonNodeAwayNever   ReasonCode = "node-away-never"   // … since 10:00:00, and reschedule says never
	ReasonStranded        ReasonCode = "stranded"          // … since 10:00:00; it goes when the node returns
	ReasonStartLimit      ReasonCode = "start-limit"       // as many instances are starting as may at once
	ReasonFailsAtOnce     ReasonCode = "fails-at-once"     // what was just made failed at once: CAUSE
	ReasonSlotBusy        ReasonCode = "slot-busy"         // slot web.3 is still occupied by an instance that is stopping
	ReasonWaitsMissing    ReasonCode = "waits-missing"     // waits for db: it is not there
	ReasonWaitsStopped    ReasonCode = "waits-stopped"     // waits for db: it is stopped
	ReasonWaitsInstances  ReasonCode = "waits-instances"   // waits for db: 0 of 1 running[, and it is frozen][; CAUSE]
	ReasonWaitsRollout    ReasonCode = "waits-rollout"     // waits for db: its rollout is under way | CAUSE
	ReasonWaitsHeld       ReasonCode = "waits-held"        // waits for db, whose rollout is held
	ReasonWaitsScale      ReasonCode = "waits-scale"       // waits for db: its scale is 0, so there is nothing to refer to; scale it up
	ReasonWaitsRest       ReasonCode = "waits-rest"        // waits for db: it is changing
	ReasonWaitsField      ReasonCode = "waits-field"       // waits for db: db.1-a (Other) has no address (Detail)
	ReasonWaitsReference  ReasonCode = "waits-reference"   // waits for db: db.1-a (Other), which it refers to, is gone
	ReasonFollows         ReasonCode = "follows"           // follows db to db.1-a (Other)
	ReasonFollowsOther    ReasonCode = "follows-other"     // what it refers to has changed
	ReasonReferenceGone   ReasonCode = "reference-gone"    // refers to db.1-a (Other), which is gone; it follows once db (Subject) serves again
	ReasonProves          ReasonCode = "proves"            // refers to db.1-a (Other), which is gone; it follows once db.1-b (Subject) has been up for 5s (For)
	ReasonReferrers       ReasonCode = "referrers"         // db.1-a (Subject) stays until web (Other), which refers to it, has followed another[: CAUSE]
	ReasonGoesAfter       ReasonCode = "goes-after"        // goes after web (Subject), which depends on it and still has 2 (Count)[ and is frozen]
	ReasonBackingOff      ReasonCode = "backing-off"       // failed 3 times in a row; next try at 10:00:00: CAUSE
	ReasonPaused          ReasonCode = "paused"            // the rollout of version 2 is paused: 1 of 3 are up to date
	ReasonHeld            ReasonCode = "held"              // 1 of 3 at version 2; reprovision continues, revert undoes it
	ReasonFrozen          ReasonCode = "frozen"            // Tally and Keys: what would be done after thaw
	ReasonNeedsMetadata   ReasonCode = "needs-metadata"    // needs the metadata key mode: set it with mariposa meta set mode VALUE
	ReasonStoppedFailures ReasonCode = "rollout-failures"  // the rollout of version 2 stopped after 3 failures: CAUSE
	ReasonStoppedDeadline ReasonCode = "rollout-deadline"  // the rollout of version 2 stopped: no progress for 10m0s[: CAUSE]
	ReasonNotFollowed     ReasonCode = "rollout-no-follow" // the rollout of version 2 stopped: web (Subject), which refers to it, does not follow[: CAUSE]
	ReasonFailure         ReasonCode = "failure"           // web.1-a exited with 1 (Detail); without Subject: its instances do not stay up
	ReasonIsFrozen        ReasonCode = "is-frozen"         // it is frozen
	ReasonIsPaused        ReasonCode = "is-paused"         // its rollout is paused
	ReasonIsHeld          ReasonCode = "is-held"           // its rollout is held
	ReasonIsFollowing     ReasonCode = "is-following"      // it is on its way
	ReasonIsWaiting       ReasonCode = "is-waiting"        // it waits for db (Subject)
	ReasonIsRemoved       ReasonCode = "is-removed"        // it is being removed
)

// Why a step is taken. The comment is the sentence.
const (
	ReasonScale           ReasonCode = "scale"            // scale is 3
	ReasonReplacesFailed  ReasonCode = "replaces-failed"  // replaces web.1-a (exited with 1)
	ReasonReplacesLost    ReasonCode = "replaces-lost"    // replaces web.1-a, whose node n1 cannot be reached since 10:00:00
	ReasonVersionReplaces ReasonCode = "version-replaces" // version 2 replaces web.1-a; without Subject: version 2 replaces it
	ReasonFollowReplaces  ReasonCode = "follow-replaces"  // replaces web.1-a, to follow db (Other), which it refers to; without Subject: it follows db, which it refers to
	ReasonInPlace         ReasonCode = "in-place"         // version 2 changes it in place
	ReasonNothingLeft     ReasonCode = "nothing-left"     // nothing of it is left
	ReasonPlaceTaken      ReasonCode = "place-taken"      // its place is taken
	ReasonSlotHeld        ReasonCode = "slot-held"        // another one holds slot web.3
	ReasonFrozenUnserved  ReasonCode = "frozen-unserved"  // the service is frozen before it has served
	ReasonProjectStopped  ReasonCode = "project-stopped"  // the project is stopped
	ReasonProjectDeleted  ReasonCode = "project-deleted"  // the project is deleted
	ReasonServiceStopped  ReasonCode = "service-stopped"  // the service is stopped
	ReasonServiceRemoved  ReasonCode = "service-removed"  // the service is no longer in the manifest
	ReasonKept            ReasonCode = "kept"             // kept for a while
	ReasonNotKept         ReasonCode = "not-kept"         // it has ended, and what ends is not kept
	ReasonKeptNewer       ReasonCode = "kept-newer"       // it has ended, and newer ones that have are kept instead
	ReasonKeptLong        ReasonCode = "kept-long"        // it has ended, and was kept for a day
)

// Said is a reason in somebody's own words; nil where there are none.
func Said(text string) *Reason {
	if text == "" {
		return nil
	}
	return &Reason{Detail: text}
}

// Because is the reason with a cause. What the cause was caused by is left out:
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

// AndMore is the reason with a count of others like it.
func (r *Reason) AndMore(n int) *Reason {
	if r == nil || n == 0 {
		return r
	}
	c := *r
	c.More = n
	return &c
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

type plainReason Reason

// MarshalJSON writes a reason that is mere words as a string.
func (r *Reason) MarshalJSON() ([]byte, error) {
	if r != nil && r.Code == "" {
		return json.Marshal(r.Detail)
	}
	return json.Marshal((*plainReason)(r))
}

// UnmarshalJSON reads both forms: releases before reasons were data stored strings.
func (r *Reason) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		*r = Reason{}
		return json.Unmarshal(data, &r.Detail)
	}
	return json.Unmarshal(data, (*plainReason)(r))
}

// Package reason turns reasons into the sentences that users read.
//
// It owns the wording: one table defines the sentence of every code, with the commands
// that help. It does not know where a reason comes from or what is done about it.
package reason

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mariposa"
)

// Sentence returns a reason in words; empty for none.
func Sentence(r *mariposa.Reason) string { return At(r, time.Time{}) }

// At returns a reason in words that are true at a time: a retry that is due is described
// as now, and times of other days have a date. The zero time is before everything.
func At(r *mariposa.Reason, now time.Time) string { return sentence(r, now, runIt) }

// ForMember is At for somebody who is no operator of the project: where a command helps that
// only operators may run, it says whom to ask.
func ForMember(r *mariposa.Reason, now time.Time) string { return sentence(r, now, askForIt) }

// The verbs before a command that only operators of the project may run.
const (
	runIt    = "run"
	askForIt = "ask an operator to run"
)

// sentence returns the clauses of a reason in order: what is so, its cause, how many others
// there are, and last what to do, so that nothing follows a command.
func sentence(r *mariposa.Reason, now time.Time, run string) string {
	if r == nil {
		return ""
	}
	text, join := mainClause(r, now)
	if r.Cause != nil {
		short := *r.Cause
		short.Detail = clip(short.Detail, maxDetail) // nothing else is cut: a sentence may end with a command
		cause, _ := mainClause(&short, now)
		if cause = aboutService(r.Cause, cause, r.Service); text == "" {
			text = cause
		} else if cause != "" {
			text += join + cause
		}
	}
	switch {
	case r.RolledBackTo == mariposa.NoVersion && r.Code != mariposa.ReasonRollbackFailed:
		text += "; stopped, because no earlier version was ever completed"
	case r.RolledBackTo != 0 && r.Code != mariposa.ReasonRollbackFailed:
		text += fmt.Sprintf("; rolled back to version %d", r.RolledBackTo)
	case r.Is(mariposa.ReasonStartFailures, mariposa.ReasonStartDeadline):
		text += "; Mariposa keeps trying"
	}
	if more := others(r); more != "" {
		text += " (" + more + ")"
	}
	if help := fullHelp(r, run); help != "" && text != "" {
		text += "; " + help
	}
	return aboutService(r, text, "")
}

// others counts what else there is like a reason: instances of the same service, and
// services of the same project.
func others(r *mariposa.Reason) string {
	var all []string
	if r.More > 0 {
		all = append(all, "and "+Many(r.More, "more instance"))
	}
	if r.MoreServices > 0 {
		all = append(all, "and "+Many(r.MoreServices, "more service"))
	}
	return strings.Join(all, ", ")
}

// fullHelp returns what to do about a reason: about its cause, and then about the rest.
func fullHelp(r *mariposa.Reason, run string) string {
	own, first := helpOf(r, run), ""
	if r.Cause != nil {
		first = helpOf(r.Cause, run)
	}
	switch {
	case own == "", first != "" && r.Is(mariposa.ReasonDrainService, mariposa.ReasonDrainLeft):
		return first
	case first != "" && r.Is(mariposa.ReasonDrainDeadline, mariposa.ReasonDrainStopped):
		return first + "; then " + own
	}
	return own
}

// helpOf returns what to do about a reason, without its cause; empty: nothing, or it is part
// of the sentence.
func helpOf(r *mariposa.Reason, run string) string {
	if isFailedRollout(r) && r.RolledBackTo == 0 {
		return tryAgain
	}
	if w := table[r.Code]; w.help != nil {
		return w.help(r, run)
	}
	return ""
}

// Timed reports whether a reason reads differently at another time.
func Timed(r *mariposa.Reason) bool {
	return r != nil && (!r.Since.IsZero() || !r.Until.IsZero() || Timed(r.Cause))
}

// Codes returns the codes that have a sentence, sorted.
func Codes() []mariposa.ReasonCode { return slices.Sorted(maps.Keys(table)) }

// mainClause returns the reason without its cause, and what joins the two.
func mainClause(r *mariposa.Reason, now time.Time) (text, join string) {
	w, known := table[r.Code]
	if !known { // free text, or a code of a newer release
		text = r.Detail
		if text == "" {
			text = string(r.Code)
		}
		return text, ": "
	}
	join = w.join
	if join == "" {
		join = ": "
	}
	return w.text(r, now), join
}

// aboutService puts the service before a text about it, unless it is known.
func aboutService(r *mariposa.Reason, text, known string) string {
	if r.Service == "" || r.Service == known || text == "" {
		return text
	}
	if r.Code == mariposa.ReasonFrozen {
		return r.Service + " is frozen: " + text
	}
	return r.Service + ": " + text
}

// isFailedRollout reports whether a rollout stopped by itself and waits for a user.
func isFailedRollout(r *mariposa.Reason) bool {
	return r.Is(mariposa.ReasonStoppedFailures, mariposa.ReasonStoppedDeadline, mariposa.ReasonNotFollowed)
}

const tryAgain = "retry with `mariposa project converge`, or go back with `mariposa project revert`"

// maxDetail is how long quoted words may be inside a sentence, in characters.
const maxDetail = 200

// clip shortens a text that is too long.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return strings.TrimSpace(string(runes[:most-1])) + "…"
}

// quotedDetail returns text from elsewhere for use inside a sentence.
func quotedDetail(r *mariposa.Reason) string { return clip(r.Detail, maxDetail) }

// stamp returns a time of day, with the date if it is not today's.
func stamp(at, now time.Time) string {
	at, now = at.UTC(), now.UTC()
	if !now.IsZero() && (at.YearDay() != now.YearDay() || at.Year() != now.Year()) {
		return at.Format("2006-01-02 15:04:05 UTC")
	}
	return at.Format("15:04:05 UTC")
}

// listNames lists names: all of a few, the first of many.
func listNames(names []string) string {
	const few = 4
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// Many counts things in words: 1 instance, 2 instances.
func Many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// firstNonEmpty returns the first text that is not empty.
func firstNonEmpty(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// idAt returns an id that a command takes; a placeholder if it is not known.
func idAt(r *mariposa.Reason, n int) string {
	if n < len(r.IDs) {
		return r.IDs[n]
	}
	return "ID"
}

// maxServiceFlags is how many services a command names.
const maxServiceFlags = 5

// serviceFlags returns the flags that name services; of many, a flag for one of them.
func serviceFlags(services []string) []string {
	if len(services) > maxServiceFlags {
		return []string{"--service", "NAME"}
	}
	var flags []string
	for _, s := range services {
		flags = append(flags, "--service", s)
	}
	return flags
}

// keyAt returns a name out of Keys.
func keyAt(r *mariposa.Reason, n int) string {
	if n < len(r.Keys) {
		return r.Keys[n]
	}
	return "?"
}

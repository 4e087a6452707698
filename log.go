package mariposa

import (
	"bytes"
	"time"
)

// LogOptions selects a part of an instance's log, and how it is shown.
type LogOptions struct {
	Tail       int       `json:"tail,omitempty"`   // lines from the end; negative: all
	Follow     bool      `json:"follow,omitempty"` // continue as more is written
	Since      time.Time `json:"since,omitzero"`   // only lines that began then or later
	Timestamps bool      `json:"timestamps,omitempty"`
	// Positions begins the log with a line with the position where it starts, and each
	// line with its own position, so that another reader can continue. See
	// CutLogPosition. Agents of earlier releases ignore it.
	Positions bool `json:"positions,omitempty"`
	// From is the position to start at; empty: Tail and Since select the start. If it no
	// longer exists, the log starts with the oldest line.
	From string `json:"from,omitempty"`
}

// LogBeginning is the position of the beginning of a log that is empty so far.
const LogBeginning = "-"

// logPositionMark begins a position. No time begins with it.
const logPositionMark = '@'

// AppendLogPosition appends the position that precedes a line of a log, followed by a
// space.
func AppendLogPosition(b []byte, position string) []byte {
	return append(append(append(b, logPositionMark), position...), ' ')
}

// LogStart returns the first line of a log with positions: where it starts.
func LogStart(position string) []byte {
	return append(append([]byte{logPositionMark}, position...), '\n')
}

// HasLogPosition reports whether a line, or the beginning of one, starts with a position.
func HasLogPosition(line []byte) bool { return len(line) > 0 && line[0] == logPositionMark }

// CutLogPosition splits a line of a log with positions. The position is empty if the line
// has none.
func CutLogPosition(line []byte) (position string, rest []byte) {
	if !HasLogPosition(line) {
		return "", line
	}
	if at := bytes.IndexAny(line, " \n"); at > 0 {
		return string(line[1:at]), line[at+1:]
	}
	return string(line[1:]), nil
}

// logTimeLayout has the same width for every time, so that lines align.
const logTimeLayout = "2006-01-02T15:04:05.000000Z"

// NoLogTime replaces the time of a line that was written before times were recorded.
const NoLogTime = "-"

// AppendLogTime appends the time that precedes a line of a log, followed by a space.
func AppendLogTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, NoLogTime+" "...)
	}
	return append(t.UTC().AppendFormat(b, logTimeLayout), ' ')
}

// CutLogTime splits a line of a log with timestamps. The time is zero if the line has
// none.
func CutLogTime(line []byte) (at time.Time, text []byte) {
	stamp, text, found := bytes.Cut(line, []byte(" "))
	if !found {
		return at, line
	}
	if string(stamp) == NoLogTime {
		return at, text
	}
	at, err := time.Parse(logTimeLayout, string(stamp))
	if err != nil {
		return time.Time{}, line
	}
	return at, text
}

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

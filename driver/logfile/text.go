package logfile

import (
	"bytes"
	"os"
	"time"

	"mariposa"
)

// logText converts the content of log files into the command's output, with or without
// the time of each line.
type logText struct {
	since     time.Time
	stamps    bool
	positions bool

	isTimed bool   // the file has timestamps
	inLine  bool   // the last line has no end yet
	skips   bool   // the line is too old to be shown
	stamp   []byte // the part of a timestamp that has been read
	inStamp bool
	began   time.Time // of the line that is resumed

	file   *os.File // that is read
	key    string   // of the file, once it is known
	next   int64    // the offset of the bytes that are read next
	offset int64    // of the bytes that are converted
	line   int64    // where the timestamp began
}

// beginFile starts the next file.
func (l *logText) beginFile(timed bool) {
	l.isTimed, l.inStamp, l.key = timed, timed, ""
	l.stamp = l.stamp[:0] // its writer was killed
}

// resumeLine continues a line that began at a time.
func (l *logText) resumeLine(at time.Time) { l.inStamp, l.began = false, at }

// appendText appends the text of the next bytes of a file.
func (l *logText) appendText(out, raw []byte) []byte {
	for end := l.offset + int64(len(raw)); len(raw) > 0; {
		l.offset = end - int64(len(raw))
		if l.inStamp {
			out, raw = l.readStamp(out, raw)
			continue
		}
		if !l.inLine {
			l.line = l.offset
			out = l.beginLine(out, l.began)
			l.began = time.Time{}
		}
		line := raw
		if end := bytes.IndexByte(raw, '\n'); end >= 0 {
			line = raw[:end+1]
		}
		out = l.appendPart(out, line)
		raw = raw[len(line):]
	}
	return out
}

// appendPart appends a part of a line.
func (l *logText) appendPart(out, part []byte) []byte {
	l.inLine = part[len(part)-1] != '\n'
	l.inStamp = l.isTimed && !l.inLine
	if l.skips {
		return out
	}
	return append(out, part...)
}

// readStamp reads a timestamp, or the available part of it. A line without a valid one is
// damaged and shown as it is.
func (l *logText) readStamp(out, raw []byte) (_, rest []byte) {
	if len(l.stamp) == 0 {
		l.line = l.offset
	}
	n := min(len(raw), stampSize-len(l.stamp))
	end := bytes.IndexByte(raw[:n], '\n')
	if end >= 0 {
		n = end + 1
	}
	l.stamp = append(l.stamp, raw[:n]...)
	rest = raw[n:]
	if len(l.stamp) < stampSize && end < 0 {
		return out, rest
	}
	l.inStamp = false
	at, continues, ok := parseStamp(l.stamp)
	if !continues || !l.inLine {
		out = l.beginLine(out, at)
	}
	if !ok {
		out = l.appendPart(out, l.stamp)
	}
	l.stamp = l.stamp[:0]
	return out, rest
}

// beginLine begins a line that was written at a time; zero if that is unknown.
func (l *logText) beginLine(out []byte, at time.Time) []byte {
	if l.inLine && !l.skips {
		out = append(out, '\n') // the end of the last line is lost
	}
	l.inLine = true
	l.skips = !at.IsZero() && at.Before(l.since)
	if l.positions && !l.skips {
		if l.key == "" {
			l.key = fileKey(l.file)
		}
		out = mariposa.AppendLogPosition(out, positionIn(l.key, l.line))
	}
	if l.stamps && !l.skips {
		out = mariposa.AppendLogTime(out, at)
	}
	return out
}

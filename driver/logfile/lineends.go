package logfile

import "io"

// LineEnds turns the line ends of a terminal into those of a file.
type LineEnds struct {
	To io.Writer // what it fails to write is lost

	pending bool // a carriage return that may be the first half of a line end
}

// Write never fails.
func (l *LineEnds) Write(p []byte) (int, error) {
	out := make([]byte, 0, len(p)+1)
	for _, c := range p {
		if l.pending && c != '\n' {
			out = append(out, '\r')
		}
		if l.pending = c == '\r'; !l.pending {
			out = append(out, c)
		}
	}
	if len(out) > 0 {
		_, _ = l.To.Write(out) // a full disk loses lines
	}
	return len(p), nil
}

// Flush writes what may have been half a line end.
func (l *LineEnds) Flush() {
	if l.pending {
		l.pending = false
		_, _ = l.To.Write([]byte{'\r'}) // the same
	}
}

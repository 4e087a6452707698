// Package logfile writes the output of an instance to files that rotate, with the time of each
// line, and reads them back from any position. It owns the format of these files; it does not
// know where the output comes from.
package logfile

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"time"
)

// A log file with timestamps starts with logHeader, and each of its lines with a
// timestamp: the time when its first byte was written, in microseconds since 1970 as
// logDigits of logAlphabet, then stampNew or stampContinues. A program cannot forge a
// timestamp, because one of ours follows each of its line feeds. Lines can still be found
// by line feeds alone. Files without the header were written by earlier releases and have
// no timestamps.
const (
	logHeader      = "#mariposa-log1\n"
	logAlphabet    = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz" // in the order of ASCII
	logDigits      = 9                                                                  // until the year 2540
	stampSize      = logDigits + 1
	stampNew       = ' '
	stampContinues = '+' // the line began in the previous file
)

// appendStamp appends the timestamp of a line.
func appendStamp(b []byte, at time.Time, kind byte) []byte {
	micros := at.UnixMicro()
	for shift := 6 * (logDigits - 1); shift >= 0; shift -= 6 {
		b = append(b, logAlphabet[micros>>shift&63])
	}
	return append(b, kind)
}

// parseStamp parses the timestamp at the beginning of a line.
func parseStamp(b []byte) (at time.Time, continues, ok bool) {
	if len(b) < stampSize || b[logDigits] != stampNew && b[logDigits] != stampContinues {
		return at, false, false
	}
	var micros int64
	for _, c := range b[:logDigits] {
		digit := bytes.IndexByte([]byte(logAlphabet), c)
		if digit < 0 {
			return at, false, false
		}
		micros = micros<<6 | int64(digit)
	}
	return time.UnixMicro(micros), b[logDigits] == stampContinues, true
}

// Writer appends to a log, with the time of each line. When the file is full, it is
// renamed to log.1, log.1 to log.2 and so on, and the oldest is deleted.
type Writer struct {
	path string
	max  int64
	keep int // files in all
	now  func() time.Time

	file   *os.File
	size   int64
	began  time.Time // of the last line
	inLine bool      // the last line has no end yet
	cut    bool      // the last line stays without end: the next output is a new line
	isOpen bool      // the last line in the file has no end yet
	ready  []byte    // not written yet
}

// Open opens a log for writing, after what an earlier writer has left. Each file has up to max
// bytes, and keep files are kept in all.
func Open(path string, max int64, keep int) (*Writer, error) {
	r := &Writer{path: path, max: max, keep: keep, now: time.Now}
	if err := r.open(); err != nil {
		return nil, err
	}
	if err := r.takeOver(); err != nil {
		_ = r.file.Close()
		return nil, err
	}
	return r, nil
}

// Close closes the log.
func (r *Writer) Close() error { return r.file.Close() }

// Size adds up the files of a log.
func Size(path string, keep int) (sum int64) {
	for n := range keep {
		if info, err := os.Stat(rotated(path, n)); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

func (r *Writer) open() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	r.file, r.size = f, info.Size()
	return nil
}

// takeOver continues the log of an earlier run. A file without timestamps is left as it
// is. A line that a killed writer left incomplete is removed.
func (r *Writer) takeOver() error {
	if r.size == 0 {
		return nil
	}
	if timed, _ := hasTimes(r.file); !timed {
		return r.rotate()
	}
	_, at := findLineStart(r.file, int64(len(logHeader)), r.size, 1)
	if at == r.size {
		return nil
	}
	stamp := make([]byte, stampSize)
	n, err := r.file.ReadAt(stamp, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, _, ok := parseStamp(stamp[:n]); !ok || r.size == at+stampSize {
		r.size = at
		return r.file.Truncate(at)
	}
	r.inLine, r.cut, r.isOpen = true, true, true
	return nil
}

// hasTimes reports whether a file has timestamps. known is false while the file is too
// short to tell.
func hasTimes(f *os.File) (timed, known bool) {
	b := make([]byte, len(logHeader))
	n, _ := f.ReadAt(b, 0)
	if n < len(b) {
		return false, string(b[:n]) != logHeader[:n]
	}
	return string(b) == logHeader, true
}

// Write adds output that the command has just written.
func (r *Writer) Write(p []byte) (int, error) {
	now := r.now()
	for rest := p; len(rest) > 0; {
		part := rest
		if end := bytes.IndexByte(rest, '\n'); end >= 0 {
			part = rest[:end+1]
		}
		if err := r.add(part, now); err != nil {
			return 0, err
		}
		rest = rest[len(part):]
	}
	return len(p), r.flush()
}

// add adds a line or a part of one.
func (r *Writer) add(part []byte, now time.Time) error {
	if r.cut {
		r.ready = append(r.ready, '\n')
		r.inLine, r.cut = false, false
	}
	if written := r.size + int64(len(r.ready)); written > 0 && written+stampSize+int64(len(part)) > r.max {
		if err := r.flush(); err != nil {
			return err
		}
		if err := r.rotate(); err != nil {
			r.cut = r.inLine
			return err
		}
	}
	isFirst := r.size+int64(len(r.ready)) == 0
	if isFirst {
		r.ready = append(r.ready, logHeader...)
	}
	if !r.inLine {
		r.began = now
		r.ready = appendStamp(r.ready, now, stampNew)
	} else if isFirst {
		r.ready = appendStamp(r.ready, r.began, stampContinues)
	}
	r.ready = append(r.ready, part...)
	r.inLine = part[len(part)-1] != '\n'
	return nil
}

// flush writes the pending output. If the disk is full, all of it is lost, and later
// output starts a new line.
func (r *Writer) flush() error {
	n, err := r.file.Write(r.ready)
	r.ready = r.ready[:0]
	if err == nil {
		r.size += int64(n)
		r.isOpen = r.inLine
		return nil
	}
	if n > 0 && r.file.Truncate(r.size) != nil {
		r.size += int64(n)
		r.isOpen = true
	}
	r.inLine, r.cut = r.isOpen, r.isOpen
	return err
}

func (r *Writer) rotate() error {
	if r.keep < 2 {
		r.size = 0
		return r.file.Truncate(0)
	}
	for n := r.keep - 1; n > 0; n-- {
		err := os.Rename(rotated(r.path, n-1), rotated(r.path, n))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	old := r.file
	if err := r.open(); err != nil {
		return err // continue with the old file
	}
	return old.Close()
}

// rotated returns the path of the nth older file of a log; 0 is the log itself.
func rotated(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}

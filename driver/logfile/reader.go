package logfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
)

// Read opens a log as LogOptions ask for. keep is the number of files that its writer keeps.
// A reader that follows ends when the log's directory is gone, or with ctx.
func Read(ctx context.Context, path string, keep int, o driver.LogOptions) io.ReadCloser {
	r := &reader{ctx: ctx, path: path, keep: keep, closed: make(chan struct{})}
	r.open(o)
	return r
}

// reader reads the files of a log from the oldest on and, if it follows, waits for
// more. The writer may rotate at any time, so the open file matters, not its name.
type reader struct {
	ctx    context.Context
	path   string
	keep   int
	follow bool
	text   logText

	mu     sync.Mutex
	files  []*os.File // still to be read, the oldest first
	begun  bool       // the first of them is being read
	inside bool       // reading starts in the middle of a line
	buffer []byte
	ready  []byte // not returned yet
	once   sync.Once
	closed chan struct{}
}

func (r *reader) open(o driver.LogOptions) {
	r.follow, r.files = o.Follow, r.nextFile(nil)
	kept := len(r.files)
	r.text = logText{since: o.Since, stamps: o.Timestamps, positions: o.Positions}
	switch {
	case o.From != "":
		r.text.since = time.Time{} // the first reader has skipped what is older
		r.skipToPosition(o.From)
	case o.Tail >= 0:
		r.skipTo(o.Tail)
		fallthrough
	default:
		if !o.Since.IsZero() {
			r.skipOld(o.Since)
		}
	}
	if o.Positions {
		r.ready = mariposa.LogStart(r.startPosition(kept))
	}
}

// skipTo skips to the last lines. The files are one stream: a line may begin in one and
// end in the next.
func (r *reader) skipTo(lines int) {
	ends, last := lines, true // line ends to skip backwards; the last line is not reached yet
	for n := len(r.files) - 1; n >= 0; n-- {
		f := r.files[n]
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			continue
		}
		from := logStart(f)
		if last && size > from {
			if last = false; lines > 0 && endsLine(f, size) {
				ends++ // its own
			}
		}
		var at int64
		if ends, at = findLineStart(f, from, size, ends); ends == 0 {
			_, _ = f.Seek(at, io.SeekStart)
			r.inside = at > from && !endsLine(f, at)
			closeAll(r.files[:n])
			r.files = r.files[n:]
			return
		}
		_, _ = f.Seek(0, io.SeekStart)
	}
}

// skipOld skips files that were last written before a time, without reading them. In the
// newest file, lines are checked one by one if they have timestamps.
func (r *reader) skipOld(since time.Time) {
	for len(r.files) > 0 {
		f := r.files[0]
		info, err := f.Stat()
		if err != nil || !info.ModTime().Before(since) {
			return
		}
		if len(r.files) == 1 {
			if timed, known := hasTimes(f); known && !timed {
				_, _ = f.Seek(0, io.SeekEnd)
			}
			return
		}
		_ = f.Close()
		r.files = r.files[1:]
	}
}

// logStart returns the offset of a file's first line.
func logStart(f *os.File) int64 {
	if timed, _ := hasTimes(f); timed {
		return int64(len(logHeader))
	}
	return 0
}

// findLineStart skips a number of line ends backwards from the end of a file, but not
// before from. It returns how many are missing and where it stopped: after the last line
// end that it skipped.
func findLineStart(f *os.File, from, size int64, ends int) (lacking int, at int64) {
	if ends == 0 {
		return 0, size
	}
	buffer := make([]byte, 32<<10)
	for pos := size; pos > from; {
		n := min(pos-from, int64(len(buffer)))
		pos -= n
		if _, err := f.ReadAt(buffer[:n], pos); err != nil && !errors.Is(err, io.EOF) {
			return 0, size
		}
		for k := int(n); k > 0; {
			if k = bytes.LastIndexByte(buffer[:k], '\n'); k < 0 {
				break
			}
			if ends--; ends == 0 {
				return 0, pos + int64(k) + 1
			}
		}
	}
	return ends, from
}

func endsLine(f *os.File, end int64) bool {
	var last [1]byte
	_, err := f.ReadAt(last[:], end-1)
	return err == nil && last[0] == '\n'
}

func (r *reader) Read(p []byte) (int, error) {
	for {
		n, err := r.readNow(p)
		if n > 0 || (err != nil && !errors.Is(err, io.EOF)) {
			return n, err
		}
		if !r.follow {
			return 0, io.EOF
		}
		if _, err := os.Stat(filepath.Dir(r.path)); errors.Is(err, os.ErrNotExist) {
			return 0, io.EOF // the instance was removed
		}
		select {
		case <-r.closed:
			return 0, os.ErrClosed
		case <-r.ctx.Done():
			return 0, io.EOF
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// readNow reads the available log as text.
func (r *reader) readNow(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buffer == nil {
		r.buffer = make([]byte, 32<<10)
	}
	for len(r.ready) == 0 {
		n, err := r.readFile(r.buffer)
		if err != nil {
			return 0, err
		}
		r.ready = r.text.appendText(r.ready[:0], r.buffer[:n])
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// readFile reads what is available and continues with the next file when one is complete.
func (r *reader) readFile(p []byte) (int, error) {
	for {
		if isClosed(r.closed) {
			return 0, os.ErrClosed
		}
		if len(r.files) == 0 {
			f, err := os.Open(r.path)
			if err != nil {
				return 0, io.EOF // nothing written yet
			}
			r.files, r.begun = []*os.File{f}, false
		}
		last := len(r.files) == 1
		var newer []*os.File
		if last && r.follow {
			// This check comes before the read: after a rotation, output goes to the
			// newer file, so this one is then complete.
			newer = r.nextFile(r.files[0])
		}
		n, err := 0, io.EOF
		if r.begin(r.files[0]) {
			n, err = r.files[0].Read(p)
			r.text.offset = r.text.next
			r.text.next += int64(n)
		}
		if n > 0 || !errors.Is(err, io.EOF) {
			closeAll(newer)
			return n, err
		}
		if last && len(newer) == 0 {
			return 0, io.EOF
		}
		_ = r.files[0].Close()
		r.files, r.begun = append(r.files[1:], newer...), false
	}
}

// begin checks once whether a file has timestamps; false if that is not known yet.
func (r *reader) begin(f *os.File) bool {
	if r.begun {
		return true
	}
	timed, known := hasTimes(f)
	if !known {
		return false
	}
	r.begun = true
	if at, err := f.Seek(0, io.SeekCurrent); timed && err == nil && at == 0 {
		_, _ = f.Seek(int64(len(logHeader)), io.SeekStart)
	}
	r.text.beginFile(timed)
	r.text.file = f
	r.text.next, _ = f.Seek(0, io.SeekCurrent)
	if timed && r.inside {
		r.text.resumeLine(lineTime(f))
	}
	r.inside = false
	return true
}

// lineTime returns the time of the line in whose middle reading starts.
func lineTime(f *os.File) time.Time {
	stamp := make([]byte, stampSize)
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return time.Time{}
	}
	_, start := findLineStart(f, int64(len(logHeader)), at, 1)
	n, _ := f.ReadAt(stamp, start)
	began, _, _ := parseStamp(stamp[:n])
	return began
}

// nextFile opens the files after a file, or all files if it is nil, the oldest first.
func (r *reader) nextFile(f *os.File) []*os.File {
	var list []*os.File
	// The newest first: a rotation meanwhile then shows one file twice, which is
	// detected, instead of hiding one.
	for n := range r.keep {
		next, err := os.Open(rotated(r.path, n))
		if err != nil {
			continue
		}
		if f != nil && sameFile(next, f) {
			_ = next.Close()
			return list
		}
		if len(list) > 0 && sameFile(list[0], next) {
			_ = next.Close()
			continue
		}
		list = append([]*os.File{next}, list...)
	}
	return list // it was rotated away, so all files are newer
}

func (r *reader) Close() error {
	r.once.Do(func() { close(r.closed) })
	r.mu.Lock()
	defer r.mu.Unlock()
	closeAll(r.files)
	r.files = nil
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

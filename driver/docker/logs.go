package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
)

// The engine keeps the log of a container as entries with a time and up to 16 KiB of text; a
// longer line has several. The position of a line is the time of its first entry and how many
// lines with the same time come before it.
//
// Times are those of the machine's clock, which may be set back: a later line can have an
// earlier time. So a reader that continues asks for entries from some time before the position
// and skips what comes before it.

// setBack is how far the clock may have been set back in the middle of a log.
const setBack = 10 * time.Second

// position is where a line of a log begins.
type position struct {
	at time.Time
	n  int // lines before it with the same time
}

func (p position) String() string {
	if p.at.IsZero() {
		return mariposa.LogBeginning
	}
	return strconv.FormatInt(p.at.UnixNano(), 10) + "." + strconv.Itoa(p.n)
}

// parsePosition reads a position; false if it is none of ours.
func parsePosition(text string) (p position, ok bool) {
	nanos, n, found := strings.Cut(text, ".")
	at, err1 := strconv.ParseInt(nanos, 10, 64)
	count, err2 := strconv.Atoi(n)
	if !found || err1 != nil || err2 != nil {
		return p, false
	}
	return position{at: time.Unix(0, at), n: count}, true
}

// line is one line of a log, or the beginning of one that is not complete yet.
type line struct {
	position
	text []byte // with its end of line
}

// Logs opens the log of a container.
func (d *Driver) Logs(ctx context.Context, id string, o driver.LogOptions) (io.ReadCloser, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	c, err := d.container(ctx, id)
	if err != nil {
		leave()
		if errdefs.IsNotFound(err) {
			return nil, driver.ErrNotFound
		}
		return nil, d.explain(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	l := &logReader{d: d, id: id, options: o, out: w, terminal: c.Config.Tty}
	stop := context.AfterFunc(ctx, func() { _ = w.Close() }) // a reader that does not read holds up no one
	go func() {                                              // Close waits for it: it has entered
		defer leave()
		defer cancel()
		defer stop()
		_ = w.CloseWithError(l.copy(ctx)) // never fails
	}()
	return &logPipe{PipeReader: r, cancel: cancel}, nil
}

// logPipe is the reader's end of a log.
type logPipe struct {
	*io.PipeReader
	cancel func()
}

// Close ends the log.
func (p *logPipe) Close() error {
	p.cancel()
	return p.PipeReader.Close()
}

// logReader copies a log.
type logReader struct {
	d       *Driver
	id      string
	options driver.LogOptions
	out     io.Writer
	next    position // of the next line
	started bool
	// terminal: the container was adopted and has a terminal, so its log has lines instead of
	// entries with headers.
	terminal bool
}

// copy copies the log, and goes on as long as the instance exists if it is followed.
func (l *logReader) copy(ctx context.Context) error {
	from, resume := parsePosition(l.options.From)
	if l.options.From != "" && !resume {
		l.options.Tail, l.options.Since = -1, time.Time{} // the log is not the same: all that is left
	}
	if err := l.begin(ctx, from, resume); err != nil {
		return l.quietEnd(ctx, err)
	}
	for l.options.Follow {
		changed := l.d.changeOf(l.id)
		err := l.read(ctx, query{since: l.next, resume: true, follow: true})
		if err != nil || !l.awaitRun(ctx, changed) {
			return l.quietEnd(ctx, err)
		}
	}
	return nil
}

// quietEnd returns the error of a log that was read: its end is none.
func (l *logReader) quietEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil || errdefs.IsNotFound(err) {
		err = nil
	}
	return l.d.explain(err)
}

// begin finds the start and copies what is there.
func (l *logReader) begin(ctx context.Context, from position, resume bool) error {
	q := query{tail: l.options.Tail, after: l.options.Since}
	switch {
	case resume:
		q = query{since: from, resume: true, tail: -1}
		l.next = from
	case l.options.Tail == 0 || l.options.Tail > 0 && l.options.Positions:
		return l.beginAtTail(ctx)
	}
	if err := l.read(ctx, q); err != nil {
		return err
	}
	return l.writeStart(l.next)
}

// beginAtTail copies the last lines. Their positions are known only if all lines with the time
// of the first one are read.
func (l *logReader) beginAtTail(ctx context.Context) error {
	var last []line
	keep := max(1, l.options.Tail)
	collect := func(x line) error {
		last = append(last, x)
		if len(last) > keep+1 {
			last = last[1:]
		}
		return nil
	}
	if err := l.each(ctx, query{tail: keep}, collect); err != nil || len(last) == 0 {
		return errors.Join(err, l.writeStart(position{}))
	}
	first := last[0].at
	last = nil
	if err := l.each(ctx, query{since: position{at: first}, resume: true, tail: -1}, collect); err != nil {
		return err
	}
	if end := len(last); end > 0 {
		l.next = position{at: last[end-1].at, n: last[end-1].n + 1}
	}
	last = last[max(0, len(last)-l.options.Tail):]
	for _, x := range last {
		if x.at.Before(l.options.Since) {
			continue
		}
		if err := l.write(x); err != nil {
			return err
		}
	}
	return l.writeStart(l.next)
}

// awaitRun waits until an instance that has ended runs again; false if it never will.
func (l *logReader) awaitRun(ctx context.Context, changed <-chan struct{}) bool {
	for {
		o, err := l.d.inspect(ctx, l.id)
		if err != nil {
			return false
		}
		if o.Running {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
			changed = l.d.changeOf(l.id)
		}
	}
}

// changeOf returns a channel that is closed with the next change of an instance.
func (d *Driver) changeOf(id string) <-chan struct{} {
	e := d.entry(id)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// query selects a part of a log.
type query struct {
	tail   int
	after  time.Time // lines before are left out
	since  position  // where to go on, if resume
	resume bool
	follow bool
}

// read copies the selected lines.
func (l *logReader) read(ctx context.Context, q query) error { return l.each(ctx, q, l.write) }

// each calls a function with every selected line.
func (l *logReader) each(ctx context.Context, q query, use func(line) error) error {
	o := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: q.follow, Tail: "all"}
	if q.tail >= 0 && !q.resume {
		o.Tail = strconv.Itoa(q.tail)
	}
	if !q.after.IsZero() {
		o.Since = engineTime(q.after)
	}
	if q.resume && !q.since.at.IsZero() {
		o.Since = engineTime(q.since.at.Add(-setBack))
	}
	r, err := l.d.api().ContainerLogs(ctx, l.d.reference(l.id), o)
	if err != nil {
		return err
	}
	defer r.Close() // it was only read
	skip := &skipper{to: q.since, on: q.resume && !q.since.at.IsZero()}
	read := readEntries
	if l.terminal {
		read = readLines
	}
	return read(r, func(x line) error {
		if skip.skips(&x) {
			return nil
		}
		return use(x)
	})
}

// skipper leaves out the lines before a position. If the line there no longer exists, it ends
// with the first one that has a later time.
type skipper struct {
	to   position
	on   bool
	last time.Time
	n    int // lines with the last time
}

// skips numbers a line among those with its time, and reports whether it comes before the
// position.
func (s *skipper) skips(x *line) bool {
	if x.at.Equal(s.last) {
		s.n++
	} else {
		s.last, s.n = x.at, 0
	}
	x.n = s.n
	if !s.on {
		return false
	}
	if x.at.Equal(s.to.at) && x.n >= s.to.n || x.at.After(s.to.at) {
		s.on = false
	}
	return s.on
}

// engineTime writes a time as the engine reads it.
func engineTime(t time.Time) string {
	return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond())
}

// readEntries reads the entries of a log and joins those of one line. Each begins with a
// header: the stream, and its length.
func readEntries(from io.Reader, use func(line) error) error {
	r := bufio.NewReader(from)
	var open [3]line // lines that are not complete, by stream
	for {
		var header [8]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			err = unlessEnd(err)
			for _, x := range open {
				if len(x.text) > 0 {
					err = errors.Join(err, use(line{x.position, append(x.text, '\n')}))
				}
			}
			return err
		}
		text := make([]byte, min(binary.BigEndian.Uint32(header[4:]), 1<<20))
		if _, err := io.ReadFull(r, text); err != nil {
			return err
		}
		at, text := cutTime(text)
		x := &open[header[0]%3]
		if len(x.text) == 0 {
			x.position = position{at: at}
		}
		if x.text = append(x.text, text...); !bytes.HasSuffix(text, []byte("\n")) && len(x.text) < maxLine {
			continue
		}
		if !bytes.HasSuffix(x.text, []byte("\n")) {
			x.text = append(x.text, '\n')
		}
		if err := use(*x); err != nil {
			return err
		}
		x.text = nil
	}
}

// readLines reads the log of a container with a terminal.
func readLines(from io.Reader, use func(line) error) error {
	r := bufio.NewReaderSize(from, 64<<10)
	for {
		text, err := r.ReadSlice('\n') // a longer line is divided
		if len(text) > 0 {
			at, text := cutTime(bytes.TrimRight(text, "\r\n"))
			if err := use(line{position{at: at}, append(bytes.Clone(text), '\n')}); err != nil {
				return err
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return unlessEnd(err)
		}
	}
}

// unlessEnd returns an error unless it is the end of a stream.
func unlessEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// maxLine is the longest line that is not divided.
const maxLine = 1 << 20

// cutTime splits the time off an entry.
func cutTime(entry []byte) (time.Time, []byte) {
	stamp, text, found := bytes.Cut(entry, []byte(" "))
	if !found {
		return time.Time{}, entry
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return time.Time{}, entry
	}
	return at, text
}

// write writes a line as the options ask for.
func (l *logReader) write(x line) error {
	if err := l.writeStart(x.position); err != nil {
		return err
	}
	l.next = position{at: x.at, n: x.n + 1}
	var b []byte
	if l.options.Positions {
		b = mariposa.AppendLogPosition(b, x.position.String())
	}
	if l.options.Timestamps {
		b = mariposa.AppendLogTime(b, x.at)
	}
	_, err := l.out.Write(append(b, x.text...))
	return err
}

// writeStart writes where the log starts, once.
func (l *logReader) writeStart(at position) error {
	if l.started || !l.options.Positions {
		return nil
	}
	l.started = true
	_, err := l.out.Write(mariposa.LogStart(at.String()))
	return err
}

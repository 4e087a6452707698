package cli

import (
	"bufio"
	"bytes"
	"container/heap"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// isSorted reports whether the lines of several instances are sorted by time.
func (l *logPrinter) isSorted() bool { return l.o.Timestamps || l.o.Since != "" || l.a.global.json }

// logLine is a line of an instance's log.
type logLine struct {
	prefix string
	raw    []byte
	at     time.Time // the sort key: never before that of the previous line
	order  int       // among lines of the same time
	of     contract.Instance
}

// jsonLine is a line of a log as JSON.
type jsonLine struct {
	Time     *time.Time `json:"time"` // nil: written before times were recorded
	Project  string     `json:"project"`
	Service  string     `json:"service"`
	Instance string     `json:"instance"`
	Text     string     `json:"text"`
}

// document returns a line, which begins with its time, as JSON.
func (l logLine) document() jsonLine {
	at, text := mariposa.CutLogTime(l.raw)
	doc := jsonLine{Project: l.of.ProjectName, Service: l.of.ServiceName, Instance: l.of.Name, Text: string(bytes.TrimRight(text, "\r\n"))}
	if !at.IsZero() {
		doc.Time = &at
	}
	return doc
}

// logLines reads a log line by line.
type logLines struct {
	logLine
	reader *bufio.Reader
}

func newLogLines(log io.Reader, prefix string, of contract.Instance) *logLines {
	return &logLines{logLine{prefix: prefix, of: of}, bufio.NewReaderSize(log, 64<<10)}
}

// next reads the next line; at the end, the line is empty. A line without a time, or with
// an earlier time than the previous line (the node's clock was set back), keeps its
// position.
func (l *logLines) next() (err error) {
	l.raw, err = l.reader.ReadBytes('\n')
	if at, _ := mariposa.CutLogTime(l.raw); at.After(l.at) {
		l.at = at
	}
	return err
}

// printSorted prints the logs of instances, sorted by time. It reads them one after
// another, to avoid hundreds of concurrent requests, into a file, because they may not
// fit into memory.
func (l *logPrinter) printSorted(ctx context.Context, all []contract.Instance) error {
	spool, err := os.CreateTemp("", "mariposa-logs-*")
	if err != nil {
		return err
	}
	defer os.Remove(spool.Name())
	defer spool.Close()
	for _, i := range all {
		l.width = max(l.width, cells(i.Name))
	}
	prefixes, order := map[string]string{}, map[string]int{}
	for n, i := range all {
		prefixes[i.ID], order[i.ID] = l.prefix(i), n
	}
	var logs lineHeap[*logLines]
	var end int64
	err = l.readEach(ctx, all, func(ctx context.Context, i contract.Instance, log io.Reader) error {
		size, err := io.Copy(spool, log) // if it breaks, the part before is kept
		if err != nil {
			if err := l.lacks(ctx, i, err); err != nil {
				return err
			}
		}
		lines := newLogLines(io.NewSectionReader(spool, end, size), prefixes[i.ID], i)
		lines.order = order[i.ID]
		if err := lines.next(); len(lines.raw) > 0 {
			logs = append(logs, lines)
		} else if !errors.Is(err, io.EOF) {
			return err
		}
		end += size
		return nil
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	heap.Init(&logs)
	for len(logs) > 0 {
		first := logs[0]
		if err := l.write(first.logLine); err != nil {
			return err
		}
		if err := first.next(); len(first.raw) > 0 {
			heap.Fix(&logs, 0)
		} else if errors.Is(err, io.EOF) {
			heap.Pop(&logs)
		} else {
			return err
		}
	}
	return l.failure()
}

// printLogJSON prints the log of one instance as JSON, line by line.
func (a *app) printLogJSON(ctx context.Context, c *client.Client, id string, o client.LogOptions) error {
	i, err := c.Instance(ctx, id)
	if err != nil {
		return err
	}
	o.Timestamps = true
	log, err := a.openOne(ctx, c, i.ID, o)
	if err != nil {
		return err
	}
	defer log.Close()
	for lines := newLogLines(log, "", *i); ; {
		err := lines.next()
		if len(lines.raw) > 0 {
			if err := a.printLine(lines.document()); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) || interrupted(ctx, err) || ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
}

// lineHeap is a heap with the earliest line first.
type lineHeap[T interface{ line() *logLine }] []T

func (l *logLine) line() *logLine { return l }

func (h lineHeap[T]) Len() int { return len(h) }

func (h lineHeap[T]) Less(i, k int) bool {
	a, b := h[i].line(), h[k].line()
	if a.at.Equal(b.at) {
		return a.order < b.order
	}
	return a.at.Before(b.at)
}

func (h lineHeap[T]) Swap(i, k int) { h[i], h[k] = h[k], h[i] }

func (h *lineHeap[T]) Push(x any) { *h = append(*h, x.(T)) }

func (h *lineHeap[T]) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

const (
	// holdTime is how long a followed line waits for earlier lines of other instances.
	holdTime = 300 * time.Millisecond
	// maxHeld limits the number of waiting lines.
	maxHeld = 10_000
)

// lineSorter sorts followed lines that arrive within holdTime of each other.
type lineSorter struct {
	write func(logLine) error
	done  chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex
	held  lineHeap[*heldLine]
	order int
	err   error // of write; nothing is written after an error
}

// heldLine is a waiting line.
type heldLine struct {
	logLine
	until time.Time
}

func newLineSorter(write func(logLine) error) *lineSorter {
	s := &lineSorter{write: write, done: make(chan struct{})}
	s.ended.Go(s.run) // until stop
	return s
}

// add adds a line, and returns the error of an earlier write.
func (s *lineSorter) add(line logLine) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	line.order = s.order
	s.order++
	heap.Push(&s.held, &heldLine{line, time.Now().Add(holdTime)})
	if len(s.held) > maxHeld {
		s.release(time.Now().Add(holdTime))
	}
	return s.err
}

func (s *lineSorter) run() {
	ticker := time.NewTicker(holdTime / 3)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			s.mu.Lock()
			s.release(now)
			s.mu.Unlock()
		case <-s.done:
			return
		}
	}
}

// release writes the lines that have waited long enough, and all earlier lines.
func (s *lineSorter) release(now time.Time) {
	waited := 0
	for _, line := range s.held {
		if !line.until.After(now) {
			waited++
		}
	}
	for waited > 0 && s.err == nil {
		line := heap.Pop(&s.held).(*heldLine)
		if !line.until.After(now) {
			waited--
		}
		s.err = s.write(line.logLine)
	}
}

// stop writes the remaining lines.
func (s *lineSorter) stop() {
	close(s.done)
	s.ended.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(time.Now().Add(holdTime))
}

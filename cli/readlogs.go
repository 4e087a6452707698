package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

const (
	// patience is how long to wait for the nodes of instances, from the beginning of the
	// command: they may be on the way to another server.
	patience = 30 * time.Second
	// quietTime is how long a followed log may be out of reach before that is said.
	quietTime = 5 * time.Second
)

// readEach opens the logs of instances and passes them to read, one after another. A log
// that cannot be read is reported and skipped. Instances whose node does not answer come
// last, as long as it may be about to return: other logs do not wait for them. Only an
// error of the output, and that no server answers, stop the command.
func (l *logPrinter) readEach(ctx context.Context, all []contract.Instance, read func(context.Context, contract.Instance, io.Reader) error) error {
	for round := 0; len(all) > 0; round++ {
		if round > 0 && !sleep(ctx, time.Second) {
			return nil
		}
		later, err := l.readRound(ctx, all, round, read)
		if err != nil || ctx.Err() != nil {
			return err
		}
		all = later
	}
	return nil
}

// readRound reads the logs of instances once, and returns those to read later. Each node
// that does not answer is asked once.
func (l *logPrinter) readRound(ctx context.Context, all []contract.Instance, round int, read func(context.Context, contract.Instance, io.Reader) error) (later []contract.Instance, err error) {
	type absence struct {
		err error
		may bool // it may return
	}
	absent := map[string]absence{} // by node
	for _, i := range all {
		a, known := absent[i.Node]
		if !known {
			log, err := l.open(ctx, i, false)
			if err == nil {
				err = read(ctx, i, log)
				_ = log.Close() // its error is that of reading
				if err != nil {
					return nil, err
				}
				continue
			}
			a = absence{err, mariposa.CodeOf(err) == mariposa.Unavailable && l.mayReturn(ctx, i)}
			if isAbout(err, i.Node) {
				absent[i.Node] = absence{mariposa.Errorf(mariposa.Unavailable, "node %s: see %s", i.NodeName, i.Name), a.may}
				if a.may && round == 1 {
					l.a.note("waiting for node %s (%v)", i.NodeName, err)
				}
			}
		}
		if a.may {
			later = append(later, i)
		} else if err := l.lacks(ctx, i, a.err); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, nil //nolint:nilerr // the user interrupted it
		}
	}
	return later, nil
}

// isAbout reports whether an error is that a node cannot be asked.
func isAbout(err error, node string) bool {
	var e *mariposa.Error
	return errors.As(err, &e) && node != "" && e.Node == node
}

// sleep reports whether it waited, and was not interrupted.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// mayReturn reports whether an instance whose node does not answer may soon be reachable:
// its node is not known to be lost.
func (l *logPrinter) mayReturn(ctx context.Context, i contract.Instance) bool {
	now, err := l.c.Instance(ctx, i.ID)
	return err == nil && now.State != mariposa.StateUnknown && time.Since(l.began) < patience
}

// printLines prints a log line by line. If it breaks, that is reported.
func (l *logPrinter) printLines(ctx context.Context, i contract.Instance, log io.Reader) error {
	lines := newLogLines(log, l.prefix(i), i)
	for {
		err := lines.next()
		if len(lines.raw) > 0 {
			if err := l.printLine(lines.logLine); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return nil //nolint:nilerr // it ended, or the user interrupted it
		}
		if err != nil {
			return l.lacks(ctx, i, err)
		}
	}
}

// printFollowed prints the log of one instance as it grows.
func (l *logPrinter) printFollowed(ctx context.Context, i contract.Instance) error {
	log, err := l.a.openFollowed(ctx, i.Name, func() (io.ReadCloser, error) { return l.open(ctx, i, true) })
	if err != nil {
		return l.lacks(ctx, i, err)
	}
	defer log.Close()
	return l.printLines(ctx, i, log)
}

// openFollowed opens a log, and waits until its node is there.
func (a *app) openFollowed(ctx context.Context, name string, open func() (io.ReadCloser, error)) (io.ReadCloser, error) {
	for began, told := time.Now(), false; ; {
		log, err := open()
		if err == nil && told {
			a.noteLog(name, "the log can be read again")
		}
		if mariposa.CodeOf(err) != mariposa.Unavailable {
			return log, err
		}
		if !told && time.Since(began) > quietTime {
			a.noteLog(name, "the log cannot be read (%v); trying again", err)
			told = true
		}
		if !sleep(ctx, time.Second) {
			return nil, err
		}
	}
}

// openOne opens the log of one instance. For a followed one, it waits for the node.
func (a *app) openOne(ctx context.Context, c *client.Client, id string, o client.LogOptions) (io.ReadCloser, error) {
	a.noteBreaks("", &o)
	open := func() (io.ReadCloser, error) { return c.Logs(ctx, id, o) }
	if !o.Follow {
		return open()
	}
	return a.openFollowed(ctx, "", open)
}

// noteLog prints a message about a log; name is empty if there is only one.
func (a *app) noteLog(name, format string, args ...any) {
	if name != "" {
		format, args = "%s: "+format, append([]any{name}, args...)
	}
	a.note(format, args...)
}

// noteBreaks makes a log say when it is interrupted and lines may be missing.
func (a *app) noteBreaks(name string, o *client.LogOptions) {
	o.Lost = func(err error) { a.noteLog(name, "the log is interrupted (%v); trying again", err) }
	o.Found = func() { a.noteLog(name, "the log continues") }
	o.Gap = func(why string) { a.noteLog(name, "%s", why) }
}

// open opens the log of an instance, with timestamps if lines are sorted.
func (l *logPrinter) open(ctx context.Context, i contract.Instance, follow bool) (io.ReadCloser, error) {
	o := l.o
	o.Follow, o.Timestamps = follow, l.isSorted()
	l.a.noteBreaks(i.Name, &o)
	return l.c.Logs(ctx, i.ID, o)
}

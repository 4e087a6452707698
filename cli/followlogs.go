package cli

import (
	"context"
	"sync"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// logFollower prints new log lines of a project's instances, each read by its own
// goroutine.
type logFollower struct {
	*logPrinter
	project  string
	services []string
	readers  sync.WaitGroup
	cancel   func()
	failed   chan error // of the output
}

// follow prints new log lines of the instances, including those that start later, until
// interrupted.
func (l *logPrinter) follow(ctx context.Context, project string, services []string, all []contract.Instance) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	since, err := l.c.Revision(ctx)
	if err != nil {
		return err
	}
	if l.isSorted() {
		l.sorter = newLineSorter(l.write)
		defer l.sorter.stop()
	}
	f := &logFollower{logPrinter: l, project: project, services: services, cancel: cancel, failed: make(chan error, 1)}
	defer f.readers.Wait()
	defer cancel() // before waiting for the readers
	for _, i := range all {
		f.start(ctx, i)
	}
	o := client.StreamOptions{Since: since, Project: project, Lost: l.a.printLost, Found: l.a.printFound, Restored: func() { f.beginAnew(ctx) }}
	for e, err := range l.c.Stream(ctx, o) {
		if err != nil && ctx.Err() == nil {
			return tooOld(err, runAgain)
		}
		if err != nil {
			break
		}
		if e.Kind != "instance.running" && e.Kind != "instance.failed" && e.Kind != "instance.stopped" {
			continue
		}
		if i := f.find(ctx, e.Instance); i != nil {
			f.start(ctx, *i)
		}
	}
	select {
	case err := <-f.failed:
		return err
	default:
		return nil
	}
}

// start prints the log of an instance, unless that was done before.
func (f *logFollower) start(ctx context.Context, i contract.Instance) {
	follow := i.State != mariposa.StateFailed && i.State != mariposa.StateStopped
	f.mu.Lock()
	known := f.seen[i.ID] && !f.gone[i.ID] // a quarantined one comes back when it is adopted
	f.seen[i.ID] = true
	delete(f.gone, i.ID)
	f.mu.Unlock()
	if known || !isLogged(i, f.services) {
		return
	}
	f.readers.Go(func() {
		print := f.printFollowed
		if !follow {
			print = func(ctx context.Context, i contract.Instance) error {
				return f.readEach(ctx, []contract.Instance{i}, f.printLines)
			}
		}
		if err := print(ctx, i); err != nil {
			select {
			case f.failed <- err:
			default:
			}
			f.cancel() // the output is closed
		}
		if follow {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.gone[i.ID] = true
		}
	})
}

// beginAnew continues after a backup was restored: instances that were removed in the
// time that is lost may exist again.
func (f *logFollower) beginAnew(ctx context.Context) {
	f.a.printRestored()
	all, err := untilAnswered(ctx, func() ([]contract.Instance, error) {
		return f.a.loggedInstances(ctx, f.c, f.project, f.services)
	})
	if err != nil {
		return // the stream says why
	}
	f.mu.Lock()
	for id := range f.gone {
		delete(f.seen, id)
		delete(f.gone, id)
	}
	f.mu.Unlock()
	for _, i := range all {
		f.start(ctx, i)
	}
}

// find returns an instance; nil if it is gone. While no server answers, it tries again.
func (f *logFollower) find(ctx context.Context, id string) *contract.Instance {
	i, err := untilAnswered(ctx, func() (*contract.Instance, error) { return f.c.Instance(ctx, id) })
	if err != nil {
		return nil
	}
	return i
}

// untilAnswered repeats a request while no server answers.
func untilAnswered[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for {
		got, err := ask()
		if err == nil || mariposa.CodeOf(err) != mariposa.Unavailable {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, err
		case <-time.After(time.Second):
		}
	}
}

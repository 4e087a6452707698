package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
)

// recent is the number of events shown without --since.
const recent = 100

func (a *app) eventsCommand() *cobra.Command {
	var follow, audit bool
	var service string
	var f auditFlags
	cmd := &cobra.Command{
		Use: "events", Short: "Show events; with -f, follow new ones; with --audit, show who did what",
		Long: "Show events, oldest first: the latest 100, those since a time (--since 1h) or the newest N\n(--limit N). With -f, follow new events.\n\n" +
			"With --audit, show who did or tried to do what, newest first: in a project, in an\norganization (-o), or everywhere that you can audit. With --json, print every matching\nrecord as a line of JSON.",
		Example: "  mariposa events -f\n  mariposa -j shop events --since 1h --service web\n  mariposa -j shop events --audit --since 7d --actor ann\n  mariposa -o acme events --audit --outcome denied --json > denied.jsonl",
	}
	a.ofProjects(cmd, func(ctx context.Context, c *client.Client, project string) error {
		said := func(flag string) bool { return cmd.Flags().Changed(flag) && !a.fromEnv[flag] }
		switch {
		case !audit && (said("actor") || said("action") || said("outcome") || said("until")):
			return Usage(errors.New("--actor, --action, --outcome and --until require --audit"))
		case audit && service != "":
			return Usage(errors.New("--service cannot be combined with --audit"))
		case audit && follow:
			return Usage(errors.New("-f cannot be combined with --audit: the audit log cannot be followed"))
		case f.limit < 0:
			return Usage(errLimit)
		case audit:
			return a.audit(ctx, c, project, f, said("limit"))
		}
		p := &eventPrinter{a: a, c: c, show: a.newNarrator(), follow: follow, filter: client.EventFilter{Project: project, Service: service}, newest: -1}
		if said("limit") {
			p.newest = f.limit
		}
		return a.noServiceIn(ctx, c, project, p.run(ctx, f.since))
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow new events")
	cmd.Flags().StringVar(&f.since, "since", "", "only events since this age, time or revision, such as 1h or 7d (default: the latest events)")
	cmd.Flags().StringVar(&service, "service", "", "only events of this service")
	cmd.Flags().BoolVar(&audit, "audit", false, "show the audit log: who did what, when and from where")
	cmd.Flags().StringVar(&f.actor, "actor", "", "with --audit: only actions by or for this user; mariposa for its own actions")
	cmd.Flags().StringVar(&f.action, "action", "", "with --audit: only this action, such as manifest.put; a name that ends with a dot matches all actions that start with it")
	cmd.Flags().StringVar(&f.outcome, "outcome", "", "with --audit: only this outcome: done, denied or failed")
	cmd.Flags().StringVar(&f.until, "until", "", "with --audit: only records before this time or age")
	cmd.Flags().IntVar(&f.limit, "limit", recent, "only the newest N, or 0 for all; with --since, the default is all")
	complete(cmd, "actor", a.every(userNames))
	complete(cmd, "outcome", oneOf(outcomes))
	complete(cmd, "service", a.every(serviceNames))
	return cmd
}

// An eventPrinter prints the feed: the latest events, those since a revision or time, and
// new ones as they arrive.
type eventPrinter struct {
	a      *app
	c      *client.Client
	show   *narrator
	filter client.EventFilter
	follow bool
	newest int // number of past events to print, without those that are left out; 0: all, -1: not given
}

func (p *eventPrinter) run(ctx context.Context, since string) error {
	if err := p.readSince(ctx, since); err != nil {
		return err
	}
	var past *client.Events
	var err error
	switch {
	case since == "" && p.follow && p.newest <= 0:
		past = &client.Events{}
		past.Revision, err = p.c.Revision(ctx)
	case since == "" && p.newest < 0:
		f := p.filter
		f.Limit = recent
		past, err = p.c.NewestEvents(ctx, f)
	case p.newest > 0:
		past, err = p.readNewest(ctx, since)
	default:
		past, err = p.readPast(ctx)
	}
	if err != nil {
		return tooOld(err, "omit --since to start with the latest events")
	}
	if err := p.print(past); err != nil || !p.follow {
		return err
	}
	return p.stream(ctx, past.Revision)
}

// maxPage is the maximum number of events that the server returns at once.
const maxPage = 1000

// readSince parses --since: a revision, a time or an age.
func (p *eventPrinter) readSince(ctx context.Context, since string) error {
	if revision, err := strconv.ParseInt(since, 10, 64); err == nil && revision >= 0 {
		p.filter.Since = revision
		return nil
	}
	from, err := p.a.readTime(ctx, p.c, "since", since)
	if err != nil {
		return Usage(fmt.Errorf("%w; or a revision such as 4711", err))
	}
	if p.filter.From = from; since == "" {
		p.filter.From = time.Unix(0, 0) // with --limit 0: all events
	}
	return nil
}

// maxLeftOut is how many events are read in vain, because they are left out as repeats, to
// find as many as requested.
const maxLeftOut = 20 * maxPage

// readNewest reads backwards until there are as many events to print as requested.
func (p *eventPrinter) readNewest(ctx context.Context, since string) (all *client.Events, err error) {
	f := p.filter
	f.Limit = min(p.newest, maxPage)
	if all, err = p.startNewest(ctx, since, &f); err != nil {
		return nil, err
	}
	for f.Before > 0 && p.countShown(all.Events) < p.newest && len(all.Events) < p.newest+maxLeftOut {
		page, err := p.c.Events(ctx, f)
		if err != nil {
			return nil, err
		}
		all.Events = append(page.Events, all.Events...)
		f.Before, f.Limit = page.Before, min(2*f.Limit, maxPage)
	}
	if p.a.global.json {
		all.Events = all.Events[max(0, len(all.Events)-p.newest):]
	}
	return all, nil
}

// startNewest returns what readNewest begins with: the newest events, or nothing yet if they
// may be older than allowed.
func (p *eventPrinter) startNewest(ctx context.Context, since string, f *client.EventFilter) (all *client.Events, err error) {
	if since == "" {
		if all, err = p.c.NewestEvents(ctx, *f); err == nil && len(all.Events) == f.Limit { // else there are no more
			f.Before = all.Events[0].Revision
		}
		f.From = time.Time{}
		return all, err
	}
	all = &client.Events{Events: []client.Event{}}
	all.Revision, err = p.c.Revision(ctx)
	f.Before = all.Revision + 1
	return all, err
}

// countShown returns how many of these events are printed.
func (p *eventPrinter) countShown(events []client.Event) int {
	if p.a.global.json || len(events) < p.newest {
		return len(events)
	}
	return len(p.a.newNarrator().lines(events))
}

// readPast reads all events since a revision or time.
func (p *eventPrinter) readPast(ctx context.Context) (*client.Events, error) {
	all := &client.Events{Events: []client.Event{}}
	f := p.filter
	f.Limit = maxPage
	for ; ; f.From = (time.Time{}) {
		page, err := p.c.Events(ctx, f)
		if err != nil {
			return nil, err
		}
		all.Events = append(all.Events, page.Events...)
		all.Revision = max(all.Revision, page.Revision)
		if len(page.Events) == 0 && !page.More || page.Revision <= f.Since {
			return all, nil
		}
		f.Since = page.Revision
	}
}

// print prints past events.
func (p *eventPrinter) print(past *client.Events) error {
	if p.a.global.json && !p.follow {
		return p.a.printJSON(past)
	}
	if p.a.global.json {
		for _, e := range past.Events {
			if err := p.a.printLine(e); err != nil {
				return err
			}
		}
		return nil
	}
	lines := p.show.lines(past.Events)
	if p.newest > 0 {
		lines = lines[max(0, len(lines)-p.newest):]
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(p.a.env.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// stream prints events as they happen, until interrupted.
func (p *eventPrinter) stream(ctx context.Context, since int64) error {
	o := client.StreamOptions{Since: since, Project: p.filter.Project, Service: p.filter.Service, Lost: p.a.printLost, Found: p.a.printFound, Restored: p.a.printRestored}
	for e, err := range p.c.Stream(ctx, o) {
		switch {
		case interrupted(ctx, err):
			return nil
		case err != nil:
			return tooOld(err, runAgain)
		case p.a.global.json:
			err = p.a.printLine(e)
		default:
			for _, line := range p.show.lines([]client.Event{e}) {
				_, err = fmt.Fprintln(p.a.env.Stdout, line)
			}
		}
		if err != nil {
			return err // the output is closed
		}
	}
	return nil
}

// runAgain is the advice if a feed that was followed cannot be continued.
const runAgain = "run the command again to continue with what happens from now on"

// tooOld adds advice to the error for a feed that does not go back far enough.
func tooOld(err error, advice string) error {
	if mariposa.CodeOf(err) == mariposa.TooOld {
		return withHint(err, "%s", advice)
	}
	return err
}

// printLost and printFound report on the connection, on standard error.
func (a *app) printLost(err error, again time.Duration) {
	a.note("%v; retrying in %v", err, again.Round(100*time.Millisecond))
}

func (a *app) printFound() { a.note("reconnected to the server; nothing was missed") }

// printRestored says why what is followed does not continue where it was.
func (a *app) printRestored() {
	a.note("the installation was restored from a backup; continuing with what happens from now on")
}

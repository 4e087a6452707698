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

// recent is how many events are shown without --since.
const recent = 100

func (a *app) eventsCommand() *cobra.Command {
	var follow, audit bool
	var f auditFlags
	cmd := &cobra.Command{
		Use: "events", Short: "Tell what has happened, and with -f what happens; with --audit, who did it",
		Long: "Tell what has happened, oldest first, and with -f what happens.\n\n" +
			"With --audit, tell who did or tried to do what, newest first: of a project, of an\norganization (-o), or of all that you may audit. --json prints every record that matches\nas a line of JSON.",
		Example: "  mariposa events -f\n  mariposa -j shop events --audit --since 7d --actor ann\n  mariposa -o acme events --audit --outcome denied --json > denied.jsonl",
	}
	a.ofProjects(cmd, func(ctx context.Context, c *client.Client, project string) error {
		said := func(flag string) bool { return cmd.Flags().Changed(flag) && !a.fromEnv[flag] }
		if !audit && (said("actor") || said("action") || said("outcome") || said("until") || said("limit")) {
			return Usage(errors.New("--actor, --action, --outcome, --until and --limit are for --audit"))
		}
		if audit && follow {
			return Usage(errors.New("the audit cannot be followed: leave -f out, or --audit"))
		}
		if audit {
			return a.audit(ctx, c, project, f, said("limit"))
		}
		return a.events(ctx, c, project, f.since, follow)
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as things happen")
	cmd.Flags().StringVar(&f.since, "since", "", "what came after this revision (default: the latest); of an audit, since a time or so long ago")
	cmd.Flags().BoolVar(&audit, "audit", false, "who did what, when and from where")
	cmd.Flags().StringVar(&f.actor, "actor", "", "of an audit: by or for this user; mariposa for what it does by itself")
	cmd.Flags().StringVar(&f.action, "action", "", "of an audit: only this, like manifest.put; with a dot at the end, all that begin so")
	cmd.Flags().StringVar(&f.outcome, "outcome", "", "of an audit: done, denied or failed")
	cmd.Flags().StringVar(&f.until, "until", "", "of an audit: before a time, or so long ago")
	cmd.Flags().IntVar(&f.limit, "limit", recent, "of an audit: only the newest so many; 0: all")
	complete(cmd, "actor", a.every(userNames))
	complete(cmd, "outcome", oneOf(outcomes))
	return cmd
}

// events prints the feed: the latest events, those after a revision, or new ones as
// they come.
func (a *app) events(ctx context.Context, c *client.Client, project, since string, follow bool) error {
	var revision int64
	if since != "" {
		var err error
		if revision, err = strconv.ParseInt(since, 10, 64); err != nil || revision < 0 {
			return Usage(fmt.Errorf("--since is a revision, a number from 0 on, not %q; only an audit takes a time", since))
		}
	}
	if follow && since == "" {
		var err error
		if revision, err = c.Revision(ctx); err != nil {
			return err
		}
	}
	switch {
	case follow:
		return a.followEvents(ctx, c, project, revision)
	case since != "":
		return a.listEvents(ctx, c, project, revision)
	}
	return a.latestEvents(ctx, c, project)
}

func (a *app) latestEvents(ctx context.Context, c *client.Client, project string) error {
	page, err := c.LatestEvents(ctx, project, recent)
	return show(a, page, err, func() {
		for _, line := range newNarrator(a.env.Now).lines(page.Events) {
			fmt.Fprintln(a.env.Stdout, line)
		}
	})
}

// listEvents prints the events after a revision, page by page.
func (a *app) listEvents(ctx context.Context, c *client.Client, project string, since int64) error {
	show := newNarrator(a.env.Now)
	all := client.Events{Events: []client.Event{}, Revision: since}
	for {
		page, err := c.Events(ctx, client.EventFilter{Since: all.Revision, Project: project})
		if err != nil {
			return tooOld(err)
		}
		if a.global.json {
			all.Events = append(all.Events, page.Events...)
		} else {
			for _, line := range show.lines(page.Events) {
				fmt.Fprintln(a.env.Stdout, line)
			}
		}
		if len(page.Events) == 0 && !page.More || page.Revision <= all.Revision {
			break
		}
		all.Revision = page.Revision
	}
	if a.global.json {
		return a.printJSON(all)
	}
	return nil
}

// followEvents prints events as they happen, until interrupted.
func (a *app) followEvents(ctx context.Context, c *client.Client, project string, since int64) error {
	show := newNarrator(a.env.Now)
	for e, err := range c.Stream(ctx, client.StreamOptions{Since: since, Project: project, Lost: a.printLost, Found: a.printFound}) {
		switch {
		case interrupted(ctx, err):
			return nil
		case err != nil:
			return tooOld(err)
		case a.global.json:
			err = a.printLine(e)
		default:
			_, err = fmt.Fprintln(a.env.Stdout, show.line(e))
		}
		if err != nil {
			return err // nobody reads the output any more
		}
	}
	return nil
}

func tooOld(err error) error {
	if mariposa.CodeOf(err) == mariposa.TooOld {
		return withHint(err, "leave --since out to begin with the latest")
	}
	return err
}

// printLost and printFound report on the connection, on standard error.
func (a *app) printLost(err error, again time.Duration) {
	a.note("%v; trying again in %v", err, again.Round(100*time.Millisecond))
}

func (a *app) printFound() { a.note("the server is back; nothing was missed") }

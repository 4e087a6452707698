package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
)

// recent is how many events are shown when nobody says since when.
const recent = 100

func (a *app) eventsCommand() *cobra.Command {
	var follow, everywhere bool
	var since int64
	cmd := &cobra.Command{
		Use: "events", Short: "Tell what has happened, and with -f what happens", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			project, err := a.anyProject(everywhere)
			if err != nil {
				return err
			}
			if since < 0 {
				return Usage(errors.New("--since is a revision, and those begin at 0"))
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			chosen := cmd.Flags().Changed("since")
			switch {
			case follow:
				if !chosen {
					if since, err = c.Revision(cmd.Context()); err != nil {
						return err
					}
				}
				return a.followEvents(cmd.Context(), c, project, since)
			case chosen:
				return a.listEvents(cmd.Context(), c, project, since)
			}
			return a.latestEvents(cmd.Context(), c, project)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as things happen")
	cmd.Flags().Int64Var(&since, "since", 0, "what came after this revision (default: the latest)")
	everywhereFlag(cmd, &everywhere)
	return cmd
}

func everywhereFlag(cmd *cobra.Command, everywhere *bool) {
	cmd.Flags().BoolVarP(everywhere, "all-projects", "A", false, "whatever project is set")
}

func (a *app) latestEvents(ctx context.Context, c *client.Client, project string) error {
	page, err := c.LatestEvents(ctx, project, recent)
	if err != nil {
		return a.noProject(err)
	}
	if a.global.json {
		return a.printJSON(page)
	}
	for _, line := range newNarrator(a.env.Now).lines(page.Events) {
		fmt.Fprintln(a.env.Stdout, line)
	}
	return nil
}

// listEvents prints what the feed has after a revision, page by page.
func (a *app) listEvents(ctx context.Context, c *client.Client, project string, since int64) error {
	tell := newNarrator(a.env.Now)
	all := client.Events{Events: []client.Event{}, Revision: since}
	for {
		page, err := c.Events(ctx, client.EventFilter{Since: all.Revision, Project: project})
		if err != nil {
			return tooOld(a.noProject(err))
		}
		if a.global.json {
			all.Events = append(all.Events, page.Events...)
		} else {
			for _, line := range tell.lines(page.Events) {
				fmt.Fprintln(a.env.Stdout, line)
			}
		}
		if len(page.Events) == 0 || page.Revision <= all.Revision {
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
	tell := newNarrator(a.env.Now)
	for e, err := range c.Stream(ctx, client.StreamOptions{Since: since, Project: project, Lost: a.lost, Found: a.found}) {
		switch {
		case interrupted(ctx, err):
			return nil
		case err != nil:
			return tooOld(a.noProject(err))
		case a.global.json:
			err = a.printLine(e)
		default:
			_, err = fmt.Fprintln(a.env.Stdout, tell.line(e))
		}
		if err != nil {
			return err // nobody reads on
		}
	}
	return nil
}

func tooOld(err error) error {
	if mariposa.CodeOf(err) == mariposa.TooOld {
		return hinted(err, "leave --since out to begin with the latest")
	}
	return err
}

// lost and found tell of the connection without touching the answer.
func (a *app) lost(err error, again time.Duration) {
	a.note("%v; trying again in %v", err, again.Round(100*time.Millisecond))
}

func (a *app) found() { a.note("the server is back; nothing was missed") }

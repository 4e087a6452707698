package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/client"
)

// auditFlags are the filters of `events --audit`.
type auditFlags struct {
	actor, action, outcome string
	since, until           string
	limit                  int
}

var outcomes = []string{string(mariposa.AuditDone), string(mariposa.AuditDenied), string(mariposa.AuditFailed)}

// filter turns the flags into a filter. Without a limit, a table shows only the latest
// records.
func (f auditFlags) filter(read func(flag, text string) (time.Time, error)) (client.AuditFilter, error) {
	out := client.AuditFilter{Actor: f.actor, Action: f.action, Outcome: mariposa.AuditOutcome(f.outcome), Limit: f.limit}
	if err := checkRole("outcome", f.outcome, outcomes); err != nil {
		return out, err
	}
	var err error
	if out.Since, err = read("since", f.since); err != nil {
		return out, Usage(err)
	}
	if out.Until, err = read("until", f.until); err != nil {
		return out, Usage(err)
	}
	if f.limit < 0 {
		return out, Usage(errLimit)
	}
	return out, nil
}

var timeForms = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly}

// readTime parses a point in time, or how long ago it was.
func readTime(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, form := range timeForms {
		if t, err := time.ParseInLocation(form, s, now.Location()); err == nil {
			return t, nil
		}
	}
	span, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, bad := strconv.Atoi(days)
		if n > 36500 {
			bad = strconv.ErrRange
		}
		span, err = time.Duration(n)*24*time.Hour, bad
	}
	if err != nil || span < 0 {
		return time.Time{}, fmt.Errorf("--%s must be a time such as 2026-01-31 or 2026-01-31T12:00:00Z, or an age such as 12h or 7d, not %q", flag, s)
	}
	return now.Add(-span), nil
}

// readTime parses a point in time, or how long ago it was by the clock of the server.
func (a *app) readTime(ctx context.Context, c *client.Client, flag, text string) (time.Time, error) {
	now := a.env.Now()
	at, err := readTime(flag, text, now)
	if err != nil {
		return at, err
	}
	if later, _ := readTime(flag, text, now.Add(time.Hour)); later.Equal(at) {
		return at, nil // it is no age
	}
	return readTime(flag, text, now.Add(c.AskAhead(ctx)))
}

// audit prints the audit log: a table of the latest records, or all of them as JSON
// lines.
func (a *app) audit(ctx context.Context, c *client.Client, project string, flags auditFlags, limited bool) error {
	f, err := flags.filter(func(flag, text string) (time.Time, error) { return a.readTime(ctx, c, flag, text) })
	if err != nil {
		return err
	}
	f.Project = project
	if a.global.json {
		if !limited {
			f.Limit = 0
		}
		return a.exportAudit(ctx, c, f)
	}
	page, err := c.Audit(ctx, f)
	if err != nil {
		return err
	}
	t := newTable("TIME", "WHO", "FROM?", "ACTION", "OUTCOME", "WHAT?", "PROJECT?", "VERSION?", "REASON?").ifEmpty("no records")
	for _, r := range page.Records {
		t.add(text(a.stamp(r.Time)), cell{who(&r), bold}, text(dashIfEmpty(r.From)), text(r.Action), outcome(r.Outcome), text(dashIfEmpty(cmp.Or(r.ObjectName, r.Object))),
			text(dashIfEmpty(cmp.Or(r.ProjectName, r.Project))), text(dashIfEmpty(versionName(&r))), text(a.suggest(r.ProjectName, "", r.Reason)))
	}
	a.printTable(t)
	if page.Marker != "" {
		a.note("there are more records: use --limit 0 to show all, or --json to export them")
	}
	return nil
}

func (a *app) exportAudit(ctx context.Context, c *client.Client, f client.AuditFilter) error {
	for line, err := range c.ExportAudit(ctx, f) {
		if err != nil {
			return err
		}
		if _, err := io.WriteString(a.env.Stdout, string(line)+"\n"); err != nil {
			return err // the output is closed
		}
	}
	return nil
}

// who returns the actor, and the user that they acted for.
func who(r *mariposa.Audit) string {
	return dashIfEmpty(cmp.Or(r.ActorName, r.Actor)) + prefixed(" for ", cmp.Or(r.ForName, r.For))
}

func outcome(o mariposa.AuditOutcome) cell {
	c := cell{string(o), bad}
	if o == mariposa.AuditDone {
		c.style = good
	}
	return c
}

func versionName(r *mariposa.Audit) string {
	if r.Version == "" {
		return ""
	}
	return versionOf(r.Number, r.Version)
}

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) logsCommand() *cobra.Command {
	var o client.LogOptions
	cmd := a.ofProject(&cobra.Command{
		Use: "logs [SERVICE...]", Short: "Print the logs of a project; with -f, follow them", ValidArgsFunction: a.every(serviceNames),
		Long: logsOfProject + " Each line starts\nwith the name of its instance.\n\n" +
			"Ended instances are included as long as their node keeps them; instances whose log is gone\nare named. With -f, new lines are printed as they arrive, including those of instances that\nstart later.\n\n" +
			"By default, the last 100 lines of each instance are printed; with --since, all lines since\nthen. --tail -1 prints all lines.\n\n" +
			"With --since or --timestamps, the lines of all instances are sorted by the time they were\nwritten. Times come from the clock of the node, in UTC.\n\n" +
			"With --json, each line is a JSON object with time, project, service, instance and text.",
		Example: "  mariposa -j shop logs\n  mariposa -j shop logs web db -f\n  mariposa -j shop logs web --tail 20\n  mariposa -j shop logs --since 10m --timestamps",
	}, func(ctx context.Context, c *client.Client, project string, args []string) error {
		return a.logs(ctx, c, project, args, o)
	})
	a.logFlags(cmd, &o, 100)
	return cmd
}

// logsOfProject is the first sentence of the help of logs.
const logsOfProject = "Print the logs of the instances of a project, or of some of its services."

// logFlags adds the flags of commands that print logs, and checks them before the command
// runs.
func (a *app) logFlags(cmd *cobra.Command, o *client.LogOptions, tail int) {
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "follow new lines")
	cmd.Flags().BoolVar(&o.Reveal, "reveal", false, "show secrets if your role allows it; recorded in the audit log")
	cmd.Flags().StringVar(&o.Since, "since", "", "only lines since a time or age, such as 2026-01-31T12:00:00Z, 90s, 1h or 7d")
	cmd.Flags().BoolVarP(&o.Timestamps, "timestamps", "t", false, "show the time of each line")
	usage := "only the last N lines, or -1 for all"
	if tail >= 0 {
		usage = "only the last N lines of each instance, or -1 for all"
	}
	cmd.Flags().IntVar(&o.Tail, "tail", tail, usage)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Since != "" && !cmd.Flags().Changed("tail") {
			o.Tail = -1
		}
		if o.Tail < -1 {
			return Usage(fmt.Errorf("--tail must be a number of lines, or -1 for all, not %d", o.Tail))
		}
		var err error
		if o.Since, err = a.readSince(o.Since); err != nil {
			return Usage(err)
		}
		return run(cmd, args)
	}
}

// readSince checks the value of --since. The server evaluates an age, because its clock
// is closer to those of the nodes. Other time formats are converted to the API's format.
func (a *app) readSince(text string) (string, error) {
	at, err := readTime("since", text, a.env.Now())
	if err != nil || text == "" {
		return "", err
	}
	if later, _ := readTime("since", text, a.env.Now().Add(time.Hour)); !later.Equal(at) {
		return text, nil
	}
	return at.UTC().Format(time.RFC3339Nano), nil
}

// logs prints the logs of a project's instances, the oldest instance first, or follows
// all of them at once.
func (a *app) logs(ctx context.Context, c *client.Client, project string, services []string, o client.LogOptions) error {
	all, err := a.loggedInstances(ctx, c, project, services)
	if err != nil {
		return err
	}
	l := &logPrinter{a: a, c: c, o: o, seen: map[string]bool{}, gone: map[string]bool{}, began: time.Now()}
	if o.Follow {
		return l.follow(ctx, project, services, all)
	}
	if len(all) == 0 {
		a.note("no instances")
	}
	if l.isSorted() {
		return l.printSorted(ctx, all)
	}
	if err := l.readEach(ctx, all, l.printLines); err != nil {
		return err
	}
	return l.failure()
}

// loggedInstances returns the instances whose logs are printed, the oldest first.
func (a *app) loggedInstances(ctx context.Context, c *client.Client, project string, services []string) ([]contract.Instance, error) {
	p, err := c.Project(ctx, project)
	if err != nil {
		return nil, a.noProject(err)
	}
	all, err := c.AllInstances(ctx, client.InstanceFilter{Project: p.ID})
	if err != nil {
		return nil, err
	}
	if err := checkServices(p, services, all.Instances); err != nil {
		return nil, err
	}
	some := slices.DeleteFunc(all.Instances, func(i contract.Instance) bool { return !isLogged(i, services) })
	slices.SortStableFunc(some, func(a, b contract.Instance) int { return a.Created.Compare(b.Created) })
	return some, nil
}

// isLogged reports whether the log of an instance belongs to the given services (none:
// all). An instance that is not on a node yet has no log.
func isLogged(i contract.Instance, services []string) bool {
	return i.State != mariposa.StatePending && (len(services) == 0 || slices.Contains(services, i.ServiceName))
}

// logColors distinguish instances.
var logColors = []style{
	ansi.AttrCyanForegroundColor, ansi.AttrYellowForegroundColor, ansi.AttrGreenForegroundColor, ansi.AttrMagentaForegroundColor, ansi.AttrBlueForegroundColor,
}

// logPrinter prints the logs of many instances on one output, line by line.
type logPrinter struct {
	a *app
	c *client.Client
	o client.LogOptions

	sorter *lineSorter // nil: lines are printed as they arrive

	began time.Time

	mu     sync.Mutex
	seen   map[string]bool // instances whose log is or was printed
	gone   map[string]bool // instances whose log was followed to its end
	width  int             // width of the longest name so far
	unread int             // logs that exist, but could not be read
}

func (l *logPrinter) printLine(line logLine) error {
	if l.sorter != nil {
		return l.sorter.add(line)
	}
	return l.write(line)
}

// lacks reports that the log of an instance cannot be read. An instance without a log,
// such as a dummy, is skipped silently. It returns an error if no server answers.
func (l *logPrinter) lacks(ctx context.Context, i contract.Instance, err error) error {
	exists := mariposa.CodeOf(err) == mariposa.Unavailable
	switch {
	case ctx.Err() != nil:
		return nil
	case exists && !l.o.Follow:
		if _, silent := l.c.Instance(ctx, i.ID); mariposa.CodeOf(silent) == mariposa.Unavailable {
			return silent
		}
	case i.ComputeType == mariposa.ComputeDummy:
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !exists {
		l.a.note("%s: the log is no longer available (%v)", i.Name, err)
		return nil
	}
	l.unread++
	l.a.note("%s: the log cannot be read (%v)", i.Name, err)
	return nil
}

// failure returns an error if the output is incomplete.
func (l *logPrinter) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unread == 0 {
		return nil
	}
	return mariposa.Errorf(mariposa.Unavailable, "the output is incomplete: %s could not be read; try again when the nodes are reachable (`mariposa node list`)", plural(l.unread, "log", "logs"))
}

// prefix returns the name of an instance in its color.
func (l *logPrinter) prefix(i contract.Instance) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	color := logColors[len(l.seen)%len(logColors)]
	l.seen[i.ID] = true
	l.width = max(l.width, cells(i.Name))
	name := fmt.Sprintf("%-*s |", l.width, plain(i.Name))
	return l.a.paint(l.a.env.Stdout).in(color, name) + " "
}

func (l *logPrinter) write(line logLine) error {
	if l.a.global.json {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.a.printLine(line.document())
	}
	raw, when := line.raw, ""
	if l.isSorted() {
		var at time.Time
		at, raw = mariposa.CutLogTime(raw)
		if l.o.Timestamps {
			when = fmt.Sprintf("%-28s", mariposa.AppendLogTime(nil, at))
		}
	}
	text := string(bytes.TrimRight(raw, "\r\n"))
	if l.a.env.Terminal(l.a.env.Stdout) {
		text = plain(text) // a program must not be able to control the terminal
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := io.WriteString(l.a.env.Stdout, line.prefix+when+text+"\n")
	return err
}

// lastLines is the number of lines printed for a failed instance.
const lastLines = 10

// printFailedLogs prints the last lines of the instance that made a task fail. Errors are
// ignored, because the output is only additional help.
func (a *app) printFailedLogs(ctx context.Context, c *client.Client, t *contract.Task) {
	if t.State != mariposa.TaskFailed {
		return
	}
	all, err := c.AllInstances(ctx, client.InstanceFilter{Project: t.Project})
	if err != nil {
		return
	}
	var newest *contract.Instance
	for n := range all.Instances {
		i := &all.Instances[n]
		ended := i.State == mariposa.StateFailed || i.State == mariposa.StateStopped
		if !ended || len(t.Services) > 0 && !slices.Contains(t.Services, i.ServiceName) || i.Finished != nil && t.Started != nil && i.Finished.Before(*t.Started) {
			continue
		}
		if newest == nil || i.Created.After(newest.Created) {
			newest = i
		}
	}
	if newest == nil {
		return
	}
	log, err := c.Logs(ctx, newest.ID, client.LogOptions{Tail: lastLines})
	if err != nil {
		return
	}
	defer log.Close()
	text, err := io.ReadAll(io.LimitReader(log, 64<<10))
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return
	}
	a.note("the last lines of %s:", newest.Name)
	for line := range strings.SplitSeq(strings.TrimRight(string(text), "\n"), "\n") {
		a.note("  %s", line)
	}
}

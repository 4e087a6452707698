package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// topPace is the minimum interval between two reads of the overview.
const topPace = time.Second / 4

func (a *app) topCommand() *cobra.Command {
	var looks int
	cmd := a.ofProjects(&cobra.Command{
		Use: "top", Short: "Show projects, open tasks, nodes and the latest events, live",
		Long: "Show the status of projects, open tasks and their progress, what services and nodes use, and\nthe latest events: live on a terminal (press q to quit), once elsewhere.\n\n" +
			"CPU is in cores: the current usage, or in the first update the average since the instance\nstarted. Up to 200 instances are measured. Nodes are shown only to installation admins.",
		Example: "  mariposa top\n  mariposa -j shop top -n 1",
	}, func(ctx context.Context, c *client.Client, project string) error {
		if looks < 0 {
			return Usage(errors.New("-n must be a number of at least 0; 0 means until interrupted"))
		}
		o := &overview{a: a, c: c, project: project, looks: looks}
		return o.run(ctx)
	})
	cmd.Flags().IntVarP(&looks, "looks", "n", 0, "stop after N updates; 1 prints tables once (default: on a terminal until interrupted, elsewhere 1)")
	return cmd
}

// An overview is a live view of projects, tasks, nodes and usage.
type overview struct {
	a       *app
	c       *client.Client
	project string // only this one; empty: all
	looks   int    // stop after this many reads; 0: when interrupted, or after one without a terminal

	now  overviewNow
	gone bool // the project shown no longer exists
}

// overviewNow is the result of one read, in API documents.
type overviewNow struct {
	State *contract.State `json:"state"`
	Tasks []contract.Task `json:"tasks"`
	Nodes []contract.Node `json:"nodes"`
	Usage usageNow        `json:"usage"` // of up to 200 instances
	meter meter
	blind bool // the caller cannot see nodes
}

func (o *overview) run(ctx context.Context) error {
	if err := readNow(ctx, o); err != nil {
		return ignoreInterrupt(ctx, err)
	}
	if o.project != "" && len(o.now.State.Projects) == 1 {
		o.project = o.now.State.Projects[0].ID // the name may be reused meanwhile
	}
	onScreen := o.a.hasScreen() && o.looks != 1
	if !onScreen && o.looks <= 1 {
		return o.page()
	}
	s := &screen{a: o.a, c: o.c, project: o.project, pace: topPace, ticks: true, maxReads: o.looks, paged: !onScreen, vanishes: true, view: o}
	return ignoreInterrupt(ctx, s.run(ctx))
}

// read reads everything again.
func (o *overview) read(ctx context.Context) (show func(), err error) {
	now, err := o.readAll(ctx)
	if o.now.State != nil && mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		return func() { o.gone = true }, nil
	}
	return func() { o.now = now }, err
}

func (o *overview) readAll(ctx context.Context) (now overviewNow, err error) {
	if now.State, err = o.c.State(ctx, o.project, ""); err != nil {
		return now, err
	}
	if !o.a.global.json {
		o.a.suggestIn(now.State.Projects)
	}
	tasks, err := o.c.Queue(ctx, client.TaskFilter{Project: o.project})
	if err != nil {
		return now, err
	}
	now.meter = o.now.meter.measure(ctx, o.c, o.project, o.a.env.Now())
	now.Usage = now.meter.now
	now.Tasks, now.Nodes, now.blind = sortByActivity(tasks.Tasks), []contract.Node{}, o.now.blind
	if now.blind {
		return now, nil
	}
	nodes, err := o.c.Nodes(ctx)
	if mariposa.CodeOf(err) == mariposa.Forbidden {
		now.blind = true
		return now, nil
	}
	if err == nil {
		now.Nodes = nodes.Nodes
	}
	return now, err
}

// sortByActivity sorts active tasks first, then waiting ones, then freezes, which last
// until the thaw, and within each group the oldest first.
func sortByActivity(tasks []contract.Task) []contract.Task {
	class := func(t contract.Task) int {
		switch {
		case settledFreeze(&t):
			return 2
		case t.State == mariposa.TaskQueued:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(tasks, func(x, y contract.Task) int {
		return cmp.Or(class(x)-class(y), x.Created.Compare(y.Created), strings.Compare(x.ID, y.ID))
	})
	return tasks
}

func (o *overview) asOf() int64 { return o.now.State.Revision }

func (o *overview) over() bool { return o.gone }

func (o *overview) sections() []section { return o.tables(true) }

// tables returns the sections, with bars on a terminal.
func (o *overview) tables(bars bool) []section {
	var all []section
	if len(o.now.State.Projects) > 0 {
		all = append(all, section{table: topTable(sortByTrouble(o.now.State.Projects)), rowsAre: "projects"})
	}
	if len(o.now.Tasks) > 0 {
		all = append(all, section{table: o.taskTable(bars), rowsAre: "tasks"})
	}
	if len(o.now.Usage.Services) > 0 {
		all = append(all, section{table: usageTable(o.now.Usage.Services), rowsAre: "services"})
	}
	if len(o.now.Nodes) > 0 {
		all = append(all, section{table: o.nodeTable(bars), rowsAre: "nodes"})
	}
	return all
}

// summary summarizes everything in one line.
func (o *overview) summary() string {
	goal, running, surplus, troubled, ill := 0, 0, 0, 0, 0
	for _, p := range o.now.State.Projects {
		c := tally(p)
		goal, running, surplus = goal+c.goal, running+c.running-c.surplus, surplus+c.surplus
		ill += c.ill
		if !settled(p) {
			troubled++
		}
	}
	words := []string{plural(len(o.now.State.Projects), "project", "projects")}
	if troubled > 0 {
		words = append(words, fmt.Sprintf("%d not settled", troubled))
	}
	words = append(words, fmt.Sprintf("%d of %d running", running, goal))
	if ill > 0 {
		words = append(words, fmt.Sprintf("%d not healthy", ill))
	}
	if surplus > 0 {
		words = append(words, fmt.Sprintf("%d more to remove", surplus))
	}
	return strings.Join(append(words, plural(len(o.now.Tasks), "open task", "open tasks")), ", ")
}

// census counts the instances of a project. Surplus ones are running, but their service
// wants fewer.
type census struct{ goal, running, ill, surplus, starting, stopping, failed int }

func tally(p contract.ProjectState) (c census) {
	for _, s := range p.Services {
		goal := 0
		if p.Goal == mariposa.GoalStarted && s.Status != mariposa.StatusStopped {
			goal = s.Goal
		}
		c.goal, c.surplus = c.goal+goal, c.surplus+max(0, s.Running-goal)
		c.ill += s.Running - s.Healthy
		c.running, c.starting, c.stopping, c.failed = c.running+s.Running, c.starting+s.Starting, c.stopping+s.Stopping, c.failed+s.Failed
	}
	return c
}

// topTable shows one project per line.
func topTable(projects []contract.ProjectState) *table {
	t := newTable("PROJECT", "STATUS", "GOAL", "RUNNING", "STARTING?", "STOPPING?", "FAILED?", "REASON?")
	for _, p := range projects {
		c := tally(p)
		running := count(c.running, good)
		if c.running != c.goal {
			running.style = busy
		}
		t.add(cell{p.Name, bold}, word(p.Status), number(c.goal), running, count(c.starting, busy), count(c.stopping, busy), count(c.failed, bad), text(projectReason(p)))
	}
	return t
}

// taskTable shows the open tasks, with bars on a terminal.
func (o *overview) taskTable(bars bool) *table {
	head := []string{"TASK", "STATE", "DONE", "LEFT", "REASON"}
	if bars {
		head = slices.Insert(head, 2, "PROGRESS")
	}
	t := newTable(head...)
	for _, task := range o.now.Tasks {
		row := []cell{text(describeTask(&task)), word(task.State), text(done(&task)), text(o.a.leftOf(&task)), text(o.a.suggest(task.ProjectName, "", taskReason(&task)))}
		if settledFreeze(&task) {
			row[1] = cell{string(mariposa.StatusFrozen), quiet}
		}
		if bars {
			bar := cell{drawnBar(task.Progress, 16), busy}
			if task.Progress.Total == 0 {
				bar = cell{"-", dim}
			}
			row = slices.Insert(row, 2, bar)
		}
		t.add(row...)
	}
	return t
}

// nodeTable shows the load of the nodes.
func (o *overview) nodeTable(bars bool) *table {
	t := newTable("NODE", "STATUS", "INSTANCES", "CPU", "CPU RESERVED?", "MEMORY", "MEMORY RESERVED?", "SEEN", "REASON?")
	for _, n := range o.now.Nodes {
		cpu, memory := cell{"-", dim}, cell{"-", dim}
		if used, known := o.now.Usage.Nodes[n.ID]; known {
			cpu, memory = text(used.cpu()), text(roughBytes(used.Memory))
		}
		t.add(cell{n.Name, bold}, word(n.Status), number(n.Instances), cpu, load(n.Reserved.MilliCPU, n.Capacity.MilliCPU, bars), memory, load(n.Reserved.Memory, n.Capacity.Memory, bars),
			text(o.a.ageOf(n.LastHeartbeat)), text(n.Reason))
	}
	return t
}

// load formats how much of a resource is reserved.
func load(used, all int64, bars bool) cell {
	if all <= 0 {
		return cell{"-", dim}
	}
	share := int(used * 100 / all)
	c := cell{fmt.Sprintf("%d%%", share), good}
	switch {
	case share >= 95:
		c.style = bad
	case share >= 75:
		c.style = busy
	}
	if bars {
		c.text = drawnBar(mariposa.Progress{Done: share, Total: 100}, 8) + " " + c.text
	}
	return c
}

// page prints the last read in full.
func (o *overview) page() error {
	switch {
	case o.gone:
		_, err := fmt.Fprintln(o.a.env.Stdout, "the project was deleted")
		return err
	case o.a.global.json && o.looks > 1:
		return o.a.printLine(o.now)
	case o.a.global.json:
		return o.a.printJSON(o.now)
	case len(o.now.State.Projects) == 0:
		o.a.note("%s", o.a.noProjectsYet())
	}
	out := []string{o.summary()}
	for _, s := range o.tables(false) {
		out = append(append(out, ""), o.a.layOut(s.useful())...)
	}
	_, err := fmt.Fprintln(o.a.env.Stdout, strings.Join(out, "\n"))
	return err
}

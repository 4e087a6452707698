package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) stateCommand() *cobra.Command {
	var watch bool
	var service string
	cmd := a.ofProjects(&cobra.Command{Use: "state", Short: "Show the desired and actual state; with -w, live"}, func(ctx context.Context, c *client.Client, project string) error {
		if watch {
			return a.watcher(c, project, service).run(ctx)
		}
		s, err := c.State(ctx, project, service)
		return show(a, s, a.noServiceIn(ctx, c, project, err), func() {
			a.suggestIn(s.Projects)
			a.printTable(stateTable(s.Projects).ifEmpty("%s", a.noProjectsYet()))
		})
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the state live")
	cmd.Flags().StringVar(&service, "service", "", "only this service")
	complete(cmd, "service", a.every(serviceNames))
	return cmd
}

var stateHead = []string{"GOAL", "RUNNING", "STARTING?", "STOPPING?", "FAILED?", "STATUS", "REASON?"}

// stateTable shows projects with their services below them.
func stateTable(projects []contract.ProjectState) *table {
	t := newTable(append([]string{"NAME"}, stateHead...)...)
	none := cell{"-", dim}
	for _, p := range projects {
		t.add(cell{p.Name, bold}, text(string(p.Goal)), none, none, none, none, word(p.Status), text(projectReason(p)))
		for _, s := range p.Services {
			t.add(serviceRow(p.Name+"/"+s.Name, s)...)
		}
	}
	return t
}

func serviceTable(services []contract.ServiceState) *table {
	t := newTable(append([]string{"SERVICE"}, stateHead...)...)
	for _, s := range services {
		t.add(serviceRow(s.Name, s)...)
	}
	return t
}

func serviceRow(name string, s contract.ServiceState) []cell {
	running := count(s.Running, good)
	if s.Running != s.Goal {
		running.style = busy
	}
	return []cell{text(name), number(s.Goal), running, count(s.Starting, busy), count(s.Stopping, busy), count(s.Failed, bad), word(s.Status), text(serviceNotes(s))}
}

// projectReason explains a project's status, and whether the whole project is frozen or
// paused.
func projectReason(p contract.ProjectState) string {
	return strings.Join(withHolds(p.Frozen, p.Paused, p.Status, p.Reason), "; ")
}

// withHolds returns the reason, then the holds, unless the status already says so.
func withHolds(frozen, paused bool, status mariposa.Status, reason string) (all []string) {
	if reason != "" {
		all = append(all, reason)
	}
	if frozen && status != mariposa.StatusFrozen {
		all = append(all, string(mariposa.StatusFrozen))
	}
	if paused && status != mariposa.StatusPaused {
		all = append(all, string(mariposa.StatusPaused))
	}
	return all
}

// serviceNotes returns the reason, and counts without a column because they are mostly
// zero.
func serviceNotes(s contract.ServiceState) string {
	all := withHolds(s.Frozen, s.Paused, s.Status, s.Reason)
	for _, n := range []struct {
		n         int
		what      string
		impliedBy []mariposa.ReasonCode // reasons that already imply it
	}{
		{s.Running - s.Healthy, "not healthy", []mariposa.ReasonCode{
			mariposa.ReasonCounts, mariposa.ReasonUnhealthy, mariposa.ReasonUnhealthyTurn, mariposa.ReasonUnhealthyRecheck, mariposa.ReasonCheckNeverPassed,
		}},
		{s.Unknown, "unknown", []mariposa.ReasonCode{mariposa.ReasonCounts}},
		{s.Outdated, "outdated", []mariposa.ReasonCode{mariposa.ReasonCounts, mariposa.ReasonOutdated, mariposa.ReasonOutdatedValues}},
	} {
		if n.n > 0 && !slices.Contains(n.impliedBy, s.ReasonCode) {
			all = append(all, fmt.Sprintf("%d %s", n.n, n.what))
		}
	}
	return strings.Join(all, "; ")
}

// settled reports whether a project needs no attention.
func settled(p contract.ProjectState) bool {
	return p.Status == mariposa.StatusConverged || p.Status == mariposa.StatusStopped
}

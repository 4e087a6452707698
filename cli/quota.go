package cli

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

// figures are the resources that a quota limits, by the names of their flags.
var figures = []string{"projects", "instances", "cpu", "memory", "stored-per-project"}

// quotaFlags are the flags that change a quota.
type quotaFlags struct {
	limits [5]string
	lifted [5]bool
}

func (f *quotaFlags) add(cmd *cobra.Command, of string) {
	for n, what := range []string{
		"number of projects", "number of instances", "number of CPU cores", "memory (such as 512m or 64g)",
		"size of the stored versions and metadata of each project (such as 256m)",
	} {
		cmd.Flags().StringVar(&f.limits[n], figures[n], "", "maximum "+what+of)
		cmd.Flags().BoolVar(&f.lifted[n], "no-"+figures[n], false, "no limit on "+figures[n]+of)
	}
}

func (a *app) orgQuota() *cobra.Command {
	var f quotaFlags
	cmd := a.onOrg(&cobra.Command{
		Use: "quota [ORG]", Short: "Show or change the quota of an organization",
		Long: "Show how much of its quota an organization uses, or change the quota.\n\n" +
			"Only installation admins can change quotas. Limits that you do not name stay unchanged.\nUnder a memory or CPU quota, every service must set its size or gets the default package of\n`org policy`.",
		Example: "  mariposa org quota shop\n  mariposa org quota shop --instances 200 --memory 64g --no-cpu",
	}, 0, func(ctx context.Context, c *client.Client, org string, _ []string) error {
		change, err := f.change()
		if err != nil {
			return Usage(err)
		}
		var q *contract.Quota
		if change == nil {
			q, err = c.Quota(ctx, org)
		} else {
			q, err = c.SetQuota(ctx, org, *change)
		}
		return show(a, q, err, func() { a.printTable(quotaTable(q)) })
	})
	f.add(cmd, "")
	cmd.Flags().Lookup("no-" + figures[4]).Usage = "use the installation's limit for --" + figures[4]
	return cmd
}

// change returns the requested change, or nil if there is none.
func (f *quotaFlags) change() (*client.QuotaChange, error) {
	var c client.QuotaChange
	said := false
	for n, figure := range figures {
		if f.lifted[n] && f.limits[n] != "" {
			return nil, fmt.Errorf("--%s and --no-%s cannot be combined", figure, figure)
		}
		if f.lifted[n] {
			c.Lift = append(c.Lift, strings.ReplaceAll(figure, "-", "_"))
		}
		said = said || f.lifted[n] || f.limits[n] != ""
	}
	if !said {
		return nil, nil
	}
	for n, into := range []**int{&c.Set.Projects, &c.Set.Instances} {
		if f.limits[n] == "" {
			continue
		}
		number, err := readCount(figures[n], f.limits[n])
		if err != nil {
			return nil, err
		}
		*into = &number
	}
	if f.limits[2] != "" {
		cores, err := readCores(f.limits[2])
		if err != nil {
			return nil, err
		}
		c.Set.CPU = &cores
	}
	for n, into := range map[int]**int64{3: &c.Set.Memory, 4: &c.Set.StoredPerProject} {
		if f.limits[n] == "" {
			continue
		}
		bytes, err := readSize(figures[n], f.limits[n])
		if err != nil {
			return nil, err
		}
		*into = &bytes
	}
	return &c, nil
}

func readCount(flag, s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("--%s must be a whole number of at least 0, not %q", flag, s)
	}
	return n, nil
}

func readCores(s string) (float64, error) {
	cores, err := strconv.ParseFloat(s, 64)
	if err != nil || cores < 0 || math.IsNaN(cores) || math.IsInf(cores, 0) {
		return 0, fmt.Errorf("--cpu must be a number of cores, such as 4 or 0.5, not %q", s)
	}
	return cores, nil
}

var units = map[string]int64{"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

// readSize parses a number of bytes, in the manifest's format or in the output format.
func readSize(flag, s string) (int64, error) {
	word := strings.ToLower(s)
	if rest, shown := strings.CutSuffix(word, " b"); shown {
		word = rest
	} else if rest, shown := strings.CutSuffix(word, "ib"); shown {
		word = strings.ReplaceAll(rest, " ", "")
	}
	digits := strings.TrimRight(word, "kmgt")
	unit, known := units[word[len(digits):]]
	n, err := strconv.ParseFloat(digits, 64)
	if !known || err != nil || n < 0 || n*float64(unit) >= 1<<62 || n != n {
		return 0, fmt.Errorf("--%s must be a number of bytes, such as 512m or 64g, not %q", flag, s)
	}
	return int64(n * float64(unit)), nil
}

// shownUnits are the units of the output, largest first.
var shownUnits = []struct{ name, unit string }{{"TiB", "t"}, {"GiB", "g"}, {"MiB", "m"}, {"KiB", "k"}}

// sizeOfBytes formats an amount of bytes exactly, in the largest unit that fits evenly:
// 1.5 GiB.
func sizeOfBytes(n int64) string {
	for _, u := range shownUnits {
		if n >= units[u.unit] && n*100%units[u.unit] == 0 {
			return fmt.Sprintf("%g %s", float64(n)/float64(units[u.unit]), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// roughBytes formats a measured amount of bytes, to one decimal.
func roughBytes(n int64) string {
	for _, u := range shownUnits {
		if n >= units[u.unit] {
			return strconv.FormatFloat(math.Round(float64(n)*10/float64(units[u.unit]))/10, 'f', -1, 64) + " " + u.name
		}
	}
	return fmt.Sprintf("%d B", n)
}

func quotaTable(q *contract.Quota) *table {
	t := newTable("QUOTA OF "+strings.ToUpper(q.OrganizationName), "USED", "LIMIT")
	row := func(what, used, limit string, full bool) {
		c := text(used)
		if full {
			c.style = bad
		}
		t.add(cell{what, bold}, c, text(limit))
	}
	l, u := q.Limits, q.Used
	row("projects", fmt.Sprint(u.Projects), limitOf(l.Projects, func(n int) string { return fmt.Sprint(n) }), l.Projects != nil && u.Projects >= *l.Projects)
	row("instances", fmt.Sprint(u.Instances), limitOf(l.Instances, func(n int) string { return fmt.Sprint(n) }), l.Instances != nil && u.Instances >= *l.Instances)
	row("cpu", fmt.Sprintf("%g", u.CPU), limitOf(l.CPU, func(n float64) string { return fmt.Sprintf("%g", n) }), l.CPU != nil && u.CPU >= *l.CPU)
	row("memory", roughBytes(u.Memory), limitOf(l.Memory, sizeOfBytes), l.Memory != nil && u.Memory >= *l.Memory)
	row("stored", roughBytes(q.Stored.Used), sizeOfBytes(q.Stored.PerProject)+" per project", false)
	row("events", roughBytes(q.Stored.Events), sizeOfBytes(q.Stored.EventsPerProject)+" per project", false)
	return t
}

func limitOf[T any](limit *T, spell func(T) string) string {
	if limit == nil {
		return "none"
	}
	return spell(*limit)
}

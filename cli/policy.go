package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) orgPolicy() *cobra.Command {
	var types []string
	var standard string
	var set struct{ hostPorts, lowPorts, noHostPorts, noLowPorts, allTypes, noStandard bool }
	cmd := &cobra.Command{
		Use: "policy [ORG]", Short: "Show or change what the manifests of an organization can use",
		Long: "Show or change what the manifests of an organization can use.\n\n" +
			"Only installation admins can change policies. Settings that you do not name stay unchanged.\nVersions are checked when they are submitted and when you return to them; running instances\nare not affected.",
		Example: "  mariposa org policy shop\n  mariposa org policy shop --compute-types docker,process --host-ports\n  mariposa org policy shop --default-package small",
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&types, "compute-types", nil, "allowed compute types: docker, infrastructure, kvm, process, dummy")
	flags.BoolVar(&set.allTypes, "all-compute-types", false, "allow every compute type")
	flags.BoolVar(&set.hostPorts, "host-ports", false, "allow services to use fixed ports of nodes, from 1024")
	flags.BoolVar(&set.noHostPorts, "no-host-ports", false, "do not allow services to use fixed ports of nodes")
	flags.BoolVar(&set.lowPorts, "low-ports", false, "allow services to use any fixed port of nodes, including those below 1024")
	flags.BoolVar(&set.noLowPorts, "no-low-ports", false, "do not allow fixed ports below 1024")
	flags.StringVar(&standard, "default-package", "", "package of services that do not set their size")
	flags.BoolVar(&set.noStandard, "no-default-package", false, "no package for services that do not set their size")
	return a.onOrg(cmd, 0, func(ctx context.Context, c *client.Client, org string, _ []string) error {
		var change contract.PolicyChange
		said := 0
		yes, no := true, false
		choose := func(flag string, on, off bool, value **bool) error {
			switch {
			case on && off:
				return Usage(fmt.Errorf("--%s and --no-%s cannot be combined", flag, flag))
			case on:
				*value = &yes
			case off:
				*value = &no
			default:
				return nil
			}
			said++
			return nil
		}
		if err := choose("host-ports", set.hostPorts, set.noHostPorts, &change.HostPorts); err != nil {
			return err
		}
		if err := choose("low-ports", set.lowPorts, set.noLowPorts, &change.LowPorts); err != nil {
			return err
		}
		switch {
		case set.allTypes && types != nil, set.noStandard && standard != "":
			return Usage(fmt.Errorf("--compute-types and --all-compute-types cannot be combined, and neither can --default-package and --no-default-package"))
		}
		if types != nil && len(types) == 0 {
			return Usage(errors.New("--compute-types is empty: name the allowed compute types, or use --all-compute-types"))
		}
		if set.allTypes || types != nil {
			all := append([]string{}, types...)
			change.ComputeTypes = &all
			said++
		}
		if set.noStandard || standard != "" {
			change.DefaultPackage = &standard
			said++
		}
		var p *contract.Policy
		var err error
		if said == 0 {
			p, err = c.Policy(ctx, org)
		} else {
			p, err = c.SetPolicy(ctx, org, change)
		}
		return show(a, p, err, func() {
			a.facts("organization", cell{p.OrganizationName, bold}, "compute types", strings.Join(words(p.ComputeTypes), ", "), "host ports", allowedPorts(p),
				"default package", dashIfEmpty(p.DefaultPackage))
		})
	})
}

// allowedPorts describes which fixed ports of nodes can be used.
func allowedPorts(p *contract.Policy) string {
	switch {
	case !p.HostPorts:
		return "none"
	case !p.LowPorts:
		return "from 1024"
	}
	return "all"
}

// serverSettings returns the command `server settings`.
func (a *app) serverSettings() *cobra.Command {
	var quota quotaFlags
	var orgs string
	var anyOrgs bool
	var storm string
	cmd := a.withClient(&cobra.Command{
		Use: "settings", Short: "Show or change the settings of the installation", Args: argsBetween(0, 0),
		Long: "Show or change the settings of the installation, through a running server. Only installation\nadmins can do this.\n\n" +
			"The quota applies to organizations that are created from now on. --stored-per-project\napplies to every organization that has no limit of its own. Settings that you do not name\nstay unchanged.",
		Example: "  mariposa server settings\n  mariposa server settings --projects 10 --instances 50 --memory 16g --organizations-per-user 3",
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		change, err := settingsChange(&quota, orgs, anyOrgs)
		if err == nil {
			change, err = addStormBreaker(change, storm)
		}
		if err != nil {
			return Usage(err)
		}
		var s *contract.Settings
		if change == nil {
			s, err = c.Settings(ctx)
		} else {
			s, err = c.SetSettings(ctx, *change)
		}
		return show(a, s, err, func() { a.printSettings(s) })
	})
	quota.add(cmd, " in a new organization")
	cmd.Flags().Lookup(figures[4]).Usage = "maximum size of the stored versions and metadata of each project, such as 256m"
	cmd.Flags().Lookup("no-" + figures[4]).Usage = "restore the default of --stored-per-project"
	cmd.Flags().StringVar(&orgs, "organizations-per-user", "", "maximum number of organizations that a user can own, in addition to their personal one")
	cmd.Flags().BoolVar(&anyOrgs, "no-organizations-per-user", false, "no limit on organizations per user")
	cmd.Flags().StringVar(&storm, "storm-breaker", "", "stop replacing the instances of lost nodes if more than this percentage of nodes is lost within a minute, such as 33%; off: never stop; default: as the servers were started")
	return cmd
}

// addStormBreaker adds the share of nodes that may be lost at once to a change of
// settings.
func addStormBreaker(c *client.SettingsChange, text string) (*client.SettingsChange, error) {
	if text == "" {
		return c, nil
	}
	if c == nil {
		c = &client.SettingsChange{}
	}
	n := 0
	switch text {
	case "off":
		c.StormBreaker = &n
	case "default":
		c.Lift = append(c.Lift, "storm_breaker")
	default:
		var err error
		if n, err = strconv.Atoi(strings.TrimSuffix(text, "%")); err != nil || n < 1 || n > 99 {
			return nil, fmt.Errorf("--storm-breaker %s: give a percentage from 1%% to 99%%, off or default", text)
		}
		c.StormBreaker = &n
	}
	return c, nil
}

// settingsChange returns the requested change, or nil if there is none.
func settingsChange(quota *quotaFlags, orgs string, anyOrgs bool) (*client.SettingsChange, error) {
	var c client.SettingsChange
	figures, err := quota.change()
	if err != nil {
		return nil, err
	}
	if figures != nil {
		c.Quota = *figures
		c.StoredPerProject, c.Quota.Set.StoredPerProject = figures.Set.StoredPerProject, nil
		c.Quota.Lift = nil
		for _, name := range figures.Lift {
			if name == "stored_per_project" {
				c.Lift = append(c.Lift, name)
			} else {
				c.Quota.Lift = append(c.Quota.Lift, name)
			}
		}
	}
	switch {
	case orgs != "" && anyOrgs:
		return nil, fmt.Errorf("--organizations-per-user and --no-organizations-per-user cannot be combined")
	case orgs != "":
		n, err := readCount("organizations-per-user", orgs)
		if err != nil {
			return nil, err
		}
		c.OrganizationsPerUser = &n
	case anyOrgs:
		c.Lift = append(c.Lift, "organizations_per_user")
	case figures == nil:
		return nil, nil
	}
	return &c, nil
}

func (a *app) printSettings(s *contract.Settings) {
	t := newTable("SETTING", "LIMIT")
	row := func(what, limit string) { t.add(cell{what, bold}, text(limit)) }
	count := func(n int) string { return fmt.Sprint(n) }
	q := s.Quota
	row("projects of a new organization", limitOf(q.Projects, count))
	row("instances of a new organization", limitOf(q.Instances, count))
	row("cpu of a new organization", limitOf(q.CPU, func(n float64) string { return fmt.Sprintf("%g", n) }))
	row("memory of a new organization", limitOf(q.Memory, sizeOfBytes))
	row("organizations per user", limitOf(s.OrganizationsPerUser, count))
	row("stored per project", sizeOfBytes(s.StoredPerProject))
	storm := "as the servers were started"
	if n := s.StormBreaker; n != nil && *n == 0 {
		storm = "off"
	} else if n != nil {
		storm = fmt.Sprintf("%d%%", *n)
	}
	row("nodes lost within a minute", storm)
	a.printTable(t)
}

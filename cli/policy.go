package cli

import (
	"context"
	"errors"
	"fmt"
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
		Use: "policy [ORG]", Short: "Show what the manifests of an organization may ask for, or change it",
		Long: "Show what the manifests of an organization may ask for, or change it.\n\nOnly those who run the installation change policies. What is not named stays. Versions are checked when they\n" +
			"are submitted and when they are brought back; what runs goes on.",
		Example: "  mariposa org policy shop\n  mariposa org policy shop --compute-types docker,process --host-ports\n  mariposa org policy shop --default-package small",
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&types, "compute-types", nil, "the allowed compute types: docker, infrastructure, kvm, process, dummy")
	flags.BoolVar(&set.allTypes, "all-compute-types", false, "allow every compute type")
	flags.BoolVar(&set.hostPorts, "host-ports", false, "services may take fixed ports of nodes, from 1024")
	flags.BoolVar(&set.noHostPorts, "no-host-ports", false, "services take no fixed ports of nodes")
	flags.BoolVar(&set.lowPorts, "low-ports", false, "services may take any fixed port of nodes, also below 1024")
	flags.BoolVar(&set.noLowPorts, "no-low-ports", false, "among the fixed ports, none below 1024")
	flags.StringVar(&standard, "default-package", "", "the package of services that do not say their size")
	flags.BoolVar(&set.noStandard, "no-default-package", false, "no package for services that do not say their size")
	return a.onOrg(cmd, 0, func(ctx context.Context, c *client.Client, org string, _ []string) error {
		var change contract.PolicyChange
		said := 0
		yes, no := true, false
		choose := func(flag string, on, off bool, value **bool) error {
			switch {
			case on && off:
				return Usage(fmt.Errorf("--%s allows what --no-%s forbids: say one of them", flag, flag))
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
			return Usage(fmt.Errorf("--compute-types and --all-compute-types, --default-package and --no-default-package exclude each other: say one of them"))
		}
		if types != nil && len(types) == 0 {
			return Usage(errors.New("--compute-types names no compute type: name those that are allowed, or say --all-compute-types"))
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

// allowedPorts says which fixed ports of nodes may be taken.
func allowedPorts(p *contract.Policy) string {
	switch {
	case !p.HostPorts:
		return "none"
	case !p.LowPorts:
		return "from 1024"
	}
	return "all"
}

// serverSettings is a command beside those that run a server.
func (a *app) serverSettings() *cobra.Command {
	var quota quotaFlags
	var orgs string
	var anyOrgs bool
	cmd := a.withClient(&cobra.Command{
		Use: "settings", Short: "Show what is set for the whole installation, or change it", Args: argsBetween(0, 0),
		Long: "Show what is set for the whole installation, or change it, through a running server.\n\nFor those who run the installation. The figures of the quota are what organizations made from now on begin with;\n" +
			"--stored-per-project holds for all that have none of their own. What is not named stays.",
		Example: "  mariposa server settings\n  mariposa server settings --projects 10 --instances 50 --memory 16g --organizations-per-user 3",
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		change, err := settingsChange(&quota, orgs, anyOrgs)
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
	cmd.Flags().Lookup(figures[4]).Usage = "how many bytes of versions and metadata are stored of each project at most, like 256m"
	cmd.Flags().Lookup("no-" + figures[4]).Usage = "go back to the default limit of --stored-per-project"
	cmd.Flags().StringVar(&orgs, "organizations-per-user", "", "how many organizations a user may own at most, beside their own")
	cmd.Flags().BoolVar(&anyOrgs, "no-organizations-per-user", false, "no limit of organizations per user")
	return cmd
}

// settingsChange reads what is to change; nil: nothing.
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
		return nil, fmt.Errorf("--organizations-per-user sets a limit and --no-organizations-per-user lifts it: say one of them")
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
	a.printTable(t)
}

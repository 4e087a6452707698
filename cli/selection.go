package cli

import (
	"cmp"
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

// A selection contains the defaults that `project set` and `org set` save for one server:
// the organization and the project that commands use if none is given. The project
// belongs to that organization.
type selection struct {
	Org     string `json:"org,omitempty"`
	Project string `json:"project,omitempty"`
	// Together: `project set -o` set the organization, so `project unset` unsets it.
	Together bool `json:"together,omitempty"`
}

// serverKey identifies a server in a profile. A dev server is identified by its data
// directory, because its address may change or may have been another server's. Other
// servers are identified by their URL.
func (a *app) serverKey(s server) string {
	if !s.local {
		return tidyURLs(cmp.Or(s.of, s.url))
	}
	dir := a.dataDir()
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return "dev:" + dir
}

// selected returns the defaults for the current server.
func (a *app) selected() (selection, error) {
	p, err := a.readProfile()
	if err != nil {
		return selection{}, err
	}
	s, err := a.locate()
	if err != nil {
		return selection{}, err
	}
	return p.selection(a.serverKey(s)), nil
}

// selection returns the defaults for a server.
func (p profile) selection(key string) selection {
	sel := p.Selected[key]
	if p.URL != "" && sameURL(p.URL, key) {
		sel.Org = cmp.Or(sel.Org, p.Org)
	}
	return sel
}

// changeSelection changes the defaults for the current server.
func (a *app) changeSelection(edit func(*selection)) error {
	p, err := a.readProfile()
	if err != nil {
		return err
	}
	s, err := a.locate()
	if err != nil {
		return err
	}
	key := a.serverKey(s)
	sel := p.selection(key)
	edit(&sel)
	if p.URL != "" && sameURL(p.URL, key) {
		p.Org, sel.Org = sel.Org, ""
	}
	if p.Selected == nil {
		p.Selected = map[string]selection{}
	}
	p.Selected[key] = sel
	if sel == (selection{}) {
		delete(p.Selected, key)
	}
	return a.writeProfile(p)
}

// isCurrent reports whether a project is the default project.
func (s selection) isCurrent(p contract.Project) bool {
	return s.Project != "" && s.Project == p.Name && (s.Org == "" || s.Org == cmp.Or(p.OrganizationName, p.Organization))
}

// currentMark follows the name of the current object in a list.
const currentMark = " *"

// markCurrent marks the current object in a list.
func markCurrent(name string, current bool) cell {
	if current {
		name += currentMark
	}
	return cell{name, bold}
}

func (a *app) projectSet() *cobra.Command {
	return a.withClient(&cobra.Command{
		Use: "set NAME", Short: "Set the default project", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(projectNames),
		Long: "Set the default project: the one that commands use when you name none. It applies to this\nserver and user.\n\n" +
			"With -o, the organization becomes the default, too. `whoami` and `project list` show the\ndefaults, and `project unset` removes what this command set. -j, MARIPOSA_PROJECT and -o\ntake precedence.",
		Example: "  mariposa project set shop\n  mariposa -o acme project set shop",
	}, func(ctx context.Context, c *client.Client, args []string) error {
		p, err := c.Project(ctx, args[0])
		if err != nil {
			return a.noProject(err)
		}
		err = a.changeSelection(func(s *selection) {
			s.Project = p.Name
			if org := cmp.Or(p.OrganizationName, a.global.org); a.global.org != "" && s.Org != org {
				s.Org, s.Together = org, true
			}
		})
		return changed(a, p, err, "the default project is now %s%s", p.Name, prefixed(" of ", a.global.org))
	})
}

func (a *app) projectUnset() *cobra.Command {
	return &cobra.Command{
		Use: "unset", Short: "Unset the default project", Args: argsBetween(0, 0),
		RunE: func(*cobra.Command, []string) error {
			var was selection
			err := a.changeSelection(func(s *selection) {
				if was, s.Project = *s, ""; was.Together {
					*s = selection{}
				}
			})
			words := unsetWords("project", was.Project)
			switch {
			case was.Together:
				words += ", and so is the organization " + was.Org + ", which was set with it"
			case was.Org != "":
				words += "; the default organization is still " + was.Org
			}
			return changed(a, &was, err, "%s", words)
		},
	}
}

func (a *app) orgSet() *cobra.Command {
	return a.withClient(&cobra.Command{
		Use: "set ORG", Short: "Set the default organization", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(orgNames),
		Long: "Set the default organization: the one that commands use when you name none. It applies to\nthis server and user.\n\n" +
			"A default project in another organization is unset. `whoami` and `org list` show the\ndefault, and `org unset` removes it. -o and MARIPOSA_ORG take precedence.",
	}, func(ctx context.Context, c *client.Client, args []string) error {
		o, err := c.Organization(ctx, args[0])
		if err != nil {
			return noOrg(err)
		}
		dropped := ""
		err = a.changeSelection(func(s *selection) {
			if s.Together = false; s.Org != o.Name {
				dropped, *s = s.Project, selection{Org: o.Name}
			}
		})
		words := "the default organization is now " + o.Name
		if dropped != "" {
			words += "; the default project " + dropped + " is unset, because it is in another organization"
		}
		return changed(a, o, err, "%s", words)
	})
}

func (a *app) orgUnset() *cobra.Command {
	return &cobra.Command{
		Use: "unset", Short: "Unset the default organization and the default project in it", Args: argsBetween(0, 0),
		RunE: func(*cobra.Command, []string) error {
			var was selection
			err := a.changeSelection(func(s *selection) {
				if was = *s; s.Org != "" {
					*s = selection{}
				}
			})
			words := unsetWords("organization", was.Org)
			if was.Org != "" && was.Project != "" {
				words += ", and so is the default project " + was.Project + " in it"
			}
			return changed(a, &was, err, "%s", words)
		},
	}
}

func unsetWords(what, was string) string {
	if was == "" {
		return "no default " + what + " was set"
	}
	return "default " + what + " " + was + " is unset"
}

// explainOrganization says where the default organization comes from and how to change
// it. It returns "" if there is none or if the command line names it.
func (a *app) explainOrganization() string {
	switch sel, err := a.selected(); {
	case a.fromEnv["org"]:
		return "organization " + a.global.org + " comes from MARIPOSA_ORG; name another with -o ORG"
	case a.global.org == "" && err == nil && sel.Org != "":
		return sel.Org + " is the default organization; name another with -o ORG, or unset it with `mariposa org unset`"
	}
	return ""
}

// A current contains the defaults that commands use, with the caller's roles.
type current struct {
	Organization     string `json:"organization,omitempty"`
	OrganizationRole string `json:"organization_role,omitempty"`
	Project          string `json:"project,omitempty"`
	ProjectRole      string `json:"project_role,omitempty"`
}

// findCurrent returns the defaults that commands use. A default that is no longer visible
// has no role.
func (a *app) findCurrent(ctx context.Context, c *client.Client) (now current, err error) {
	s, err := a.locate()
	if err != nil {
		return now, err
	}
	now.Organization = s.org
	if now.Project, err = a.anyProject(false); err != nil {
		return now, err
	}
	if now.Organization != "" {
		if o, err := c.Organization(ctx, now.Organization); err == nil {
			now.OrganizationRole = string(o.Role)
		}
	}
	if now.Project != "" {
		if p, err := c.Project(ctx, now.Project); err == nil {
			now.ProjectRole = string(p.Role)
		}
	}
	return now, nil
}

// withRole formats a default with the caller's role in it.
func withRole(name, role string) string {
	if name == "" || role == "" {
		return name
	}
	return name + " (your role: " + role + ")"
}

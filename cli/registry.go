package cli

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) orgRegistry() *cobra.Command {
	g := a.group("registry", "Manage the logins of an organization to registries of images", a.registryList(), a.registrySet(), a.registryRemove())
	g.Long = "Manage the logins of an organization to registries of images. Nodes use them to fetch the\nimages of the organization's containers."
	return g
}

func (a *app) registryList() *cobra.Command {
	return a.onOrg(&cobra.Command{Use: "list [ORG]", Short: "List the logins of an organization to registries"}, 0, func(ctx context.Context, c *client.Client, org string, _ []string) error {
		all, err := c.Registries(ctx, org)
		return show(a, all, err, func() {
			t := newTable("REGISTRY", "USERNAME", "AGE", "BY").ifEmpty("no logins to registries")
			for _, r := range all.Registries {
				t.add(cell{r.Registry, bold}, text(r.Username), text(a.age(r.Updated)), text(r.Author))
			}
			a.printTable(t)
		})
	})
}

func (a *app) registrySet() *cobra.Command {
	var username string
	cmd := &cobra.Command{
		Use: "set [ORG] REGISTRY --username NAME", Short: "Set the login of an organization to a registry",
		Long: "Set the login of an organization to a registry: a user name, and a password or an access\ntoken. Mariposa asks for the password, or reads it from standard input if that is not a\nterminal.\n\n" +
			"REGISTRY is the host in the names of its images, such as registry.example.com:5000, or\ndocker.io. The password is stored encrypted and never shown. Running instances are not\naffected.",
		Example: "  mariposa org registry set registry.example.com --username builder\n  cat token | mariposa org registry set shop registry.example.com --username builder",
	}
	cmd.Flags().StringVarP(&username, "username", "u", "", "user name")
	return a.onOrg(cmd, 1, func(ctx context.Context, c *client.Client, org string, args []string) error {
		if username == "" {
			return Usage(errors.New("--username is required"))
		}
		password, err := a.readPassword(ctx, args[0])
		if err != nil {
			return err
		}
		done, err := c.SetRegistry(ctx, org, args[0], contract.RegistryLogin{Username: username, Password: password})
		if err != nil {
			return err
		}
		return changed(a, done, nil, "%s logs in to %s as %s", org, done.Registry, done.Username)
	})
}

// readPassword asks for a password, or reads all of standard input.
func (a *app) readPassword(ctx context.Context, of string) (string, error) {
	if a.interactive() {
		return a.ask(ctx, "password for "+of+": ", true)
	}
	const most = 64 << 10
	b, err := io.ReadAll(io.LimitReader(a.env.Stdin, most))
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(b), "\r\n")
	if password == "" {
		return "", Usage(errors.New("no password given: pass it on standard input"))
	}
	return password, nil
}

func (a *app) registryRemove() *cobra.Command {
	return a.onOrg(&cobra.Command{Use: "rm [ORG] REGISTRY", Short: "Remove the login of an organization to a registry"}, 1, func(ctx context.Context, c *client.Client, org string, args []string) error {
		done, err := c.RemoveRegistry(ctx, org, args[0])
		if err != nil {
			return err
		}
		return changed(a, done, nil, "%s no longer logs in to %s", org, done.Registry)
	})
}

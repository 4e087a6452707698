package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) userCommand() *cobra.Command {
	return a.group("user", "Show, create, disable and delete users, and set their passwords",
		a.userList(), a.userCreate(), a.userShow(), a.userUpdate(), a.userPassword(),
		a.userToggle("disable", "Disable a user and their tokens", "is disabled; their tokens no longer work", true),
		a.userToggle("enable", "Enable a disabled user and their tokens", "is enabled again; their tokens work again", false),
		a.userDelete())
}

// onUser creates a command for one user.
func (a *app) onUser(cmd *cobra.Command, run func(ctx context.Context, c *client.Client, user string) error) *cobra.Command {
	cmd.Use += " USER"
	cmd.Args, cmd.ValidArgsFunction = argsBetween(1, 1), a.wordsFrom(userNames)
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		return notFound(run(ctx, c, args[0]), "mariposa user list")
	})
}

func (a *app) userList() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "list", Short: "List the users that you can see", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Users(ctx)
			return show(a, all, err, func() {
				t := newTable("NAME", "EMAIL?", "ADMIN", "STATE", "AGE")
				for _, u := range all.Users {
					state := cell{"enabled", dim}
					if u.Disabled {
						state = cell{"disabled", bad}
					}
					t.add(cell{u.Name, bold}, text(dashIfEmpty(u.Email)), text(yesOrNo(u.Admin)), state, text(a.age(u.Created)))
				}
				a.printTable(t)
			})
		})
}

func (a *app) userCreate() *cobra.Command {
	var user contract.NewUser
	cmd := a.withClient(&cobra.Command{
		Use: "create NAME", Short: "Create a user, with an organization of the same name", Args: argsBetween(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		Example: "  mariposa user create ann --email ann@example.com\n  mariposa token create laptop --user ann",
	}, func(ctx context.Context, c *client.Client, args []string) error {
		user.Name = args[0]
		done, err := c.CreateUser(ctx, user)
		err = changed(a, done, err, "user %s is created", user.Name)
		if err == nil && !a.global.json {
			a.note("create a token for them with `mariposa token create NAME --user %s`", user.Name)
		}
		return err
	})
	cmd.Flags().StringVar(&user.Email, "email", "", "email address")
	cmd.Flags().BoolVar(&user.Admin, "admin", false, "make the user an installation admin, who can do everything")
	return cmd
}

func (a *app) userShow() *cobra.Command {
	return a.onUser(&cobra.Command{Use: "show", Short: "Show a user"}, func(ctx context.Context, c *client.Client, user string) error {
		u, err := c.User(ctx, user)
		return show(a, u, err, func() {
			a.facts("name", cell{u.Name, bold}, "id", u.ID, "email", u.Email, "installation admin", yesOrNo(u.Admin), "disabled", yesOrNo(u.Disabled),
				"personal organization", u.OrganizationName, "created", a.stamp(u.Created))
		})
	})
}

func (a *app) userUpdate() *cobra.Command {
	var email, subject string
	var admin, sure bool
	cmd := &cobra.Command{Use: "update", Short: "Change the email address, the admin rights or the sign-in of a user"}
	a.onUser(cmd, func(ctx context.Context, c *client.Client, user string) error {
		var change contract.UserChange
		if cmd.Flags().Changed("email") {
			change.Email = &email
		}
		if cmd.Flags().Changed("admin") {
			change.Admin = &admin
		}
		if cmd.Flags().Changed("oidc-subject") {
			change.OIDCSubject = &subject
		}
		if change == (contract.UserChange{}) {
			return Usage(errors.New("nothing to change: use --email, --admin or --oidc-subject"))
		}
		done, err := c.UpdateUser(ctx, user, change, sure)
		return changed(a, done, err, "user %s is updated", user)
	})
	cmd.Flags().StringVar(&email, "email", "", "email address")
	cmd.Flags().BoolVar(&admin, "admin", false, "make the user an installation admin; --admin=false removes the admin rights")
	cmd.Flags().StringVar(&subject, "oidc-subject", "", "subject of the user at the identity provider; empty: disconnect the user")
	cmd.Flags().BoolVar(&sure, "yes", false, "with --admin=false: also revoke the tokens that they created for others")
	return cmd
}

func (a *app) userPassword() *cobra.Command {
	var stdin, clear bool
	cmd := a.onUser(&cobra.Command{
		Use: "password", Short: "Set the password of a user for the web page",
		Long: "Set the password of a user for the web page, which ends their sessions there. The password\nhas at least 12 characters. On a terminal you are asked for it; otherwise use --stdin.\n\n" +
			"Tokens are not affected: `mariposa token revoke` revokes them.",
		Example: "  mariposa user password ann\n  mariposa user password ann --stdin < password\n  mariposa user password ann --clear",
	}, func(ctx context.Context, c *client.Client, user string) error {
		if clear {
			done, err := c.RemovePassword(ctx, user)
			return changed(a, done, err, "user %s has no password any more", user)
		}
		password, err := a.askPassword(ctx, stdin)
		if err != nil {
			return err
		}
		done, err := c.SetPassword(ctx, user, password)
		return changed(a, done, err, "the password of %s is set; their other sessions have ended", user)
	})
	cmd.Flags().BoolVar(&stdin, "stdin", false, "read the password from standard input")
	cmd.Flags().BoolVar(&clear, "clear", false, "remove the password")
	cmd.MarkFlagsMutuallyExclusive("stdin", "clear")
	return cmd
}

// askPassword reads a new password from standard input, or twice from a terminal.
func (a *app) askPassword(ctx context.Context, stdin bool) (string, error) {
	if stdin {
		all, err := io.ReadAll(io.LimitReader(a.env.Stdin, maxToken))
		if err != nil {
			return "", fmt.Errorf("cannot read the password: %w", err)
		}
		return strings.TrimRight(string(all), "\r\n"), nil
	}
	if !a.interactive() {
		return "", Usage(errors.New("there is no terminal to ask for the password: use --stdin"))
	}
	first, err := a.ask(ctx, "new password: ", true)
	if err != nil {
		return "", err
	}
	again, err := a.ask(ctx, "the same again: ", true)
	if err != nil {
		return "", err
	}
	if first != again {
		return "", errors.New("the two passwords differ; nothing was changed")
	}
	return first, nil
}

// userToggle creates a command that enables or disables a user.
func (a *app) userToggle(verb, short, effect string, disabled bool) *cobra.Command {
	var sure bool
	cmd := a.onUser(&cobra.Command{Use: verb, Short: short}, func(ctx context.Context, c *client.Client, user string) error {
		done, err := c.UpdateUser(ctx, user, contract.UserChange{Disabled: &disabled}, sure)
		return changed(a, done, err, "user %s %s", user, effect)
	})
	if disabled {
		madeFlag(cmd, &sure)
	}
	return cmd
}

// madeFlag adds a flag that confirms the revocation of tokens that a user created for
// others.
func madeFlag(cmd *cobra.Command, sure *bool) {
	cmd.Flags().BoolVar(sure, "yes", false, "also revoke the tokens that they created for others")
}

func (a *app) userDelete() *cobra.Command {
	var sure bool
	cmd := a.onUser(&cobra.Command{Use: "rm", Short: "Delete a user who no longer owns anything"}, func(ctx context.Context, c *client.Client, user string) error {
		done, err := c.DeleteUser(ctx, user, sure)
		return changed(a, done, err, "user %s is deleted", user)
	})
	madeFlag(cmd, &sure)
	return cmd
}

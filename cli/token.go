package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) tokenCommand() *cobra.Command {
	return a.group("token", "Create, list and revoke access tokens for people and automation",
		a.tokenCreate(), a.tokenList(), a.tokenShow(), a.tokenRevoke(), a.tokenAdopt())
}

func (a *app) tokenCreate() *cobra.Command {
	var t contract.NewToken
	var role string
	cmd := a.withClient(&cobra.Command{
		Use: "create NAME", Short: "Create a token and print it; it is not shown again", Args: argsBetween(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Create a token. It is printed to standard output once and cannot be shown again.\n\n" +
			"The token has the permissions of its user. You can limit it to an organization or a project\n(--org, --project), to a role (--role) and in time (--expires). It expires no later than the\ntoken that you use to create it, and is revoked with it.",
		Example: "  T=$(mariposa token create ci --project shop --role deployer --expires 90d)",
	}, func(ctx context.Context, c *client.Client, args []string) error {
		if err := checkRole("role", role, projectRoles); err != nil {
			return err
		}
		t.Name, t.Role = args[0], mariposa.Role(role)
		a.limitToken(&t)
		made, err := c.CreateToken(ctx, t)
		if err = a.noOwner(ctx, c, t.User, err); err != nil {
			return err
		}
		if a.global.json {
			return a.printJSON(made)
		}
		limits := tokenBounds(made)
		if made.Expires != nil {
			limits = append(limits, "until "+a.stampOf(made.Expires))
		}
		a.note("token %s of %s%s; save it now, it is not shown again", made.Name, made.UserName, prefixed(", limited to ", strings.Join(limits, ", ")))
		_, err = fmt.Fprintln(a.env.Stdout, made.Secret)
		return err
	})
	roleFlag(cmd, &role, "role", "", "limit the token to this role", projectRoles)
	cmd.Flags().StringVar(&t.Expires, "expires", "", "expiry: a time such as 2027-01-31T00:00:00Z, or a duration such as 12h or 90d (default: never)")
	tokenUserFlag(cmd, a, &t.User)
	return cmd
}

func tokenUserFlag(cmd *cobra.Command, a *app, user *string) {
	cmd.Flags().StringVar(user, "user", "", "user that the token belongs to (installation admins only; default: you)")
	complete(cmd, "user", a.every(userNames))
}

// limitToken limits a token to the scope given on this command line. The default project
// does not limit it, because users would not expect that.
func (a *app) limitToken(t *contract.NewToken) {
	if a.global.project != "" && !a.fromEnv["project"] {
		t.Project, t.Organization = a.global.project, a.global.org
	} else if !a.fromEnv["org"] {
		t.Organization = a.global.org
	}
	if t.Project != "" && t.Organization == "" { // the project's name is looked up there
		if s, err := a.locate(); err == nil {
			t.Organization = s.org
		}
	}
}

func (a *app) tokenList() *cobra.Command {
	var user string
	cmd := a.withClient(&cobra.Command{Use: "list", Short: "List your tokens and when each was last used", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Tokens(ctx, user)
			return show(a, all, a.noOwner(ctx, c, user, err), func() {
				t := newTable("NAME", "ID", "LIMITED TO", "EXPIRES", "LAST USED?", "FROM?", "AGE", "CREATED WITH?").sparing("FROM", "AGE", "CREATED WITH", "ID")
				for _, k := range all.Tokens {
					name := k.Name
					if k.Current {
						name += " (this one)"
					}
					t.add(cell{name, bold}, text(k.ID), text(dashIfEmpty(strings.Join(tokenBounds(&k), ", "))), a.expiry(&k), text(a.used(&k)), text(dashIfEmpty(k.LastFrom)), text(a.age(k.Created)), text(dashIfEmpty(k.ParentName)))
				}
				a.printTable(t)
			})
		})
	tokenUserFlag(cmd, a, &user)
	return cmd
}

// noOwner adds a hint to a "not found" error: about the token's user, or about the
// token's scope.
func (a *app) noOwner(ctx context.Context, c *client.Client, user string, err error) error {
	if user != "" && mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		if _, there := c.User(ctx, user); mariposa.CodeOf(there) == mariposa.ResourceNotFound {
			return withHint(err, "see `mariposa user list`")
		}
	}
	if a.global.project == "" && a.global.org != "" {
		return noOrg(err)
	}
	return a.noProject(err)
}

func (a *app) expiry(t *contract.Token) cell {
	switch {
	case t.Expires == nil:
		return cell{"never", dim}
	case !t.Expires.After(a.now()):
		return cell{"expired", bad}
	}
	return text("in " + remainingTime(t.Expires.Sub(a.now())))
}

func (a *app) used(t *contract.Token) string {
	if t.LastUsed == nil {
		return "never"
	}
	return a.age(*t.LastUsed) + " ago"
}

func (a *app) tokenRevoke() *cobra.Command {
	var user string
	var sure bool
	cmd := a.withClient(&cobra.Command{Use: "revoke TOKEN", Short: "Revoke a token by name or id, and the tokens created with it", Aliases: []string{"rm", "delete", "del", "remove"}, Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(tokenNames)},
		func(ctx context.Context, c *client.Client, args []string) error {
			if strings.HasPrefix(args[0], tokenPrefix) {
				return Usage(errors.New("this is a token, not the name of one: use the name or id that `mariposa token list` shows"))
			}
			token, err := a.tokenRef(ctx, c, args[0], user)
			if err != nil {
				return err
			}
			cascade, err := a.confirmMade(ctx, c, token.ID, sure)
			if err != nil {
				return notFound(err, "mariposa token list")
			}
			done, err := c.RevokeToken(ctx, token.ID, cascade)
			err = show(a, done, notFound(err, "mariposa token list"), func() { a.say("token %s is revoked%s", token.Name, prefixed("; ", done.Reason)) })
			if err == nil && token.Current && !a.global.json {
				a.note("you were logged in with this token: log in with another one")
			}
			return err
		})
	tokenUserFlag(cmd, a, &user)
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation, even if others were created with it")
	return cmd
}

// confirmMade shows the tokens that a token created, which are revoked with it, and asks
// for confirmation; cascade is true if the user agrees. Without a terminal, the server
// refuses the request unless --yes was given.
func (a *app) confirmMade(ctx context.Context, c *client.Client, id string, sure bool) (cascade bool, err error) {
	t, err := c.Token(ctx, id)
	if err != nil || len(t.Made) == 0 {
		return sure, err
	}
	if !a.global.json {
		for _, line := range tokenTree(t, "") {
			a.note("%s", line)
		}
	}
	err = a.confirm(ctx, fmt.Sprintf("revoke %s and all tokens created with it?", t.Name), sure)
	return sure || a.interactive(), err
}

// tokenTree draws a token and the tokens that it created, one per line.
func tokenTree(t *contract.Token, indent string) []string {
	whose := "of " + t.UserName
	if t.Use == mariposa.TokenJoin {
		whose = "for nodes"
	}
	lines := []string{indent + t.Name + " " + whose + bracketed(strings.Join(tokenBounds(t), ", "))}
	for i := range t.Made {
		lines = append(lines, tokenTree(&t.Made[i], indent+"  ")...)
	}
	return lines
}

func (a *app) tokenShow() *cobra.Command {
	var user string
	cmd := a.withClient(&cobra.Command{Use: "show TOKEN", Short: "Show a token and the tokens created with it", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(tokenNames)},
		func(ctx context.Context, c *client.Client, args []string) error {
			found, err := a.tokenRef(ctx, c, args[0], user)
			if err != nil {
				return err
			}
			t, err := c.Token(ctx, found.ID)
			return show(a, t, notFound(err, "mariposa token list"), func() {
				a.facts("name", cell{t.Name, bold}, "id", t.ID, "user", t.UserName, "limited to", strings.Join(tokenBounds(t), ", "), "created", a.stamp(t.Created),
					"expires", a.stampOf(t.Expires), "last used", a.stampOf(t.LastUsed), "last used from", t.LastFrom, "created with", t.ParentName)
				for i := range t.Made {
					if i == 0 {
						fmt.Fprintln(a.env.Stdout)
						a.say("Tokens created with it, which are revoked with it:")
					}
					for _, line := range tokenTree(&t.Made[i], "  ") {
						a.say("%s", line)
					}
				}
			})
		})
	tokenUserFlag(cmd, a, &user)
	return cmd
}

func (a *app) tokenAdopt() *cobra.Command {
	var user string
	cmd := a.withClient(&cobra.Command{
		Use: "adopt TOKEN", Short: "Take over the tokens created with a token, so that revoking it keeps them", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(tokenNames),
		Long: "Take over the tokens created with a token: from now on, they are revoked with the token that\nyou use, and no longer with the old one. Only installation admins can do this, with a token\nthat was not created with the old one, such as one from `mariposa server token`.",
	}, func(ctx context.Context, c *client.Client, args []string) error {
		found, err := a.tokenRef(ctx, c, args[0], user)
		if err != nil {
			return err
		}
		done, err := c.AdoptTokens(ctx, found.ID)
		return show(a, done, notFound(err, "mariposa token list"), func() { a.say("token %s: %s", done.Name, done.Reason) })
	})
	tokenUserFlag(cmd, a, &user)
	return cmd
}

// tokenRef finds a token by its name, its id or a prefix of its id. Tokens of other users
// are known only to the server, by id.
func (a *app) tokenRef(ctx context.Context, c *client.Client, word, user string) (contract.Token, error) {
	all, err := c.Tokens(ctx, user)
	if err = a.noOwner(ctx, c, user, err); err != nil {
		return contract.Token{}, err
	}
	var found []candidate
	byID := map[string]contract.Token{}
	for _, t := range all.Tokens {
		if t.Name == word || t.ID == word {
			return t, nil
		}
		if len(word) >= 4 && strings.HasPrefix(t.ID, word) {
			byID[t.ID] = t
			found = append(found, candidate{t.ID, t.Name})
		}
	}
	if len(found) == 0 && (user == "" || wholeID.MatchString(word)) { // the server would resolve a name among our own tokens
		return contract.Token{ID: word, Name: word}, nil
	}
	id, err := a.pick(found, fmt.Sprintf("token %q", word), "token list")
	return byID[id], err
}

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
	cmd := a.group("token", "Make, list and revoke the tokens that let you, or your robots, in",
		a.tokenCreate(), a.tokenList(), a.tokenRevoke())
	cmd.Aliases = []string{"tokens"}
	return cmd
}

func (a *app) tokenCreate() *cobra.Command {
	var t contract.NewToken
	var role string
	cmd := a.withClient(&cobra.Command{
		Use: "create NAME", Short: "Make a token; it is printed this once and never again", Args: argsBetween(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Make a token. It is printed on standard output this once, and never again.\n\n" +
			"It may do what its user may. --org and --project on the command line bind it to that\norganization or project, --role to what that role may, --expires to a time.",
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
		a.note("token %s of %s%s; keep it now: it is not shown again", made.Name, made.UserName, prefixed(", good for ", strings.Join(limits, ", ")))
		_, err = fmt.Fprintln(a.env.Stdout, made.Secret)
		return err
	})
	roleFlag(cmd, &role, "role", "", "no more than this", projectRoles)
	cmd.Flags().StringVar(&t.Expires, "expires", "", "a time like 2027-01-31T00:00:00Z, or a span like 12h or 90d (default: never)")
	tokenUserFlag(cmd, a, &t.User)
	return cmd
}

func tokenUserFlag(cmd *cobra.Command, a *app, user *string) {
	cmd.Flags().StringVar(user, "user", "", "whose it is, if you run the installation (default: yours)")
	complete(cmd, "user", a.every(userNames))
}

// limitToken limits a token to the scope given on this command line. The project selected
// for other commands does not limit it: nobody would expect that.
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
	cmd := a.withClient(&cobra.Command{Use: "list", Short: "List your tokens, and when each was last used", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Tokens(ctx, user)
			return show(a, all, a.noOwner(ctx, c, user, err), func() {
				t := newTable("NAME", "ID", "GOOD FOR", "EXPIRES", "LAST USED", "FROM", "AGE")
				for _, k := range all.Tokens {
					name := k.Name
					if k.Current {
						name += " (this one)"
					}
					t.add(cell{name, bold}, text(k.ID), text(dashIfEmpty(strings.Join(tokenBounds(&k), ", "))), a.expiry(&k), text(a.used(&k)), text(dashIfEmpty(k.LastFrom)), text(a.age(k.Created)))
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
	case !t.Expires.After(a.env.Now()):
		return cell{"expired", bad}
	}
	return text("in " + remainingTime(t.Expires.Sub(a.env.Now())))
}

func (a *app) used(t *contract.Token) string {
	if t.LastUsed == nil {
		return "never"
	}
	return a.age(*t.LastUsed) + " ago"
}

func (a *app) tokenRevoke() *cobra.Command {
	var user string
	cmd := a.withClient(&cobra.Command{Use: "revoke TOKEN", Short: "Revoke a token, by its name or id; it lets nobody in from now on", Aliases: []string{"rm", "delete"}, Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(tokenNames)},
		func(ctx context.Context, c *client.Client, args []string) error {
			if strings.HasPrefix(args[0], tokenPrefix) {
				return Usage(errors.New("that is a token itself: revoke it by its name or id, as `mariposa token list` shows them"))
			}
			token, err := a.tokenRef(ctx, c, args[0], user)
			if err != nil {
				return err
			}
			done, err := c.RevokeToken(ctx, token.ID)
			err = changed(a, done, notFound(err, "mariposa token list"), "token %s is revoked", token.Name)
			if err == nil && token.Current && !a.global.json {
				a.note("it was the one you are logged in with: log in again with another")
			}
			return err
		})
	tokenUserFlag(cmd, a, &user)
	return cmd
}

// tokenRef finds a token by its name, its id or a prefix of its id. Other users'
// tokens are known only to the server, by id.
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

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/auth"
	"mariposa/cli"
	"mariposa/clock"
	"mariposa/store"
)

type tokenFlags struct {
	join          bool
	name, expires string
	uses          int
}

func tokenCommand(where *string) *cobra.Command {
	var f tokenFlags
	c := &cobra.Command{
		Use:   "token",
		Short: "Create a token and print it once",
		Long: "Create an admin token, or with --join a join token for nodes, and print it. It cannot be\nshown again: the store contains only its hash and a record of who created it.\n\n" +
			"`mariposa token list` and `mariposa node join-token list` list the existing tokens;\n`mariposa token revoke` revokes one. With SQLite, the server must not be running; its data\ndirectory already contains an admin token.",
		Args: cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("uses") && !f.join {
				return cli.Usage(errors.New("--uses requires --join"))
			}
			if err := cli.CheckJoinUses(f.uses); err != nil {
				return err
			}
			st, _, _, err := openStore(cmd.Context(), *where)
			if err != nil {
				return err
			}
			token, err := makeToken(cmd.Context(), st, f)
			if err := errors.Join(err, st.Close()); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), token)
			return nil
		},
	}
	c.Flags().BoolVar(&f.join, "join", false, "create a join token for nodes instead of an admin token")
	c.Flags().StringVar(&f.name, "name", "", "name shown in lists (default: generated)")
	c.Flags().StringVar(&f.expires, "expires", "", "expiry: a time such as 2027-01-31T00:00:00Z, or a duration such as 12h or 90d (default: never; with --join: 24h, at most 365d)")
	c.Flags().IntVar(&f.uses, "uses", mariposa.JoinUses, "with --join: number of nodes that can join, or 0 for any number")
	return c
}

// makeToken creates a token and its record in a store. Anyone who can write to the store
// can do this, so the record names no parent token.
func makeToken(ctx context.Context, st store.Store, f tokenFlags) (string, error) {
	now := clock.Real{}.Now()
	spec := mariposa.TokenSpec{Use: mariposa.TokenAdmin, User: mariposa.FirstUser, Name: f.name, Created: now, Author: operator()}
	if f.join {
		spec.Use, spec.User, spec.Uses = mariposa.TokenJoin, "", f.uses
	}
	parse := mariposa.ParseExpiry
	if f.join {
		parse = mariposa.ParseJoinExpiry
	}
	var err error
	if spec.Expires, err = parse(f.expires, now); err != nil {
		return "", cli.Usage(fmt.Errorf("--%w", err))
	}
	secret := auth.NewSecret(spec.Use)
	spec.Hash = mariposa.HashToken(secret)
	spec.Name = cmp.Or(spec.Name, "server-token-"+spec.Hash[:6])
	unit := auth.NewToken(&spec, mariposa.Audit{Actor: "operator", ActorName: spec.Author, Reason: string(spec.Use) + " token, created by mariposa server token"})
	unit.Writes[0].Event = mariposa.Event{Kind: "token.created", Actor: spec.Author, Reason: mariposa.Asked(string(spec.Use))}
	return secret, st.Commit(ctx, unit)[0].Err
}

// operator returns the name of the current user, if the system knows it.
func operator() string {
	name := "operator"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

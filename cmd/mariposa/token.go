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
		Short: "Make a token and print it, once",
		Long: "Makes an admin token, or with --join one for nodes, and prints it. The store keeps only its hash, so it cannot be shown\n" +
			"again, and a record of who made it. `mariposa token list` and `mariposa node join-token list` show what there is, and\n" +
			"`mariposa token revoke` ends one. With SQLite the server must not be running; its folder has an admin token already.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("uses") && !f.join {
				return cli.Usage(errors.New("--uses is for tokens that let nodes join: say --join too"))
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
	c.Flags().BoolVar(&f.join, "join", false, "a token for nodes instead of people")
	c.Flags().StringVar(&f.name, "name", "", "what lists call it (default: made up)")
	c.Flags().StringVar(&f.expires, "expires", "", "a time like 2027-01-31T00:00:00Z, or a span like 12h or 90d (default: never; for nodes 24h, and at most 365d)")
	c.Flags().IntVar(&f.uses, "uses", mariposa.JoinUses, "how many nodes it lets join; 0: any number")
	return c
}

// makeToken makes a token and its record in a store. It belongs to whoever can write there,
// so no other token made it.
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
	unit := auth.NewToken(&spec, mariposa.Audit{Actor: "operator", ActorName: spec.Author, Reason: string(spec.Use) + " token, made by mariposa server token"})
	unit.Writes[0].Event = mariposa.Event{Kind: "token.created", Actor: spec.Author, Reason: mariposa.Asked(string(spec.Use))}
	return secret, st.Commit(ctx, unit)[0].Err
}

// operator is who uses this machine, as far as it tells.
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

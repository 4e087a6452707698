package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// Commands for joining nodes: join tokens, the acceptance of pending nodes, and the rotation
// of keys.

func (a *app) joinToken() *cobra.Command {
	t := contract.NewToken{Use: mariposa.TokenJoin}
	var uses int
	cmd := a.withClient(&cobra.Command{
		Use: "join-token", Short: "Create a join token for new nodes and print it once", Args: argsBetween(0, 0),
		Long: "Create a token that lets new nodes join (`mariposa agent --join TOKEN`). It is printed to\nstandard output once and cannot be shown again.\n\n" +
			"By default, it is valid for one day and ten nodes. A node needs it only to join: after that,\nits agent uses a key of its own.",
		Example: "  MARIPOSA_JOIN=$(mariposa node join-token --uses 1) mariposa agent --server https://mariposa.example.com --data /var/lib/mariposa",
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		if err := CheckJoinUses(uses); err != nil {
			return err
		}
		t.Uses = &uses
		if t.Name == "" {
			t.Name = "join-" + strings.ToLower(rand.Text()[:8])
		}
		made, err := c.CreateToken(ctx, t)
		if err != nil {
			return err
		}
		if a.global.json {
			return a.printJSON(map[string]any{"token": made.Secret, "id": made.ID, "name": made.Name, "expires": made.Expires, "uses": uses})
		}
		a.note("token %s lets %s join until %s; save it now, it is not shown again", made.Name, nodesOf(uses), a.stampOf(made.Expires))
		_, err = fmt.Fprintln(a.env.Stdout, made.Secret)
		return err
	})
	cmd.Flags().StringVar(&t.Name, "name", "", "name shown in lists (default: generated)")
	cmd.Flags().StringVar(&t.Expires, "expires", "24h", "expiry: a time such as 2027-01-31T00:00:00Z, or a duration such as 12h or 90d; at most 365d")
	cmd.Flags().IntVar(&uses, "uses", mariposa.JoinUses, "number of nodes that can join with it, or 0 for any number")
	cmd.AddCommand(a.joinTokenList(), a.joinTokenRevoke())
	return cmd
}

// CheckJoinUses checks the value of --uses of a join token.
func CheckJoinUses(uses int) error {
	if uses < 0 || uses > mariposa.MaxJoinUses {
		return Usage(fmt.Errorf("--uses must be a number from 0 to %d, not %d; 0 lets any number of nodes join", mariposa.MaxJoinUses, uses))
	}
	return nil
}

func nodesOf(uses int) string {
	switch uses {
	case 0:
		return "any number of nodes"
	case 1:
		return "one node"
	}
	return fmt.Sprintf("%d nodes", uses)
}

func (a *app) joinTokenList() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "list", Short: "List join tokens", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.JoinTokens(ctx)
			return show(a, all, err, func() {
				t := newTable("NAME", "ID", "JOINED", "EXPIRES", "LAST USED?", "FROM?", "AGE", "CREATED WITH?")
				for _, k := range all.Tokens {
					t.add(cell{k.Name, bold}, text(k.ID), text(joinedOf(&k)), a.expiry(&k), text(a.used(&k)), text(dashIfEmpty(k.LastFrom)), text(a.age(k.Created)), text(dashIfEmpty(k.ParentName)))
				}
				a.printTable(t)
			})
		})
}

// joinedOf formats how many nodes have joined with a token.
func joinedOf(t *contract.Token) string {
	if t.Joined == nil || t.Uses == nil {
		return "any number"
	}
	return fmt.Sprintf("%d of %d", *t.Joined, *t.Uses)
}

func (a *app) joinTokenRevoke() *cobra.Command {
	return a.withClient(&cobra.Command{
		Use: "revoke TOKEN", Short: "Revoke a join token by name or id; nodes that have joined stay", Aliases: []string{"rm", "delete", "del", "remove"}, Args: argsBetween(1, 1),
		ValidArgsFunction: a.wordsFrom(joinTokenNames),
	}, func(ctx context.Context, c *client.Client, args []string) error {
		all, err := c.JoinTokens(ctx)
		if err != nil {
			return err
		}
		for _, t := range all.Tokens {
			if t.Name == args[0] || t.ID == args[0] {
				done, err := c.RevokeToken(ctx, t.ID, false)
				return changed(a, done, err, "token %s is revoked; no more nodes can join with it", t.Name)
			}
		}
		return withHint(mariposa.Errorf(mariposa.ResourceNotFound, "there is no join token %q", redactWord(args[0])), "see `mariposa node join-token list`")
	})
}

func (a *app) nodeAccept() *cobra.Command {
	var fingerprint string
	cmd := a.onNode("accept", "Accept a pending node", func(ctx context.Context, c *client.Client, node string) error {
		done, err := c.ActOnNode(ctx, node, contract.NodeAction{Action: "accept", Fingerprint: fingerprint})
		return a.printNodeChange(done, err, "is accepted and can run instances")
	})
	cmd.Aliases = []string{"approve"}
	cmd.Long = "Accept a pending node (`pending` in `mariposa node list`): one whose agent was started without\na join token, or any new node if the server runs with --approve-nodes.\n\n" +
		"Its agent logs the fingerprint of its key, and `mariposa node show` prints it: compare the two\nfirst, or pass the expected fingerprint with --fingerprint. If several pending nodes have the\nsame name, use the id."
	cmd.Flags().StringVar(&fingerprint, "fingerprint", "", "accept the node only if its key has this fingerprint")
	return cmd
}

func (a *app) nodeReject() *cobra.Command {
	cmd := a.onNode("reject", "Reject a pending node", func(ctx context.Context, c *client.Client, node string) error {
		done, err := c.ActOnNode(ctx, node, contract.NodeAction{Action: "reject"})
		return a.printNodeChange(done, err, "is rejected")
	})
	cmd.Long = "Reject a pending node. It is listed as `rejected`, and its agent exits, until you accept it\nor remove it with `mariposa node rm`. Anyone who has its join token can add another node, so\nrevoke the token as well (`mariposa node join-token revoke`)."
	return cmd
}

func (a *app) nodeRotateKey() *cobra.Command {
	cmd := a.onNode("rotate-key", "Replace the key of a node", func(ctx context.Context, c *client.Client, node string) error {
		done, err := c.ActOnNode(ctx, node, contract.NodeAction{Action: "rotate-key"})
		return a.printNodeChange(done, err, "will get a new key")
	})
	cmd.Long = "Replace the key of a node. Its agent generates a new key, stores it and connects with it; then\nthe old key is refused. Its instances are not affected. A node that is not connected gets its\nnew key when it connects.\n\n" +
		"`mariposa node show` says whether a rotation is in progress, and prints the fingerprint of\nthe key."
	return cmd
}

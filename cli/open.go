package cli

import (
	"context"

	"github.com/spf13/cobra"

	"mariposa/client"
)

func (a *app) openCommand() *cobra.Command {
	var expires string
	cmd := a.withClient(&cobra.Command{
		Use: "open", Short: "Print a link that signs you in to the web page, once", Args: argsBetween(0, 0),
		Long: "Print a link to the web page of the server. Whoever opens it first is signed in as you, with\nthe rights of your token, so do not pass it on. It works once, and for ten minutes.\n\n" +
			"The session ends after 7 days, when you sign out, or when your token ends.",
		Example: "  mariposa open\n  xdg-open \"$(mariposa open)\"",
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		link, made, err := c.CreateLink(ctx, expires)
		if err != nil {
			return err
		}
		if a.global.json {
			return a.printJSON(map[string]any{"url": link, "expires": made.Expires})
		}
		a.say("%s", link)
		return nil
	})
	cmd.Flags().StringVar(&expires, "expires", "", "how long the link is valid, such as 1h (default 10m, at most 24h)")
	return cmd
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func (a *app) loginCommand() *cobra.Command {
	var stdin bool
	cmd := &cobra.Command{
		Use: "login --url URL", Short: "Remember a server and a token for it, after trying them", Args: takes(0, 0),
		Example: "  mariposa login --url https://mariposa.example.com --token-stdin < token",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.global.url == "" {
				return Usage(errors.New("which server? Give --url"))
			}
			token, err := a.askToken(stdin)
			if err != nil {
				return err
			}
			return a.login(cmd.Context(), server{strings.TrimRight(a.global.url, "/"), token})
		},
	}
	cmd.Flags().BoolVar(&stdin, "token-stdin", false, "read the token from standard input")
	return cmd
}

const maxToken = 64 << 10

// askToken gets the token from where others do not see it.
func (a *app) askToken(stdin bool) (string, error) {
	var raw []byte
	var err error
	f, asks := a.env.Stdin.(descriptor)
	switch {
	case stdin:
		raw, err = io.ReadAll(io.LimitReader(a.env.Stdin, maxToken))
	case a.global.token != "":
		return a.global.token, nil
	case asks && a.env.Terminal(a.env.Stdin):
		fmt.Fprint(a.env.Stderr, "token: ")
		raw, err = term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(a.env.Stderr)
	default:
		return "", Usage(errors.New("which token? Give it with --token-stdin"))
	}
	if err != nil {
		return "", fmt.Errorf("the token cannot be read: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", Usage(errors.New("that is no token: it is one word"))
	}
	return token, nil
}

// login remembers a server that answers and knows the token.
func (a *app) login(ctx context.Context, s server) error {
	c, err := a.dial(s)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Projects(ctx, ""); err != nil {
		return fmt.Errorf("nothing was saved: %w", err)
	}
	p, err := a.readProfile()
	if err != nil {
		p = profile{} // damaged: this mends it
	}
	if !sameURL(p.URL, s.url) {
		p.Project = "" // was one of another server
	}
	p.URL, p.Token = s.url, s.token
	if err := a.writeProfile(p); err != nil {
		return err
	}
	if a.global.json {
		return a.printJSON(map[string]string{"url": s.url})
	}
	a.say("logged in to %s", c.URL())
	return nil
}

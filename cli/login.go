package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) loginCommand() *cobra.Command {
	var stdin bool
	cmd := &cobra.Command{
		Use: "login --url URL", Short: "Remember a server and a token for it, after trying them", Args: argsBetween(0, 0),
		Long: "Remember a server and a token for it, after trying them.\n\n" +
			"What is remembered is a profile, in a file that only you can read. With --profile NAME\nthere can be several: commands use the one that --profile or MARIPOSA_PROFILE names, else\nthe one without a name. --org says where names of projects are looked up, --ca which root\n" +
			"certificate to trust, --insecure that the token may travel in the clear to another machine;\nall are remembered too. Without --url, the token is for the server\nthat the profile knows already.",
		Example: "  mariposa login --url https://mariposa.example.com --token-stdin < token\n  mariposa login --profile prod --url https://prod.example.com --org shop",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.login(cmd.Context(), stdin)
		},
	}
	cmd.Flags().BoolVar(&stdin, "token-stdin", false, "read the token from standard input")
	return cmd
}

const maxToken = 64 << 10

// askToken gets the token from standard input, a flag or its variable, or a prompt
// that does not echo it.
func (a *app) askToken(ctx context.Context, stdin bool) (string, error) {
	var raw string
	var err error
	switch {
	case stdin:
		var all []byte
		all, err = io.ReadAll(io.LimitReader(a.env.Stdin, maxToken))
		raw = string(all)
	case a.global.token != "":
		return a.global.token, nil
	case a.interactive():
		raw, err = a.ask(ctx, "token: ", true)
	default:
		return "", Usage(errors.New("which token? Give it with --token-stdin"))
	}
	if err != nil {
		return "", fmt.Errorf("the token cannot be read: %w", err)
	}
	token := strings.TrimSpace(raw)
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", Usage(errors.New("that is no token: it is one word"))
	}
	return token, nil
}

// login saves a server that answers and accepts the token.
func (a *app) login(ctx context.Context, stdin bool) error {
	if a.global.as != "" {
		return Usage(errors.New("--as is for single commands: log in as yourself"))
	}
	p, _, err := a.findProfile()
	if err != nil {
		if _, wrong := a.profilePath(); wrong != nil {
			return wrong
		}
		p = profile{} // damaged: login replaces it
	}
	s := server{url: strings.TrimRight(a.global.url, "/"), org: a.global.org, ca: a.global.ca, insecure: a.global.insecure}
	if s.url == "" {
		if s.url = p.URL; s.url == "" {
			return Usage(errors.New("which server? Give --url"))
		}
	}
	if sameURL(p.URL, s.url) { // keep what is not given again
		s.org, s.ca, s.insecure = cmp.Or(s.org, p.Org), cmp.Or(s.ca, p.CA), s.insecure || p.Insecure
	} else {
		p = profile{Selected: p.Selected}
	}
	if s.ca != "" {
		if s.ca, err = filepath.Abs(s.ca); err != nil {
			return fmt.Errorf("the root certificate cannot be found: %w", err)
		}
	}
	if s.token, err = a.askToken(ctx, stdin); err != nil {
		return err
	}
	who, err := a.checkLogin(ctx, s)
	if err != nil {
		return fmt.Errorf("nothing was saved: %w", err)
	}
	p.URL, p.Token, p.Org, p.CA, p.Insecure = s.url, s.token, s.org, s.ca, s.insecure
	if err := a.writeProfile(p); err != nil {
		return err
	}
	if a.global.json {
		return a.printJSON(map[string]string{"url": s.url, "user": who.Name})
	}
	a.say("logged in to %s as %s%s", s.url, who.Name, bracketed(strings.Join(tokenBounds(&who.Token), ", ")))
	return nil
}

// checkLogin asks a server who we are, and checks that the organization exists.
func (a *app) checkLogin(ctx context.Context, s server) (*contract.Whoami, error) {
	c, err := a.dial(s)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	who, err := c.Whoami(ctx)
	if err != nil {
		return nil, err
	}
	if s.org != "" {
		if _, err := c.Organization(ctx, s.org); err != nil {
			return nil, err
		}
	}
	return who, nil
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Forget what login remembers", Args: argsBetween(0, 0),
		Long: "Forget what login remembers: the profile without a name, or the one of --profile.\n\nThe token itself stays good until it expires or is revoked (`mariposa token revoke`).",
		RunE: func(*cobra.Command, []string) error {
			path, err := a.profilePath()
			if err != nil {
				return err
			}
			err = os.Remove(path)
			gone := err == nil
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the profile cannot be removed: %w", err)
			}
			switch name := cmp.Or(a.global.profile, defaultProfile); {
			case a.global.json:
				return a.printJSON(map[string]any{"profile": name, "forgotten": gone})
			case !gone:
				a.note("there was no profile %s to forget", name)
			default:
				a.say("profile %s is forgotten", name)
			}
			return nil
		},
	}
}

func (a *app) whoamiCommand() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "whoami", Short: "Show who you are, what your token is good for, and what is set", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			who, err := c.Whoami(ctx)
			if err != nil {
				return err
			}
			now, err := a.findCurrent(ctx, c)
			if err != nil {
				return err
			}
			shown := struct {
				contract.Whoami
				Current current `json:"current"`
			}{*who, now}
			return show(a, &shown, nil, func() {
				a.facts("user", cell{who.Name, bold}, "id", who.ID, "email", who.Email, "acts for", who.For, "runs the installation", wordIf("yes", who.Admin),
					"own organization", who.OrganizationName, "server", c.URL(), "token", who.Token.Name, "good for", strings.Join(tokenBounds(&who.Token), ", "),
					"expires", a.stampOf(who.Token.Expires), "last used", a.stampOf(who.Token.LastUsed), "last used from", who.Token.LastFrom,
					"current organization", withRole(now.Organization, now.OrganizationRole), "current project", withRole(now.Project, now.ProjectRole))
			})
		})
}

// tokenBounds describes the limits of a token.
func tokenBounds(t *contract.Token) []string {
	var all []string
	switch {
	case t.Project != "":
		all = append(all, "project "+cmp.Or(t.ProjectName, t.Project)+" only")
	case t.Organization != "":
		all = append(all, "organization "+cmp.Or(t.OrganizationName, t.Organization)+" only")
	}
	if t.Role != "" {
		all = append(all, "at most as "+string(t.Role))
	}
	return all
}

// wordIf returns a word if a condition holds.
func wordIf(word string, holds bool) string {
	if holds {
		return word
	}
	return ""
}

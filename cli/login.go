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
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) loginCommand() *cobra.Command {
	var stdin bool
	cmd := &cobra.Command{
		Use: "login [URL]", Short: "Log in to a server and save the connection as a profile", Args: checkLoginURL,
		Long: "Log in to a server: check the URL and the token, then save them as a profile, in a file that\nonly you can read.\n\n" +
			"Use --profile NAME to save several profiles. Commands use the profile that --profile or\nMARIPOSA_PROFILE names, or else the unnamed one.\n\n" +
			"Give the URLs of several replicas of one installation separated by commas: commands use the\nfirst that answers, and continue with another one if it fails.\n\n" +
			"--org, --ca and --insecure are saved with the profile. Without a URL, the token is for the\nserver that is already in the profile.",
		Example: "  mariposa login https://mariposa.example.com --token-stdin < token\n  mariposa login https://m1.example.com,https://m2.example.com,https://m3.example.com\n  mariposa login --profile prod --url https://prod.example.com --org shop",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				a.global.url = args[0]
			}
			return a.login(cmd.Context(), stdin)
		},
	}
	cmd.Flags().BoolVar(&stdin, "token-stdin", false, "read the token from standard input")
	return cmd
}

// checkLoginURL checks the argument of login. It does not repeat an argument that may be
// a token.
func checkLoginURL(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return errors.New("too many arguments: separate several URLs with commas")
	}
	if len(args) == 1 && !strings.HasPrefix(args[0], "http://") && !strings.HasPrefix(args[0], "https://") {
		return errors.New("the argument is not a URL such as https://mariposa.example.com (pass a token with --token-stdin)")
	}
	return nil
}

const maxToken = 64 << 10

// askToken reads the token from standard input, a flag or its environment variable, or a
// prompt without echo.
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
		return "", Usage(errors.New("no token given: use --token-stdin"))
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	token := strings.TrimSpace(raw)
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", Usage(errors.New("not a valid token: a token is one word without spaces"))
	}
	return token, nil
}

// login saves a server after checking that it answers and accepts the token.
func (a *app) login(ctx context.Context, stdin bool) error {
	if a.global.as != "" {
		return Usage(errors.New("--as cannot be used with login: log in as yourself"))
	}
	p, _, err := a.findProfile()
	if err != nil {
		if _, wrong := a.profilePath(); wrong != nil {
			return wrong
		}
		p = profile{} // damaged: login replaces it
	}
	s := server{url: tidyURLs(a.global.url), org: a.global.org, ca: a.global.ca, insecure: a.global.insecure}
	if s.url == "" {
		if s.url = p.URL; s.url == "" {
			return Usage(errors.New("no server given: give its URL"))
		}
	}
	if sameURL(p.URL, s.url) { // keep what is not given again
		s.org, s.ca, s.insecure = cmp.Or(s.org, p.Org), cmp.Or(s.ca, p.CA), s.insecure || p.Insecure
	} else {
		p = profile{Selected: p.Selected}
	}
	if s.ca != "" {
		if s.ca, err = filepath.Abs(s.ca); err != nil {
			return fmt.Errorf("cannot find the root certificate: %w", err)
		}
	}
	if s.token, err = a.askToken(ctx, stdin); err != nil {
		return err
	}
	if s.id, err = a.checkServers(ctx, s); err != nil {
		return fmt.Errorf("nothing was saved: %w", err)
	}
	who, err := a.checkLogin(ctx, s)
	if err != nil {
		return fmt.Errorf("nothing was saved: %w", err)
	}
	p.URL, p.Token, p.Org, p.CA, p.Insecure, p.Installation = s.url, s.token, s.org, s.ca, s.insecure, s.id
	if err := a.writeProfile(p); err != nil {
		return err
	}
	if a.global.json {
		return a.printJSON(map[string]string{"url": s.url, "user": who.Name})
	}
	a.say("logged in to %s as %s%s", s.url, who.Name, bracketed(prefixed("limited to ", strings.Join(tokenBounds(&who.Token), ", "))))
	return nil
}

// checkServers checks that several URLs belong to one installation, and returns its id.
func (a *app) checkServers(ctx context.Context, s server) (string, error) {
	if !strings.Contains(s.url, ",") {
		return "", nil
	}
	c, err := a.dial(s)
	if err != nil {
		return "", err
	}
	defer c.Close()
	id, silent, err := c.CheckServers(ctx)
	for _, u := range silent {
		a.note("%s does not answer, so it was not checked", u)
	}
	return id, err
}

// checkLogin asks a server for the current user, and checks that the organization exists.
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
		Use: "logout", Short: "Delete the profile that login saved", Args: argsBetween(0, 0),
		Long: "Delete the unnamed profile, or the one that --profile names.\n\n" +
			"The token itself stays valid until it expires or is revoked (`mariposa token revoke`).",
		RunE: func(*cobra.Command, []string) error {
			path, err := a.profilePath()
			if err != nil {
				return err
			}
			err = os.Remove(path)
			gone := err == nil
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("cannot remove the profile: %w", err)
			}
			switch name := cmp.Or(a.global.profile, defaultProfile); {
			case a.global.json:
				return a.printJSON(map[string]any{"profile": name, "forgotten": gone})
			case !gone:
				a.note("there is no profile %s", name)
			default:
				a.say("profile %s is deleted", name)
			}
			return nil
		},
	}
}

func (a *app) whoamiCommand() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "whoami", Short: "Show your user, your roles, the limits of your token and your defaults", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			who, err := c.Whoami(ctx)
			if err != nil {
				return err
			}
			now, err := a.findCurrent(ctx, c)
			if err != nil {
				return err
			}
			orgs, err := c.Organizations(ctx)
			if err != nil {
				return err
			}
			orgs.Organizations = slices.DeleteFunc(orgs.Organizations, func(o contract.Organization) bool { return o.Role == "" })
			shown := struct {
				contract.Whoami
				Current       current                 `json:"current"`
				Organizations []contract.Organization `json:"organizations"`
			}{*who, now, orgs.Organizations}
			return show(a, &shown, nil, func() {
				a.facts("user", cell{who.Name, bold}, "id", who.ID, "email", who.Email, "acts for", who.For, "installation admin", wordIf("yes", who.Admin),
					"personal organization", who.OrganizationName, "organizations", rolesIn(orgs.Organizations), "server", c.URL(), "token", who.Token.Name, "limited to", strings.Join(tokenBounds(&who.Token), ", "),
					"expires", a.stampOf(who.Token.Expires), "last used", a.stampOf(who.Token.LastUsed), "last used from", who.Token.LastFrom,
					"current organization", withRole(now.Organization, now.OrganizationRole), "current project", withRole(now.Project, now.ProjectRole))
			})
		})
}

// rolesIn names organizations with the caller's role in each.
func rolesIn(orgs []contract.Organization) string {
	var all []string
	for _, o := range orgs {
		all = append(all, o.Name+" ("+string(o.Role)+")")
	}
	return strings.Join(all, ", ")
}

// tokenBounds describes the limits of a token.
func tokenBounds(t *contract.Token) []string {
	var all []string
	switch {
	case t.Project != "":
		all = append(all, "project "+cmp.Or(t.ProjectName, t.Project))
	case t.Organization != "":
		all = append(all, "organization "+cmp.Or(t.OrganizationName, t.Organization))
	}
	if t.Role != "" {
		all = append(all, "role "+string(t.Role))
	}
	return all
}

// wordIf returns a word if a condition is true.
func wordIf(word string, holds bool) string {
	if holds {
		return word
	}
	return ""
}

package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"mariposa/api"
)

// oidcFlags configure the identity provider.
type oidcFlags struct {
	api.OIDC
	secretFile string
	groups     []string
}

func (f *oidcFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.Issuer, "oidc-issuer", "", "URL of a provider (OpenID Connect) at which people sign in to the web page; set all --oidc flags on every replica")
	to.StringVar(&f.ClientID, "oidc-client-id", "", "id of this installation at the provider")
	to.StringVar(&f.secretFile, "oidc-client-secret-file", "", "file with the secret of this installation at the provider; none if the provider needs no secret")
	to.StringVar(&f.Name, "oidc-name", "single sign-on", "name of the provider on the page")
	to.StringVar(&f.UserClaim, "oidc-user-claim", "preferred_username", "claim with the name of the user, which decides at the first sign-in who it is; people must not be able to change it at the provider")
	to.StringVar(&f.GroupsClaim, "oidc-groups-claim", "groups", "claim with the groups of the user, for --oidc-group")
	to.StringArrayVar(&f.groups, "oidc-group", nil, "group at the provider whose members are members of an organization, as GROUP=ORGANIZATION or GROUP=ORGANIZATION:owner; at each sign-in, others leave that organization (repeatable)")
	to.BoolVar(&f.CreateUsers, "oidc-create-users", false, "create a user for everyone who signs in at the provider; without it, only existing users can sign in")
}

// provider returns the configured provider; nil: none.
func (f *oidcFlags) provider() (*api.OIDC, error) {
	if f.Issuer == "" {
		if f.ClientID != "" || f.secretFile != "" || f.CreateUsers || len(f.groups) > 0 {
			return nil, errors.New("--oidc-issuer is missing: the other --oidc flags need it")
		}
		return nil, nil
	}
	u, err := url.Parse(f.Issuer)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("--oidc-issuer must be a URL such as https://login.example.com, not %q", f.Issuer)
	case u.Scheme == "http" && u.Hostname() != "localhost" && !strings.HasPrefix(u.Hostname(), "127.") && u.Hostname() != "::1":
		return nil, errors.New("--oidc-issuer must begin with https://, because the provider says who people are")
	case f.ClientID == "" || f.Name == "" || f.UserClaim == "" || f.GroupsClaim == "":
		return nil, errors.New("--oidc-client-id, --oidc-name, --oidc-user-claim and --oidc-groups-claim must not be empty")
	}
	p := f.OIDC
	for _, text := range f.groups {
		g, err := api.ParseOIDCGroup(text)
		if err != nil {
			return nil, fmt.Errorf("--oidc-group: %w", err)
		}
		p.Groups = append(p.Groups, g)
	}
	if f.secretFile != "" {
		secret, err := os.ReadFile(f.secretFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-client-secret-file: %w", err)
		}
		if p.ClientSecret = strings.TrimSpace(string(secret)); p.ClientSecret == "" {
			return nil, fmt.Errorf("--oidc-client-secret-file: %s is empty", f.secretFile)
		}
	}
	return &p, nil
}

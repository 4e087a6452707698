package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mariposa/client"
)

// Files in a data directory that clients on the same machine read.
const (
	URLFile   = "url"         // the URL of the dev server; one line, written when it starts
	TokenFile = "admin.token" // 0600
)

// defaultURL is where a dev server listens by default.
const defaultURL = "http://127.0.0.1:8080"

// DataDir returns the default data directory of a dev server.
func DataDir(getenv func(string) string) string {
	return filepath.Join(xdg(getenv, "XDG_DATA_HOME", ".local", "share"), "mariposa")
}

func xdg(getenv func(string) string, name string, home ...string) string {
	// The XDG specification says to ignore relative paths.
	if dir := getenv(name); filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(append([]string{getenv("HOME")}, home...)...)
}

// A server is the address of a server and the credentials for it.
type server struct {
	url, token string // the URLs of several replicas are separated by commas
	of         string // all URLs of the profile that it belongs to, if url has only some of them
	id         string // of the installation, if it is known
	org        string // where project names are looked up; empty: the user's personal organization
	ca         string // file of a root certificate to trust
	insecure   bool   // plain HTTP is allowed
	local      bool   // the dev server of the data directory
}

// locate finds the selected server. Command-line flags take precedence over the
// environment, then the profile, then the dev server on this machine. A token from this
// machine is sent only to the server that it is for.
func (a *app) locate() (server, error) {
	p, err := a.readProfile()
	if err != nil {
		return server{}, err
	}
	g, said := a.global, func(flag, value string) bool { return value != "" && !a.fromEnv[flag] }
	// It is on this machine, whatever address it listens on.
	local := server{url: a.localFile(URLFile), token: a.localFile(TokenFile), insecure: true, local: true}
	if local.url == "" {
		local.token = "" // the server at the default URL may not be ours
		local.url, local.insecure = defaultURL, false
	}
	s, chosen := local, said("profile", g.profile)
	switch {
	case said("url", g.url):
		s = a.addressed(p, local)
	case chosen && p.URL != "":
		s = p.server()
	case said("data", g.data):
	case g.url != "":
		s = a.addressed(p, local)
	case g.profile != "" && p.URL != "":
		s = p.server()
	case g.data != "":
	case p.URL != "":
		s = p.server()
	}
	if g.token != "" && (s.token == "" || !chosen || said("token", g.token)) {
		s.token = g.token
	}
	s.org, s.ca, s.insecure = cmp.Or(g.org, p.selection(a.serverKey(s)).Org), cmp.Or(g.ca, s.ca), g.insecure || s.insecure
	return s, nil
}

// addressed returns the server at the given URL, with the known credentials for it.
func (a *app) addressed(p profile, local server) server {
	s := server{url: a.global.url}
	switch {
	case includesURLs(p.URL, s.url):
		s = p.server()
		s.url, s.of = a.global.url, p.URL
	case sameURL(s.url, local.url):
		s.token, s.insecure, s.local = local.token, local.insecure, true
	case a.global.data != "":
		s.token = a.localFile(TokenFile) // the data directory was given explicitly, so use its token
	}
	return s
}

// splitURLs returns the URLs of a list that is separated by commas.
func splitURLs(list string) []string {
	var all []string
	for u := range strings.SplitSeq(list, ",") {
		all = append(all, strings.TrimRight(strings.TrimSpace(u), "/"))
	}
	return all
}

// tidyURLs returns a list of URLs in one notation.
func tidyURLs(list string) string { return strings.Join(splitURLs(list), ",") }

func sameURL(a, b string) bool { return tidyURLs(a) == tidyURLs(b) }

// includesURLs reports whether all URLs of one list are in another.
func includesURLs(list, some string) bool {
	all := splitURLs(list)
	return list != "" && !slices.ContainsFunc(splitURLs(some), func(u string) bool { return !slices.Contains(all, u) })
}

func (a *app) dataDir() string {
	return cmp.Or(a.global.data, DataDir(a.env.Getenv))
}

// localFile reads a line that the dev server on this machine wrote; empty: there is none
// that we can read.
func (a *app) localFile(name string) string {
	text, err := os.ReadFile(filepath.Join(a.dataDir(), name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// connect returns the client of this run.
func (a *app) connect() (*client.Client, error) {
	if a.server != nil {
		return a.server, nil
	}
	s, err := a.locate()
	if err != nil {
		return nil, err
	}
	a.server, err = a.dial(s)
	a.urls = s.url
	return a.server, err
}

func (a *app) dial(s server) (*client.Client, error) {
	o := client.Options{
		URL: s.url, Token: s.token, Organization: s.org, User: a.global.as, Insecure: s.insecure, UserAgent: "mariposa/" + a.env.Version,
		Installation: s.id, First: a.lastUsed(s.url), Notify: a.printFailover, Now: a.env.Now,
	}
	if s.ca != "" {
		var err error
		if o.Roots, err = os.ReadFile(s.ca); err != nil {
			return nil, fmt.Errorf("cannot read the root certificate: %w", err)
		}
	}
	c, err := client.New(o)
	if err != nil {
		return nil, Usage(err)
	}
	return c, nil
}

// projectName returns the selected project: an argument, -j, MARIPOSA_PROJECT or
// the one that was set.
func (a *app) projectName(args []string) (string, error) {
	if len(args) > 0 {
		a.named = args[0]
		return args[0], nil
	}
	name, err := a.anyProject(false)
	if err == nil && name == "" {
		err = Usage(withHint(errors.New("no project given"), "name one with -j or MARIPOSA_PROJECT, or set a default with `mariposa project set NAME`"))
	}
	return name, err
}

// anyProject returns the selected project, or nothing if all are meant.
func (a *app) anyProject(all bool) (string, error) {
	if all {
		a.everywhere = true
		return "", nil
	}
	if a.global.project != "" {
		return a.global.project, nil
	}
	sel, err := a.selected()
	if err != nil || a.global.org != "" && sel.Org != "" && a.global.org != sel.Org {
		return "", err // the default project is in another organization
	}
	return sel.Project, nil
}

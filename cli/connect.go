package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mariposa/client"
)

// The files of a data folder that a client on the same machine reads.
const (
	URLFile   = "url"         // where the dev server listens; one line, written at its start
	TokenFile = "admin.token" // 0600
	JoinFile  = "join.token"  // 0600
)

// defaultURL is where a dev server listens unless told otherwise.
const defaultURL = "http://127.0.0.1:8080"

// DataDir is the data folder of a dev server that is not told another.
func DataDir(getenv func(string) string) string {
	return filepath.Join(xdg(getenv, "XDG_DATA_HOME", ".local", "share"), "mariposa")
}

func xdg(getenv func(string) string, name string, home ...string) string {
	// The specification wants relative paths ignored.
	if dir := getenv(name); filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(append([]string{getenv("HOME")}, home...)...)
}

// profile is what `mariposa login` and `mariposa project set` remember.
type profile struct {
	URL     string `json:"url,omitempty"`
	Token   string `json:"token,omitempty"`
	Project string `json:"project,omitempty"`
}

func (a *app) profilePath() string {
	return filepath.Join(xdg(a.env.Getenv, "XDG_CONFIG_HOME", ".config"), "mariposa", "profile.json")
}

func (a *app) readProfile() (profile, error) {
	var p profile
	text, err := os.ReadFile(a.profilePath())
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("the profile cannot be read: %w", err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, hinted(fmt.Errorf("the profile %s is damaged: %w", a.profilePath(), err), "remove it, then `mariposa login` again")
	}
	return p, nil
}

// writeProfile replaces the profile as a whole: a reader never sees half of it,
// and nobody else sees the token.
func (a *app) writeProfile(p profile) error {
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(a.profilePath())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("the profile cannot be written: %w", err)
	}
	f, err := os.CreateTemp(dir, ".profile-*") // 0600
	if err != nil {
		return fmt.Errorf("the profile cannot be written: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), a.profilePath())
	}
	if err != nil {
		return fmt.Errorf("the profile cannot be written: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// A server is where to find one and what to show it.
type server struct{ url, token string }

// locate finds the server that is meant. What is said on the command line goes
// before the environment, that before the profile, that before the dev server on
// this machine. A token found on this machine goes only to the server it is for.
func (a *app) locate() (server, error) {
	p, err := a.readProfile()
	if err != nil {
		return server{}, err
	}
	g := a.global
	local := server{url: a.localFile(URLFile), token: a.localFile(TokenFile)}
	if local.url == "" {
		local.token = "" // whoever listens at the usual place need not be ours
		local.url = defaultURL
	}
	s := server{url: g.url}
	switch {
	case g.url != "" && (!a.fromEnv["url"] || g.data == "" || a.fromEnv["data"]):
		switch {
		case sameURL(g.url, p.URL):
			s.token = p.Token
		case sameURL(g.url, local.url):
			s.token = local.token
		case g.data != "":
			s.token = a.localFile(TokenFile) // the folder was named: its token is meant
		}
	case g.data == "" && p.URL != "":
		s = server{p.URL, p.Token}
	default:
		s = local
	}
	if g.token != "" {
		s.token = g.token
	}
	return s, nil
}

func sameURL(a, b string) bool {
	return strings.TrimRight(a, "/") == strings.TrimRight(b, "/")
}

func (a *app) dataDir() string {
	if a.global.data != "" {
		return a.global.data
	}
	return DataDir(a.env.Getenv)
}

// localFile reads a line that the dev server of this machine left; nothing when
// there is none that we may read.
func (a *app) localFile(name string) string {
	text, err := os.ReadFile(filepath.Join(a.dataDir(), name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// connect makes the client of this run.
func (a *app) connect() (*client.Client, error) {
	if a.server != nil {
		return a.server, nil
	}
	s, err := a.locate()
	if err != nil {
		return nil, err
	}
	a.server, err = a.dial(s)
	return a.server, err
}

func (a *app) dial(s server) (*client.Client, error) {
	c, err := client.New(client.Options{URL: s.url, Token: s.token, Organization: a.global.org, UserAgent: "mariposa/" + a.env.Version})
	if err != nil {
		return nil, Usage(err)
	}
	return c, nil
}

// projectName is the project that is meant: a word of the command line, -j,
// MARIPOSA_PROJECT or the one that was set.
func (a *app) projectName(args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	name, err := a.anyProject(false)
	if err == nil && name == "" {
		err = Usage(hinted(errors.New("which project?"), "name it with -j or in MARIPOSA_PROJECT, or choose one for good with `mariposa project set NAME`"))
	}
	return name, err
}

// anyProject is the project that is meant, or nothing where all may be.
func (a *app) anyProject(all bool) (string, error) {
	if all {
		return "", nil
	}
	if a.global.project != "" {
		return a.global.project, nil
	}
	p, err := a.readProfile()
	return p.Project, err
}

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// profile is the data that `mariposa login`, `project set` and `org set` save.
type profile struct {
	URL   string `json:"url,omitempty"` // several are separated by commas
	Token string `json:"token,omitempty"`
	Org   string `json:"org,omitempty"` // on that server
	CA    string `json:"ca,omitempty"`
	// Selected contains the defaults of each server, so that they do not apply to other
	// servers.
	Selected map[string]selection `json:"selected,omitempty"`
	// Insecure: the token may be sent unencrypted to that server.
	Insecure bool `json:"insecure,omitempty"`
	// Installation is what the servers belong to: others do not get the token.
	Installation string `json:"installation,omitempty"`
}

func (p profile) server() server {
	return server{url: p.URL, token: p.Token, org: p.Org, ca: p.CA, insecure: p.Insecure, id: p.Installation}
}

// defaultProfile is the name of the profile that is used if none is given.
const defaultProfile = "default"

var profileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// profilePath returns the file of the selected profile. Each profile has its own file, so
// that concurrent logins do not overwrite each other.
func (a *app) profilePath() (string, error) {
	dir := filepath.Join(xdg(a.env.Getenv, "XDG_CONFIG_HOME", ".config"), "mariposa")
	switch name := a.global.profile; {
	case name == "" || name == defaultProfile:
		return filepath.Join(dir, "profile.json"), nil
	case !profileName.MatchString(name):
		return "", Usage(fmt.Errorf("invalid profile name %q: use letters, digits, dots and dashes", name))
	default:
		return filepath.Join(dir, "profiles", name+".json"), nil
	}
}

// readProfile reads the selected profile. The default one need not exist.
func (a *app) readProfile() (profile, error) {
	p, found, err := a.findProfile()
	if err == nil && !found && a.global.profile != "" && a.global.profile != defaultProfile {
		return p, Usage(withHint(fmt.Errorf("there is no profile %q%s", a.global.profile, prefixed("; available profiles: ", strings.Join(a.profileNames(), ", "))),
			"create it with `mariposa login --profile %s --url URL`", a.global.profile))
	}
	return p, err
}

func (a *app) findProfile() (p profile, found bool, err error) {
	path, err := a.profilePath()
	if err != nil {
		return p, false, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if err != nil {
		return p, false, fmt.Errorf("cannot read the profile: %w", err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return profile{}, true, withHint(fmt.Errorf("the profile %s is damaged: %w", path, err), "remove it, then run `mariposa login` again")
	}
	return p, true, nil
}

// writeProfile replaces the profile atomically and keeps the token private.
func (a *app) writeProfile(p profile) error {
	path, err := a.profilePath()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot write the profile: %w", err)
	}
	f, err := os.CreateTemp(dir, ".profile-*") // 0600
	if err != nil {
		return fmt.Errorf("cannot write the profile: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cannot write the profile: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// profileNames lists the existing profiles.
func (a *app) profileNames() []string {
	dir := filepath.Join(xdg(a.env.Getenv, "XDG_CONFIG_HOME", ".config"), "mariposa")
	var names []string
	if _, err := os.Stat(filepath.Join(dir, "profile.json")); err == nil {
		names = append(names, defaultProfile)
	}
	files, _ := os.ReadDir(filepath.Join(dir, "profiles")) // an unreadable directory has no profiles for us
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".json"); ok && profileName.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

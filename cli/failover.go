package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// printFailover says on standard error that the client continues with another server. A
// live view shows the server itself.
func (a *app) printFailover(sentence string) {
	switch {
	case a.onScreen.Load():
	case a.env.Terminal(a.env.Stderr): // there may be a progress bar
		fmt.Fprint(a.env.Stderr, "\r", ansi.EraseLineRight, plain(sentence), "\n")
	default:
		a.note("%s", sentence)
	}
}

// usedServers is a file with the server that answered last, for each list of URLs: the
// next command begins with it.
type usedServers map[string]string

func (a *app) usedPath() string {
	return filepath.Join(xdg(a.env.Getenv, "XDG_STATE_HOME", ".local", "state"), "mariposa", "servers.json")
}

// readUsed reads the file. It is only a hint: without it, commands begin with the first
// URL.
func (a *app) readUsed() usedServers {
	used := usedServers{}
	if text, err := os.ReadFile(a.usedPath()); err != nil || json.Unmarshal(text, &used) != nil {
		return usedServers{}
	}
	return used
}

// lastUsed returns the server of a list that answered last.
func (a *app) lastUsed(urls string) string {
	if !strings.Contains(urls, ",") {
		return ""
	}
	return a.readUsed()[tidyURLs(urls)]
}

// maxUsed limits the number of lists that are remembered.
const maxUsed = 100

// rememberUsed writes which server was used, if that has changed. Errors are ignored,
// because the next command works without it.
func (a *app) rememberUsed() {
	if !strings.Contains(a.urls, ",") {
		return
	}
	used, key, now := a.readUsed(), tidyURLs(a.urls), a.server.URL()
	before, known := used[key]
	if before == now || !known && now == splitURLs(key)[0] {
		return
	}
	if len(used) >= maxUsed {
		used = usedServers{}
	}
	used[key] = now
	text, err := json.Marshal(used)
	path := a.usedPath()
	if err != nil || os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".servers-*") // 0600
	if err != nil {
		return
	}
	_, err = f.Write(text)
	if f.Close() != nil || err != nil || os.Rename(f.Name(), path) != nil {
		_ = os.Remove(f.Name())
	}
}

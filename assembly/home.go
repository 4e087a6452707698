package assembly

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// homeOf identifies where a data directory is: the machine and the path. A copy has another
// home, on this machine or on any other. Virtual machines that were cloned may have the same
// machine id, but not the same hardware id, which only root can read.
func homeOf(dir string) (string, error) {
	at, err := filepath.Abs(dir)
	if err == nil {
		at, err = filepath.EvalSymlinks(at)
	}
	if err != nil {
		return "", fmt.Errorf("find the node's directory: %w", err)
	}
	h := sha256.New()
	for _, file := range []string{"/etc/machine-id", "/sys/class/dmi/id/product_uuid"} {
		b, _ := os.ReadFile(file) // empty where there is none
		fmt.Fprintf(h, "%s\n", bytes.TrimSpace(b))
	}
	fmt.Fprintln(h, at)
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// settle checks that the data directory is where it was before, and notes where it is the
// first time. Two agents with one identity would take turns in running its instances.
func (id *identity) settle(cfg NodeConfig) (changed bool, err error) {
	home, err := homeOf(cfg.Dir)
	switch {
	case err != nil:
		return false, err
	case id.Home == home:
		return false, nil
	case id.Home != "" && !cfg.Moved:
		return false, fmt.Errorf("the data directory %s was copied or moved from another place: "+
			"if it is a copy, use an empty directory, so that this becomes a node of its own; "+
			"if it was moved and no agent uses the original any more, start once with --moved", cfg.Dir)
	}
	changed, id.moved = id.Home == "", id.Home != ""
	id.Home = home
	return changed, nil
}

// storeHome stores where the directory is after a move.
func (id *identity) storeHome(path string) {
	b, err := json.Marshal(id)
	if err == nil {
		err = WriteFile(path, b)
	}
	if err != nil {
		slog.Warn("cannot store that the data directory was moved; the next start needs --moved again", "err", err)
	}
}

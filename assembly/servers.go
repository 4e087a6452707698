package assembly

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"

	"mariposa/agent"
)

// KnownServers returns the servers that an agent has learned of in earlier runs, and stores
// those that it learns of in its data directory.
func KnownServers(dir string) *agent.Known {
	path := filepath.Join(dir, "servers.json")
	var urls []string
	if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &urls) != nil {
		urls = nil // a damaged file is replaced
	}
	return agent.NewKnown(urls, func(urls []string) {
		b, err := json.Marshal(urls)
		if err == nil {
			err = WriteFile(path, b)
		}
		if err != nil {
			slog.Warn("cannot store the addresses of the servers", "err", err)
		}
	})
}

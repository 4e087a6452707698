// Package ostool runs the programs of the distribution that drivers need. It does not know what
// they do.
package ostool

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Timeout is how long a program may take that only looks something up or changes one thing.
const Timeout = time.Minute

// Find returns the path of a program of the machine; empty if it does not have it.
func Find(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if path := filepath.Join(dir, name); isFile(path) {
			return path
		}
	}
	return ""
}

// Run runs a program of the machine and returns its output.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	return RunWith(ctx, "", name, args...)
}

// RunWith runs a program with an input.
func RunWith(ctx context.Context, input, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, Find(name), args...) //nolint:gosec // our own arguments
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Timeout
	cmd.Stdin = strings.NewReader(input)
	var text strings.Builder
	cmd.Stderr = &text
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if line := strings.TrimSpace(text.String()); line != "" {
			err = errors.New(line)
		}
		return "", errors.New(name + ": " + err.Error())
	}
	return string(out), nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

package lxc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// blocks reports whether a process blocks a signal, to read it from a file instead.
func blocks(pid, signal int) bool { return hasSignal(pid, signal, "SigBlk:") }

// handles reports whether a process does something about a signal: now, or when it reads those
// that it blocks.
func handles(pid, signal int) bool {
	return hasSignal(pid, signal, "SigCgt:") || hasSignal(pid, signal, "SigBlk:")
}

// hasSignal reports whether a signal is in one of the sets of a process.
func hasSignal(pid, signal int, set string) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, set); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err == nil && mask&(1<<(signal-1)) != 0
		}
	}
	return false
}

package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"mariposa/driver/statefile"
)

// An agent may be killed at any moment, and so may the engine. The next connection removes what was
// left half done: files of instances that have no container, and commands that nobody reads any
// more.

// removeUnfinishedFiles removes files that were being written when the agent was killed.
func removeUnfinishedFiles(dirs ...string) {
	for _, dir := range dirs {
		list, _ := filepath.Glob(filepath.Join(dir, statefile.Prefix+"*")) // the pattern is valid
		for _, path := range list {
			_ = os.Remove(path) // nobody reads it
		}
	}
}

// sweepFiles removes the files of instances whose container was being created or removed when the
// agent or the engine ended, and does not exist. Those of other instances stay: their container may
// be in another engine. It waits for no operation: the next connection does it too.
func (d *Driver) sweepFiles(ctx context.Context) {
	if !d.operations.TryLock() {
		return
	}
	defer d.operations.Unlock()
	for _, id := range d.unfinished() {
		_, err := d.container(ctx, id)
		if errdefs.IsNotFound(err) {
			err = d.removePrivate(id)
		}
		if err != nil {
			slog.Warn("cannot remove the files of an instance that has no container; it is tried again later", "instance", id, "err", d.explain(err))
		}
	}
}

// unfinished returns the instances whose container was being created or removed: those with a record
// that says so, and those with files and no record.
func (d *Driver) unfinished() (ids []string) {
	records, _ := os.ReadDir(filepath.Join(d.options.Dir, recordDir)) // unreadable ones are removed another time
	for _, f := range records {
		if id, ok := strings.CutSuffix(f.Name(), ".json"); ok && d.readRecord(id).Pending {
			ids = append(ids, id)
		}
	}
	files, _ := os.ReadDir(filepath.Dir(d.privatePath("any")))
	for _, f := range files {
		if _, err := os.Lstat(d.recordPath(f.Name())); statefile.IsGone(err) {
			ids = append(ids, f.Name())
		}
	}
	return ids
}

// sessionPrefix begins the marks of all commands that this node runs. Commands see it, so it does
// not name the node.
func (d *Driver) sessionPrefix() string {
	sum := sha256.Sum256([]byte("session of " + d.options.Scope))
	return hex.EncodeToString(sum[:8]) + "-"
}

// killLeftCommands kills the commands of this node that have no session: the agent that started
// them was killed, or the engine was. What a command has left running when it ended is the
// instance's own.
func (d *Driver) killLeftCommands() {
	prefix := d.sessionPrefix()
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir)) // it has digits only
		mark := markOf(pid)
		if !strings.HasPrefix(mark, prefix) || !d.isLeft(mark) || !isFirstOfCommand(pid) {
			continue
		}
		slog.Info("ending a command in a container that nobody reads any more", "pid", pid)
		killMarked(mark)
	}
}

// isLeft reports whether no session has a mark.
func (d *Driver) isLeft(mark string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.marks[mark]
}

// isFirstOfCommand reports whether a process is the first one of a command in a container, and not
// one that a command has started: its parent is a process of the engine, outside of the container.
func isFirstOfCommand(pid int) bool {
	inside, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	if err != nil {
		return false
	}
	outside, err := os.Readlink("/proc/" + strconv.Itoa(parentOf(pid)) + "/ns/pid")
	return err == nil && inside != outside
}

// markOf returns the mark of the command that a process belongs to; empty if it belongs to none.
func markOf(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	for v := range strings.SplitSeq(string(b), "\x00") {
		if mark, found := strings.CutPrefix(v, envSession+"="); found {
			return mark
		}
	}
	return ""
}

// killMarked kills the processes of a command that can be found.
func killMarked(mark string) {
	for range 10 {
		pids := pidsOf(mark)
		if len(pids) == 0 {
			return
		}
		// None goes on when another one is dead: the exit code is that of the kill.
		for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, pid := range pids {
				_ = syscall.Kill(pid, signal) // it may have ended
			}
		}
	}
}

// pidsOf returns the processes of a command and what they have started: by the mark in their
// environment, and by their parents.
func pidsOf(mark string) (pids []int) {
	dirs, _ := os.ReadDir("/proc")
	parents, ours := map[int]int{}, map[int]bool{}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(dir.Name())
		if err != nil {
			continue
		}
		parents[pid] = parentOf(pid)
		ours[pid] = markOf(pid) == mark
	}
	for pid := range parents {
		for at := pid; at > 1; at = parents[at] {
			if ours[at] {
				pids = append(pids, pid)
				break
			}
		}
	}
	slices.Sort(pids)
	return pids
}

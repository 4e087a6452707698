package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"mariposa/driver/process"
	"mariposa/manifest"
)

// processFlags are the flags for the isolation of process instances.
type processFlags struct {
	allowUnisolated bool
	uids            string
	paths           []string
	tmp             string
	processes       int64
}

func (f *processFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.uids, "process-uids", process.DefaultUIDs.String(), "uids reserved for process instances, if the agent runs as root")
	to.StringArrayVar(&f.paths, "process-path", nil, "directory or file that process instances can read, in addition to system directories, /opt and /srv (repeatable)")
	to.StringVar(&f.tmp, "process-tmp", "64m", "size of /tmp in a process instance; it is kept in memory")
	to.Int64Var(&f.processes, "process-pids", process.DefaultProcesses, "maximum number of processes and threads of a process instance")
}

func (f *processFlags) options() (process.Options, error) {
	uids, err := process.ParseUIDs(f.uids)
	if err != nil {
		return process.Options{}, errors.New("--process-uids: " + err.Error())
	}
	size, ok := manifest.ParseSize(f.tmp)
	if !ok || size < 1<<20 {
		return process.Options{}, errors.New("--process-tmp must be a size of at least 1m, such as 64m")
	}
	if f.processes < 16 {
		return process.Options{}, errors.New("--process-pids must be at least 16")
	}
	o := process.Options{UIDs: uids, Paths: f.paths, TmpSize: size, Processes: f.processes}
	if f.allowUnisolated {
		o.Isolation = process.IsolationPreferred
	}
	return o, nil
}

// logIsolation logs at startup how this machine isolates instances.
func logIsolation(allowed bool) {
	how, why, lacks := process.Probe()
	switch {
	case why == "" && lacks == "":
		slog.Info("process instances are isolated", "by", how)
	case why == "":
		slog.Warn("process instances are isolated, but not fully", "by", how, "missing", lacks)
	case allowed:
		slog.Warn("process instances are not isolated: they can read everything that the user of the agent can read, and kill its processes", "because", why)
	default:
		slog.Error("this node cannot isolate process instances and does not run them; run the agent as root on Linux 5.12 or newer, or with --allow-unisolated", "because", why)
	}
}

// hideMemory prevents other processes of the same user from reading the memory and
// environment of this process, which contain keys and tokens.
func hideMemory() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		slog.Warn("other processes of this user can read the memory of this one", "err", err)
	}
}

package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"mariposa/driver/process"
	"mariposa/manifest"
)

// processFlags say how process instances are isolated.
type processFlags struct {
	allowUnisolated bool
	uids            string
	paths           []string
	tmp             string
	processes       int64
}

func (f *processFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.uids, "process-uids", process.DefaultUIDs.String(), "uids that belong to process instances alone, when the agent is root")
	to.StringArrayVar(&f.paths, "process-path", nil, "a folder or file that process instances can read, beside the system's, /opt and /srv; may be given more than once")
	to.StringVar(&f.tmp, "process-tmp", "64m", "how much a process instance may have in /tmp, which is in memory")
	to.Int64Var(&f.processes, "process-pids", process.DefaultProcesses, "how many processes and threads a process instance may have")
}

func (f *processFlags) options() (process.Options, error) {
	uids, err := process.ParseUIDs(f.uids)
	if err != nil {
		return process.Options{}, errors.New("--process-uids: " + err.Error())
	}
	size, ok := manifest.ParseSize(f.tmp)
	if !ok || size < 1<<20 {
		return process.Options{}, errors.New("--process-tmp: give a size of at least 1m, like 64m")
	}
	if f.processes < 16 {
		return process.Options{}, errors.New("--process-pids: give at least 16")
	}
	o := process.Options{UIDs: uids, Paths: f.paths, TmpSize: size, Processes: f.processes}
	if f.allowUnisolated {
		o.Isolation = process.IsolationPreferred
	}
	return o, nil
}

// logIsolation says at the start what instances of this machine are kept apart by.
func logIsolation(allowed bool) {
	how, why, lacks := process.Probe()
	switch {
	case why == "" && lacks == "":
		slog.Info("process instances are isolated", "by", how)
	case why == "":
		slog.Warn("process instances are isolated, but not fully", "by", how, "missing", lacks)
	case allowed:
		slog.Warn("process instances are not isolated: each can read what the agent's user can, and end what it runs", "because", why)
	default:
		slog.Error("this node runs no process instances, because it cannot isolate them; run the agent as root on Linux 5.12 or newer, or with --allow-unisolated", "because", why)
	}
}

// hideMemory keeps other processes of the same user from reading this one's memory
// and environment, which hold keys and tokens.
func hideMemory() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		slog.Warn("other processes of this user can read this one's memory", "err", err)
	}
}

package lxc

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"mariposa"
	"mariposa/driver"
)

// These are below Options.Dir.
const (
	instancesDir = "instances"
	volumesDir   = "volumes"
	networksDir  = "networks"
)

// These are in the directory of an instance.
const (
	recordFile  = "record.json"
	stateFile   = "state.json"
	exitFile    = "exit.json"
	bootedFile  = "booted" // its script has been started
	lockFile    = "lock"
	logFile     = "log"
	consoleFile = "console" // a pipe from lxc-start to the supervisor
	lxcLogFile  = "lxc.log"
	upperDir    = "upper" // what differs from the image
	workDir     = "work"  // of the overlay
	rootfsDir   = "rootfs"
	privateDir  = "private" // on a machine that cannot keep files in memory
)

// Prefixes of directories that are incomplete: not finished, or not removed yet.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
)

// record is what the driver keeps of an instance on disk. It has no secrets: it is enough to
// find an instance, but not to start it.
type record struct {
	ID      string               `json:"id"`
	Name    string               `json:"name,omitempty"`
	Project string               `json:"project,omitempty"`
	Service string               `json:"service,omitempty"`
	Labels  driver.Labels        `json:"labels"`
	Origin  *mariposa.Provenance `json:"origin,omitempty"`
	Run     int                  `json:"run"` // counts its starts

	ManualRestarts int `json:"bounces,omitempty"`

	Ref       string     `json:"image"`    // as the manifest names it
	Image     string     `json:"image_id"` // as the store does
	Rootfs    rootfsKind `json:"rootfs"`
	IDs       int        `json:"ids,omitempty"` // the first of its ids on this machine; none if it is privileged
	HasInit   bool       `json:"has_init,omitempty"`
	User      owner      `json:"user"` // of its script and of commands in it, inside
	Dir       string     `json:"working_dir,omitempty"`
	Path      string     `json:"path"`                // where commands are found
	Variables []string   `json:"variables,omitempty"` // the names of its own
	Sourced   bool       `json:"sourced,omitempty"`   // some are in its environment file only
	Links     []link     `json:"links"`               // to networks
	Ports     []int      `json:"ports,omitempty"`
	Volumes   []string   `json:"volumes,omitempty"` // their ids
	Memory    int64      `json:"memory,omitempty"`
	MilliCPU  int64      `json:"milli_cpu,omitempty"`
	Private   string     `json:"private"`
}

// link is an interface of an instance in a network.
type link struct {
	Network string       `json:"network,omitempty"` // its id; empty if it is that of instances without networks
	Bridge  string       `json:"bridge"`
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway"`
}

// owner is a user inside a container.
type owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// state is a running container, with enough data to recognize its processes reliably.
type state struct {
	Run             int       `json:"run"`
	Boot            string    `json:"boot"`
	Supervisor      int       `json:"supervisor"`
	SupervisorStart uint64    `json:"supervisor_start"`
	PID             int       `json:"pid"` // of its init
	Start           uint64    `json:"start"`
	Started         time.Time `json:"started"`
	ManualRestarts  int       `json:"bounces,omitempty"`
}

// exit records how a run ended.
type exit struct {
	Run    int       `json:"run"`
	Code   *int      `json:"code,omitempty"` // 128 plus the signal, if one killed it
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// writeJSON replaces a file atomically: readers see either the old or the new content.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return replaceFile(path, b, 0o600, owner{})
}

// replaceFile writes a file of an owner on this machine, which readers see in its old or in its
// new form.
func replaceFile(path string, content []byte, mode os.FileMode, to owner) error {
	f, err := os.CreateTemp(filepath.Dir(path), newPrefix)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Lchown(f.Name(), to.UID, to.GID)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it is incomplete; the error is returned
	}
	return err
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// anyRun means the last run, whichever it was.
const anyRun = -1

// readState reads the state of a run; false if that run did not get that far.
func readState(dir string, run int) (s state, ok bool) {
	err := readJSON(filepath.Join(dir, stateFile), &s)
	return s, err == nil && (s.Run == run || run == anyRun)
}

// readExit reads the end of a run; false if it was not recorded.
func readExit(dir string, run int) (x exit, ok bool) {
	err := readJSON(filepath.Join(dir, exitFile), &x)
	return x, err == nil && x.Run == run
}

// checkID rejects ids that cannot be names of containers and directories.
func checkID(id string) error {
	if id == "" || len(id) > 100 || id[0] == '.' || id[0] == '-' || strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}) {
		return fmt.Errorf("invalid id of a system container: %q", id)
	}
	return nil
}

// ownerOf returns the owner of a file.
func ownerOf(info os.FileInfo) owner {
	stat := info.Sys().(*syscall.Stat_t)
	return owner{int(stat.Uid), int(stat.Gid)}
}

func isGone(err error) bool { return errors.Is(err, os.ErrNotExist) }

func ignoreMissing(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}

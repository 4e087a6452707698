package lxc

import (
	"os"
	"syscall"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// These are below Options.Dir.
const (
	instancesDir = "instances"
	volumesDir   = "volumes"
)

// These are in the directory of an instance.
const (
	recordFile  = "record.json"
	bootedFile  = "booted" // its script has been started
	logFile     = "log"
	consoleFile = "console" // a pipe from lxc-start to the supervisor
	lxcLogFile  = "lxc.log"
	upperDir    = "upper" // what differs from the image
	workDir     = "work"  // of the overlay
	rootfsDir   = "rootfs"
	guestFile   = "guest.json" // the values that the guest has set
	privateDir  = "private"    // on a machine that cannot keep files in memory
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

	Ref       string        `json:"image"`    // as the manifest names it
	Image     string        `json:"image_id"` // as the store does
	Rootfs    rootfsKind    `json:"rootfs"`
	IDs       int           `json:"ids,omitempty"` // the first of its ids on this machine; none if it is privileged
	HasInit   bool          `json:"has_init,omitempty"`
	User      owner         `json:"user"` // of its script and of commands in it, inside
	Dir       string        `json:"working_dir,omitempty"`
	Path      string        `json:"path"`                // where commands are found
	Variables []string      `json:"variables,omitempty"` // the names of its own
	Sourced   bool          `json:"sourced,omitempty"`   // some are in its environment file only
	Links     []bridge.Link `json:"links"`               // to networks
	Ports     []int         `json:"ports,omitempty"`
	Volumes   []string      `json:"volumes,omitempty"` // their ids
	Memory    int64         `json:"memory,omitempty"`
	MilliCPU  int64         `json:"milli_cpu,omitempty"`
	Private   string        `json:"private"`
}

// owner is a user inside a container.
type owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// replaceFile replaces a file of an owner on this machine.
func replaceFile(path string, content []byte, mode os.FileMode, to owner) error {
	return statefile.Replace(path, content, mode, to.UID, to.GID)
}

// checkID rejects ids that cannot be names of instances and directories.
func checkID(id string) error { return supervise.CheckID("system container", id) }

// ownerOf returns the owner of a file.
func ownerOf(info os.FileInfo) owner {
	stat := info.Sys().(*syscall.Stat_t)
	return owner{int(stat.Uid), int(stat.Gid)}
}

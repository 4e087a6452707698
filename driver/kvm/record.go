package kvm

import (
	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
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
	logFile     = "log"
	diskFile    = "disk.qcow2" // what differs from the image
	guestFile   = "guest.json" // the values that the guest has set
	controlFile = "control"    // the socket of the supervisor
	privateDir  = "private"    // on a machine that cannot keep files in memory
)

// These are in the private directory of an instance: they may contain secrets.
const (
	mdataFile = "mdata.json"
	seedFile  = "seed.iso"
)

// volumeDisk is in the directory of a volume.
const volumeDisk = "disk.raw"

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

	Ref      string        `json:"image"`    // as the manifest names it
	Image    string        `json:"image_id"` // as the store does
	HasDisk  bool          `json:"has_disk,omitempty"`
	UID      int           `json:"uid"` // of its QEMU process
	Links    []bridge.Link `json:"links,omitempty"`
	Forwards []forward     `json:"forwards,omitempty"` // without a bridge
	Ports    []int         `json:"ports,omitempty"`
	Volumes  []string      `json:"volumes,omitempty"` // their ids
	Memory   int64         `json:"memory"`
	MilliCPU int64         `json:"milli_cpu,omitempty"`
	CPUs     int           `json:"cpus"`
	Accel    string        `json:"accel"` // kvm or tcg
	Private  string        `json:"private"`
}

// forward is a port of the node that leads to one of an instance.
type forward struct {
	Address string `json:"address"` // of the node
	Port    int    `json:"port"`
	Target  int    `json:"target"`
}

// checkID rejects ids that cannot be names of instances and directories.
func checkID(id string) error { return supervise.CheckID("virtual machine", id) }

// machineName returns the name of an instance's QEMU process.
func machineName(id string) string { return "mariposa-" + id }

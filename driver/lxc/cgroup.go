package lxc

import (
	"fmt"
	"path/filepath"

	"mariposa/driver/cgroup"
)

// groupOf returns the cgroups that an instance has or would have. They have its limits; the
// container is below them, so that they outlive it. LXC creates the cgroup of a container in
// every hierarchy of the machine.
func (d *Driver) groupOf(id string) cgroup.Group {
	return groupNamed(d.groups, filepath.Join(d.options.Cgroup, fmt.Sprintf("%s.%08x", id, hashOf(d.options.Dir))))
}

func groupNamed(h cgroup.Hierarchy, name string) cgroup.Group {
	return cgroup.Group{Hierarchy: h, Name: name, Beside: []string{monitorOf(name)}}
}

// payloadOf and monitorOf return the cgroups that LXC creates: of the container, and of lxc-start
// itself, which the limits do not apply to.
func payloadOf(group string) string { return filepath.Join(group, "container") }
func monitorOf(group string) string { return group + ".monitor" }

// pivotOf returns where lxc-start moves itself before it removes the others.
func pivotOf(group string) string { return filepath.Join(filepath.Dir(group), "pivot") }

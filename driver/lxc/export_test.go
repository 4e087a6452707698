package lxc

import "context"

// GroupDir returns the directory of an instance's cgroup.
func GroupDir(d *Driver, id, controller string) string { return d.groupOf(id).Dir(controller) }

// SupervisorPID returns the process id of an instance's supervisor.
func SupervisorPID(d *Driver, id string) int {
	e, err := d.roster.Find(context.Background(), id)
	if err != nil {
		return 0
	}
	return e.State.Supervisor
}

// KillSessions does what a restarted agent does with commands of an earlier one.
func KillSessions(d *Driver, id string) {
	for _, s := range leftSessions(id) {
		s.kill(d.ctx, d.groupOf(id))
	}
}

// WithoutOverlay makes a driver assume that the kernel cannot map the ids of files.
func WithoutOverlay(d *Driver) {
	d.supportMu.Lock()
	defer d.supportMu.Unlock()
	d.support.overlay = false
}

// WithoutUserNS makes a driver assume that the kernel has no user namespaces.
func WithoutUserNS(d *Driver) {
	d.supportMu.Lock()
	defer d.supportMu.Unlock()
	d.support.userNS, d.support.noUserNS = false, "tests say so"
}

// Bridges returns the bridges that a driver has, except that of instances without a project.
func Bridges(d *Driver) []string { return d.options.Networks.Bridges() }

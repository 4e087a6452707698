package lxc

// GroupDir returns the directory of an instance's cgroup.
func GroupDir(d *Driver, id, controller string) string { return d.groupOf(id).dir(controller) }

// SupervisorPID returns the process id of an instance's supervisor.
func SupervisorPID(d *Driver, id string) int {
	e, err := d.find(id)
	if err != nil {
		return 0
	}
	return e.state.Supervisor
}

package process

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// changeLimits sets other limits of an instance. Those that cannot be set are described, as at a
// start.
func (d *Driver) changeLimits(e *entry, memory, milliCPU int64) error {
	s, st := e.spec, e.state
	s.Memory, s.MilliCPU = memory, milliCPU
	if err := writeJSON(filepath.Join(e.dir, specFile), s); err != nil {
		return err
	}
	e.spec = s
	if !e.live || e.stray {
		return nil
	}
	if st.Limits = d.hierarchy.changeLimits(&s); st.Limits == e.state.Limits {
		return nil
	}
	if err := writeJSON(filepath.Join(e.dir, stateFile), st); err != nil {
		return err
	}
	e.state = st
	d.refreshObserved(e)
	return nil
}

// changeLimits sets the limits of groups that have processes, and returns which are in force.
func (h hierarchy) changeLimits(s *spec) string {
	var g group
	memory, cpu, err := h.makeDirs(s, &g)
	if cpu != "" && cpu != memory { // version 1: without a limit it had no group
		err = errors.Join(err, moveInto(cpu, memory))
	}
	var set limitsSet
	switch {
	case s.Memory > 0:
		set.memory(s, h.limitMemory(memory, s.Memory, err))
	case memory != "":
		h.liftMemory(memory)
	}
	switch {
	case s.MilliCPU > 0:
		set.cpu(s, h.limitCPU(cpu, s.MilliCPU, err))
	case h.Unified != "":
		_ = writeControl(cpu, "cpu.max", "max") // without the controller, there is no limit
	case h.CPU != "":
		_ = writeControl(filepath.Join(h.CPU, "mariposa", s.Group), "cpu.cfs_quota_us", "-1") // likewise
	}
	return set.describe()
}

// liftMemory removes a memory limit. Without the controller, there is none.
func (h hierarchy) liftMemory(dir string) {
	if h.Unified != "" {
		_ = writeControl(dir, "memory.max", "max")
		_ = writeControl(dir, "memory.swap.max", "max")
		return
	}
	_ = writeControl(dir, "memory.memsw.limit_in_bytes", "-1") // the sum is never below the other one
	_ = writeControl(dir, "memory.limit_in_bytes", "-1")
}

// moveInto moves all processes of one group into another one of the same instance, including those
// that are created meanwhile.
func moveInto(dir, from string) error {
	for {
		there := group{dirs: []string{dir}}.pids()
		missing := slices.DeleteFunc(group{dirs: []string{from}}.pids(), func(pid int) bool { return slices.Contains(there, pid) })
		if len(missing) == 0 {
			return nil
		}
		for _, pid := range missing {
			err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
			if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return err
			}
		}
	}
}

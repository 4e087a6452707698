// Package island runs the tests of a package in namespaces of their own: nothing that they start,
// no bridge and no firewall rule can reach the network of the machine, and nothing of them outlives
// the tests.
package island

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	envStage     = "TEST_ISLAND_STAGE"
	envNamespace = "TEST_ISLAND_NETWORK" // the network namespace that the tests must not be in
	envDir       = "TEST_ISLAND_DIR"
)

// Unified is a variable that gives the tests cgroups of version 2 only.
const Unified = "TEST_ISLAND_UNIFIED"

// Enter runs the test binary again in namespaces of its own, and exits with its result. It returns
// only there. Call it first in TestMain.
func Enter() {
	switch os.Getenv(envStage) {
	case "":
		os.Exit(again("first", &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
		}, envNamespace+"="+namespace()))
	case "first":
		os.Exit(firstProcess())
	}
	if os.Getenv(envNamespace) == namespace() || os.Getenv(envNamespace) == "" {
		fmt.Fprintln(os.Stderr, "the tests are in the network namespace of the machine: they do not run there")
		os.Exit(1)
	}
}

// Dir returns a directory for all tests, which is removed at their end.
func Dir() string { return os.Getenv(envDir) }

// Outside returns the environment of a process that is to enter namespaces of its own again.
func Outside() []string { return append(os.Environ(), envStage+"=") }

func namespace() string {
	name, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return name
}

// firstProcess is the first process of the namespaces: it prepares them and reaps what nobody
// else waits for. Everything in them ends with it.
func firstProcess() int {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare the namespaces of the tests:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "mariposa-island-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	return again("tests", &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, envDir+"="+dir)
}

// again runs the test binary again.
func again(stage string, attr *syscall.SysProcAttr, env ...string) int {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...) //nolint:gosec // ourselves
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, attr
	cmd.Env = append(append(os.Environ(), env...), envStage+"="+stage)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err != nil && !errors.Is(err, syscall.EINTR):
			fmt.Fprintln(os.Stderr, err)
			return 1
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == cmd.Process.Pid:
			return 128 + int(status.Signal())
		}
	}
}

// prepare mounts what shows the new namespaces instead of those of the machine.
func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	cgroups, err := os.MkdirTemp("", "cgroups-")
	if err != nil {
		return err
	}
	defer os.Remove(cgroups)
	if err := unix.Mount("/sys/fs/cgroup", cgroups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	if os.Getenv(Unified) != "" {
		if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
			return err
		}
	} else if err := unix.Mount(cgroups, "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Unmount(cgroups, unix.MNT_DETACH); err != nil {
		return err
	}
	out, err := exec.CommandContext(context.Background(), "ip", "link", "set", "lo", "up").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

package enginetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Podman has no process that lasts: the service, each container and its name server come and go.
// What they share, they find in the file system and in their namespaces. So a process without a
// task holds a network namespace and a mount namespace, which all others enter; what they mount
// is gone with them.

// podmanConfig keeps Podman from what it shares with others on a machine by default.
const podmanConfig = `[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"] # more than the default may not be allowed here

[engine]
lock_type = "file"
cgroup_manager = "cgroupfs"
events_logger = "file"

[network]
network_backend = "netavark"
default_subnet_pools = [{"base" = "10.64.0.0/12", "size" = 24}]
`

// podmanRegistries lets Podman use the registry of the tests without TLS, as a Docker engine does.
const podmanRegistries = `[[registry]]
location = "%s"
insecure = true
`

// podmanSpaces prepares the namespaces. All instances of Podman on a machine keep their addresses
// and networks in the same directories below /run.
const podmanSpaces = `set -e
mkdir -p /run/containers /run/netns
mount --bind "$1/run-containers" /run/containers
mount --bind "$1/run-netns" /run/netns
ip link set lo up
touch "$1/ready"
exec sleep 1000000
`

// StartPodman starts the service of Podman in a directory.
func StartPodman(dir string) (*Engine, error) {
	e := &Engine{Dir: dir}
	for _, sub := range []string{"run-containers", "run-netns"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	var err error
	if e.door, err = new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	registries := fmt.Sprintf(podmanRegistries, e.door.Addr()) // read once, so the address must be known now
	for name, text := range map[string]string{"containers.conf": podmanConfig, "registries.conf": registries} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	holder := exec.CommandContext(context.Background(), "unshare", "--net", "--mount", "--propagation", "slave", "sh", "-c", podmanSpaces, "sh", dir)
	holder.Stderr = os.Stderr
	holder.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := startForLife(holder); err != nil {
		return nil, fmt.Errorf("cannot make namespaces for Podman: %w", err)
	}
	e.holder = holder
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "ready")); err == nil {
			return start(e)
		}
		if time.Now().After(deadline) || !isAlive(holder.Process.Pid) {
			e.stopPodman()
			return nil, errors.New("cannot make namespaces for Podman")
		}
	}
}

// podman returns a command of Podman in the namespaces and the directory of the engine.
func (e *Engine) podman(words ...string) *exec.Cmd {
	args := []string{
		"--target", strconv.Itoa(e.holder.Process.Pid), "--mount", "--net", "podman",
		"--root", filepath.Join(e.Dir, "root"), "--runroot", "/run/containers/storage" /* it must be short */, "--tmpdir", filepath.Join(e.Dir, "tmp"),
		"--volumepath", filepath.Join(e.Dir, "volumes"), "--network-config-dir", filepath.Join(e.Dir, "networks"),
	}
	cmd := exec.CommandContext(context.Background(), "nsenter", append(args, words...)...) //nolint:gosec // of the tests
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+filepath.Join(e.Dir, "containers.conf"), "CONTAINERS_REGISTRIES_CONF="+filepath.Join(e.Dir, "registries.conf"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// stopPodman ends the containers of Podman, and everything else in its namespaces.
func (e *Engine) stopPodman() {
	if e.door != nil { // no registry has used it
		_ = e.door.Close()
		e.door = nil
	}
	if !e.IsPodman() {
		return
	}
	out, err := e.podman("rm", "--all", "--force", "--time", "0").CombinedOutput()
	if err != nil && e.log != nil {
		fmt.Fprintf(e.log, "podman rm: %v: %s\n", err, out)
	}
	own, err := os.Readlink(spaceOf(e.holder.Process.Pid))
	if err != nil {
		return // all have ended
	}
	for left := true; left; time.Sleep(10 * time.Millisecond) {
		left = false
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range all {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if space, err := os.Readlink(spaceOf(pid)); err == nil && space == own && !isZombie(pid) {
				left = true
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
	}
}

// spaceOf is the mount namespace of a process.
func spaceOf(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/ns/mnt" }

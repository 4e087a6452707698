package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"syscall"

	"github.com/moby/moby/client"

	"mariposa/driver"
)

// explained is an error of the engine in our own words.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }

func (e *explained) Unwrap() error { return e.err }

var (
	takenPort  = regexp.MustCompile(`:(\d+)(?: failed: port is already allocated|: bind: address already in use)`)
	takenName  = regexp.MustCompile(`container name "?/?([^" ]+)"? is already in use`)
	noProgram  = regexp.MustCompile(`exec: "([^"]+)":`)
	tooOld     = regexp.MustCompile(`API version ([\d.]+) is not supported by this client: the minimum supported API version is ([\d.]+)`)
	tooNew     = regexp.MustCompile(`client version ([\d.]+) is too old. Minimum supported API version is ([\d.]+\d)`)
	daemonSays = "Error response from daemon: "
)

// explain turns an error of the engine into a sentence that says what is wrong and what to do.
func (d *Driver) explain(err error) error { return explain(d.theEngine(), err) }

func explain(engine string, err error) error {
	var known *explained
	var command *driver.CommandError
	switch {
	case err == nil, errors.As(err, &known), errors.As(err, &command), errors.Is(err, driver.ErrNotFound), errors.Is(err, errClosed), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return away(engine+" does not answer: it took too long", err)
	case client.IsErrConnectionFailed(err), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT) && strings.Contains(err.Error(), "dial"):
		return away(engine+" cannot be reached: is it running?", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return away(engine+" cannot be reached: it ended the connection", err)
	case errors.Is(err, syscall.EACCES), strings.Contains(err.Error(), "permission denied while trying to connect"):
		if engine == podmanName {
			return &explained{"the agent may not use Podman: run it as root", err}
		}
		return &explained{"the agent may not use " + engine + ": run it as root, or add its user to the group docker", err}
	}
	text := strings.TrimPrefix(err.Error(), daemonSays)
	if why := inOurWords(engine, text); why != "" {
		return &explained{why, err}
	}
	return &explained{engine + " says: " + strings.TrimSuffix(strings.TrimSpace(text), "."), err}
}

// away returns the error of an engine that did not answer.
func away(text string, err error) error {
	return &explained{text, fmt.Errorf("%w: %w", driver.ErrEngineAway, err)}
}

// inOurWords recognizes what the engine says; empty if it does not.
func inOurWords(engine, text string) string {
	if m := takenPort.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("port %s of this node is in use by another program or container: free it, or change `ports`", m[1])
	}
	if m := takenName.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("another container has the name %s: remove or rename it", m[1])
	}
	if m := tooOld.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s is too old: it has version %s of Docker's API, and Mariposa needs %s or newer, which Docker 19.03 has: update it", engine, m[1], m[2])
	}
	if m := tooNew.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s is too new for this version of Mariposa: it needs version %s of Docker's API, and Mariposa has %s: update Mariposa on this node", engine, m[2], m[1])
	}
	switch {
	case strings.Contains(text, "no space left on device"), strings.Contains(text, "disk quota exceeded"):
		return "the disk of this node is full: free some space, for example with `" + map[bool]string{true: "podman", false: "docker"}[engine == podmanName] + " image prune`"
	case strings.Contains(text, "executable file not found"), strings.Contains(text, "no such file or directory") && strings.Contains(text, "exec"):
		if m := noProgram.FindStringSubmatch(text); m != nil {
			return fmt.Sprintf("its image has no program %s: check `command` and `entrypoint`", m[1])
		}
		return "its image does not have the program to run: check `command` and `entrypoint`"
	case strings.Contains(text, "permission denied") && strings.Contains(text, "exec"):
		return "its program cannot be executed: permission denied"
	case strings.Contains(text, "No command specified"), strings.Contains(text, "no command specified"):
		return "its image does not say which program to run: set `command`"
	case strings.Contains(text, "unable to find user"), strings.Contains(text, "no matching entries in passwd"):
		return "its image does not have the user that it is to run as: check `user`"
	case strings.Contains(text, "invalid reference format"):
		return "the name of its image is not valid"
	case strings.Contains(text, "could not find free subnet"):
		return "Podman has no address range left for another network: remove networks, or configure more default_subnet_pools"
	case strings.Contains(text, "could not find an available"), strings.Contains(text, "all predefined address pools"):
		return engine + " has no address range left for another network: remove networks, or configure more default-address-pools"
	}
	return ""
}

package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"mariposa/driver/statefile"
)

// The sockets at which engines listen by default, the preferred first.
var defaultHosts = []string{client.DefaultDockerHost, "unix:///run/podman/podman.sock"}

// hostFile records which of the default sockets this node uses. A node never changes to another
// engine by itself: it would take all of its containers as gone.
const hostFile = "engine.json"

type hostRecord struct {
	Host string `json:"host"`
}

// newClient returns a client for the engine, which has not negotiated an API version yet.
func (d *Driver) newClient() (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if host := d.host(); host != "" {
		opts = []client.Opt{client.WithHost(host)}
	}
	api, err := client.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot use the Docker engine: %w", err)
	}
	return api, nil
}

// host returns where the engine listens; empty if the environment says so. Unless it is
// configured or recorded, it is the first default socket that exists.
func (d *Driver) host() string {
	if d.options.Host != "" || os.Getenv(client.EnvOverrideHost) != "" {
		return d.options.Host
	}
	var known hostRecord
	if err := statefile.Read(filepath.Join(d.options.Dir, hostFile), &known); err == nil && known.Host != "" {
		return known.Host
	}
	for _, host := range d.options.DefaultHosts {
		if _, err := os.Stat(strings.TrimPrefix(host, "unix://")); err == nil {
			return host
		}
	}
	return d.options.DefaultHosts[0]
}

// recordHost records the socket of an engine that was found, once it has answered.
func (d *Driver) recordHost(host string) error {
	if d.options.Host != "" || os.Getenv(client.EnvOverrideHost) != "" {
		return nil
	}
	path := filepath.Join(d.options.Dir, hostFile)
	var known hostRecord
	if err := statefile.Read(path, &known); err == nil && known.Host == host {
		return nil
	}
	return statefile.Write(path, hostRecord{Host: host})
}

// reach finds out which engine there is, and on which kernel, and agrees on an API version. A client that has agreed on
// one never takes a newer one, so an engine that was updated needs another client.
func (d *Driver) reach() (details map[string]string, kernel string, err error) {
	api, err := d.newClient()
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(d.ctx, probeTimeout)
	defer cancel()
	ping, err := api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true, ForceNegotiate: true})
	if err == nil && ping.OSType != "" && ping.OSType != "linux" {
		err = errors.New("the engine runs " + ping.OSType + " containers, not linux ones")
	}
	var version client.ServerVersionResult
	if err == nil {
		asking, stop := context.WithTimeout(d.ctx, listTimeout) // Podman runs several programs to find out
		version, err = api.ServerVersion(asking, client.ServerVersionOptions{})
		stop()
	}
	if err == nil {
		err = d.recordHost(api.DaemonHost())
	}
	if err != nil {
		_ = api.Close() // the error is the first one
		return nil, "", d.explain(err)
	}
	d.isPodman.Store(isPodman(version.Components))
	if old := d.client.Swap(api); old != nil {
		_ = old.Close() // requests in progress go on
	}
	return map[string]string{"engine": d.engineName() + " " + version.Version, "api": api.ClientVersion(), "host": api.DaemonHost()}, kernelOf(version.Components), nil
}

// kernelOf returns the kernel that an engine runs on, by its parts; empty if they do not say.
func kernelOf(parts []system.ComponentVersion) string {
	for _, part := range parts {
		if kernel := part.Details["KernelVersion"]; kernel != "" {
			return kernel
		}
	}
	return ""
}

const podmanName = "Podman"

// api returns the client of the engine.
func (d *Driver) api() *client.Client { return d.client.Load() }

// engineName returns the name of the engine.
func (d *Driver) engineName() string {
	if d.isPodman.Load() {
		return podmanName
	}
	return "Docker"
}

// isPodman reports whether an engine is Podman, by its parts.
func isPodman(parts []system.ComponentVersion) bool {
	for _, part := range parts {
		if part.Name == "Podman Engine" {
			return true
		}
	}
	return false
}

// theEngine returns the engine as the beginning of a sentence.
func (d *Driver) theEngine() string {
	if d.isPodman.Load() {
		return podmanName
	}
	return "the Docker engine"
}

package main

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"mariposa/driver/docker"
)

// dockerFlags are the flags for containers.
type dockerFlags struct {
	host    string
	publish string
}

func (f *dockerFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.host, "docker", "", "Docker engine or Podman that runs containers, such as unix:///run/docker-2.sock; off for none (default: DOCKER_HOST, or the socket of Docker or Podman)")
	to.StringVar(&f.publish, "docker-publish", "0.0.0.0", "address of this machine at which containers publish the ports that a manifest fixes")
}

// options returns how the node uses its engine; nil if it uses none.
func (f *dockerFlags) options() (*docker.Options, error) {
	if f.host == "off" {
		return nil, nil
	}
	if f.host != "" && !strings.Contains(f.host, "://") {
		return nil, errors.New("--docker must be the address of an engine, such as unix:///var/run/docker.sock, or off")
	}
	at, err := netip.ParseAddr(f.publish)
	if err != nil {
		return nil, errors.New("--docker-publish must be an address of this machine, such as 127.0.0.1")
	}
	return &docker.Options{Host: f.host, Publish: at}, nil
}

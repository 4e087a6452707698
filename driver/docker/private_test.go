package docker

import (
	"errors"
	"strings"
	"testing"

	"mariposa/driver"
)

func TestRepositoriesAreNamedAsTheEngineNamesThem(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"nginx": "nginx", "nginx:1.25": "nginx", "library/nginx": "nginx", "docker.io/library/nginx:1": "nginx", "index.docker.io/acme/web": "acme/web",
		"acme/web@sha256:ab": "acme/web", "registry.example.com:5000/shop/web:1@sha256:ab": "registry.example.com:5000/shop/web",
		"registry.example.com:5000/library/web": "registry.example.com:5000/library/web", "library/a/b": "library/a/b",
	} {
		if got := repositoryOf(image); got != want {
			t.Errorf("%s is of %s, want %s", image, got, want)
		}
	}
}

// A start that failed because the runtime crashed is repeated, one that failed for a reason is not.
func TestACrashOfTheRuntimeIsRecognized(t *testing.T) {
	t.Parallel()
	const failed = "Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
	for text, crashed := range map[string]bool{
		failed + "error during container init: read init-p: connection reset by peer: unknown":                                                                                                               true,
		failed + `error during container init: writing syncT "procResume": write init-p: broken pipe: unknown`:                                                                                               true,
		failed + "error during container init: %!w(<nil>): unknown":                                                                                                                                          true,
		failed + `error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: time="2026-11-19T00:12:31Z" level=fatal msg="no such file or directory": unknown`: true,
		failed + `error running hook #0: error running hook: exit status 1, stdout: , stderr: failed to set IPv6 gateway: permission denied: unknown`:                                                        false,
		failed + "container init was OOM-killed (memory limit too low?): unknown":                                                                                                                            false,
		failed + `exec: "/nothing": stat /nothing: no such file or directory: unknown`:                                                                                                                       false,
		failed + `error during container init: error setting cgroup config for procHooks process: failed to write: unknown`:                                                                                  false,
	} {
		if isRuntimeCrash(errors.New(text)) != crashed {
			t.Errorf("%s: a crash: %t", text, !crashed)
		}
	}
	if isRuntimeCrash(nil) {
		t.Error("no error is a crash")
	}
}

// noDoors is a DNS server of a node.
type noDoors struct{ driver.NameServer }

func TestANodeSaysWhyContainersCannotResolveNames(t *testing.T) {
	t.Parallel()
	d := &Driver{}
	d.isPodman.Store(true)
	if why := d.whyNoNames(); why != "" || d.mayOpenDoors() {
		t.Errorf("without a DNS server: %q", why)
	}
	d.options.Names = noDoors{}
	if why := d.whyNoNames(); !strings.Contains(why, "Podman") || d.mayOpenDoors() {
		t.Errorf("with Podman: %q", why)
	}
}

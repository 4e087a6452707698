package enginetest

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"
)

// RegistryHost is where an engine finds its registry: in its own network namespace.
const RegistryHost = "127.0.0.1:5000"

// Registry is a registry beside an engine.
type Registry struct {
	engine *Engine
	cmd    *exec.Cmd
	done   chan struct{}
}

const registryConfig = `version: 0.1
log: {level: error}
storage:
  filesystem: {rootdirectory: %s}
  delete: {enabled: true}
http: {addr: %s}
`

// The login to a private registry, and its entry in a password file.
const (
	RegistryUser     = "builder"
	RegistryPassword = "let-me-in"
	registryEntry    = RegistryUser + ":$2b$04$NRgJJ.yZlcrgEQtPEf4U5OtJSw.inS4gsa7wsFphRvqUziTT8LXbu\n"
)

// StartRegistry starts a registry in the network namespace of the engine. It ends with Stop.
func (e *Engine) StartRegistry() (*Registry, error) { return e.startRegistry("") }

// StartPrivateRegistry starts a registry that wants a login.
func (e *Engine) StartPrivateRegistry() (*Registry, error) {
	passwords := filepath.Join(e.Dir, "registry.passwords")
	if err := os.WriteFile(passwords, []byte(registryEntry), 0o600); err != nil {
		return nil, err
	}
	return e.startRegistry("auth: {htpasswd: {realm: test, path: " + passwords + "}}\n")
}

func (e *Engine) startRegistry(more string) (*Registry, error) {
	config := filepath.Join(e.Dir, "registry.yml")
	if err := os.WriteFile(config, append(fmt.Appendf(nil, registryConfig, filepath.Join(e.Dir, "registry"), RegistryHost), more...), 0o600); err != nil {
		return nil, err
	}
	space := "--net=/proc/" + strconv.Itoa(e.cmd.Process.Pid) + "/ns/net"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "nsenter", space, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot set up the network of the engine: %w: %s", err, out)
	}
	basic := base64.StdEncoding.EncodeToString([]byte(RegistryUser + ":" + RegistryPassword)) // an open one ignores it
	r := &Registry{engine: e, done: make(chan struct{})}
	r.cmd = exec.CommandContext(context.Background(), "nsenter", space, "docker-registry", "serve", config)
	r.cmd.Stdout, r.cmd.Stderr = e.log, e.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start docker-registry: %w", err)
	}
	go func() {
		_ = r.cmd.Wait() // Stop kills it
		close(r.done)
	}()
	for {
		if err := exec.CommandContext(ctx, "nsenter", space, "/bin/busybox", "wget", "-q", "-O", "/dev/null", "--header", "Authorization: Basic "+basic, "http://"+RegistryHost+"/v2/").Run(); err == nil {
			return r, nil
		}
		select {
		case <-r.done:
			return nil, fmt.Errorf("docker-registry has ended: see engine.log")
		case <-ctx.Done():
			r.Stop()
			return nil, fmt.Errorf("docker-registry does not answer")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the registry; its images are lost only with the engine's directory.
func (r *Registry) Stop() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.done
}

// registryAuth is the login as the engine expects it; an open registry ignores it.
func registryAuth() string {
	return base64.URLEncoding.EncodeToString([]byte(`{"username":"` + RegistryUser + `","password":"` + RegistryPassword + `"}`))
}

// Push builds an image from a Dockerfile and pushes it under a name such as shop/web:1. It
// returns its digest. The engine keeps no copy of it.
func (r *Registry) Push(ctx context.Context, name, dockerfile string) (digest string, err error) {
	ref := RegistryHost + "/" + name
	if err := r.engine.Build(ctx, ref, dockerfile); err != nil {
		return "", err
	}
	pushed, err := r.engine.API.ImagePush(ctx, ref, client.ImagePushOptions{RegistryAuth: registryAuth()})
	if err != nil {
		return "", err
	}
	defer pushed.Close() // it was only read
	text, err := io.ReadAll(pushed)
	if err != nil || strings.Contains(string(text), `"error"`) {
		return "", fmt.Errorf("the push of %s failed: %w: %s", ref, err, text)
	}
	is, err := r.engine.API.ImageInspect(ctx, ref)
	if err != nil {
		return "", err
	}
	for _, known := range is.RepoDigests {
		_, digest, _ = strings.Cut(known, "@")
	}
	_, err = r.engine.API.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true})
	return digest, err
}

package enginetest

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"
)

// Registry is a registry beside an engine.
type Registry struct {
	Host string // where the engine and the machine find it, such as 127.0.0.1:5000

	engine *Engine
	config string       // the path of its configuration
	door   net.Listener // leads from the machine into the network namespace of the engine
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
	door := e.door
	if e.door = nil; door == nil {
		var err error
		if door, err = new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	host := door.Addr().String()
	config := filepath.Join(e.Dir, "registry.yml")
	if err := os.WriteFile(config, append(fmt.Appendf(nil, registryConfig, filepath.Join(e.Dir, "registry"), host), more...), 0o600); err != nil {
		return nil, err
	}
	r := &Registry{Host: host, engine: e, config: config, door: door}
	if err := r.Launch(); err != nil {
		_ = door.Close() // the error is the first one
		return nil, err
	}
	go r.forward() // ends with Stop
	return r, nil
}

// Launch starts the registry, also again after its engine was killed: the engine has another network
// namespace then.
func (r *Registry) Launch() error {
	r.kill()
	space := "--net=/proc/" + strconv.Itoa(r.engine.cmd.Process.Pid) + "/ns/net"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	basic := base64.StdEncoding.EncodeToString([]byte(RegistryUser + ":" + RegistryPassword)) // an open one ignores it
	cmd, done := exec.CommandContext(context.Background(), "nsenter", space, "docker-registry", "serve", r.config), make(chan struct{})
	cmd.Stdout, cmd.Stderr = r.engine.log, r.engine.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start docker-registry: %w", err)
	}
	go func() {
		_ = cmd.Wait() // kill ends it
		close(done)
	}()
	r.cmd, r.done = cmd, done
	for {
		if err := exec.CommandContext(ctx, "nsenter", space, "/bin/busybox", "wget", "-q", "-O", "/dev/null", "--header", "Authorization: Basic "+basic, "http://"+r.Host+"/v2/").Run(); err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("docker-registry has ended: see engine.log")
		case <-ctx.Done():
			r.kill()
			return fmt.Errorf("docker-registry does not answer")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends its process, if it has one.
func (r *Registry) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill() // it may have ended
		<-r.done
	}
}

// forward connects those who ask on the machine with the registry.
func (r *Registry) forward() {
	for {
		from, err := r.door.Accept()
		if err != nil {
			return // Stop has closed it
		}
		to, err := r.engine.Dial(context.Background(), r.Host)
		if err != nil {
			_ = from.Close() // the client sees that nobody is there
			continue
		}
		for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
			go func() {
				_, _ = io.Copy(way[0], way[1]) // until one of them ends
				_, _ = way[0].Close(), way[1].Close()
			}()
		}
	}
}

// Stop ends the registry; its images are lost only with the engine's directory.
func (r *Registry) Stop() {
	_ = r.door.Close()
	r.kill()
}

// registryAuth is the login as the engine expects it; an open registry ignores it.
func registryAuth() string {
	return base64.URLEncoding.EncodeToString([]byte(`{"username":"` + RegistryUser + `","password":"` + RegistryPassword + `"}`))
}

// pushedDigest is the digest of an image in the report of its push.
var pushedDigest = regexp.MustCompile(`[Dd]igest"?: ?"?(sha256:[0-9a-f]{64})`)

// Push builds an image from a Dockerfile and pushes it under a name such as shop/web:1. It
// returns its digest. The engine keeps no copy of it.
func (r *Registry) Push(ctx context.Context, name, dockerfile string) (digest string, err error) {
	ref := r.Host + "/" + name
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
	said := pushedDigest.FindSubmatch(text)
	if said == nil {
		return "", fmt.Errorf("the push of %s has no digest: %s", ref, text)
	}
	digest = string(said[1])
	_, err = r.engine.API.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true})
	return digest, err
}

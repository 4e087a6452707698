package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	dockerclient "github.com/moby/moby/client"

	"mariposa/assembly"
)

// labelBench marks the containers that the benchmark starts itself.
const labelBench = "mariposa.bench"

// rawEngine is the engine as anyone can use it, without Mariposa.
type rawEngine struct {
	api     *dockerclient.Client
	version string
	run     string // name of this run: of the project, in labels and in the image
	image   string // of the containers
	isOurs  bool   // the benchmark has made the image

	mu      sync.Mutex
	started []string // raw containers
}

// openEngine reaches an engine.
func openEngine(ctx context.Context, host string) (*rawEngine, error) {
	opts := []dockerclient.Opt{dockerclient.FromEnv}
	if host != "" {
		opts = []dockerclient.Opt{dockerclient.WithHost(host)}
	}
	api, err := dockerclient.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("--docker: %w", err)
	}
	asking, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	v, err := api.ServerVersion(asking, dockerclient.ServerVersionOptions{})
	if err != nil {
		_ = api.Close() // the first error is the one to report
		return nil, fmt.Errorf("no Docker engine answers at %s: start it, or name another one with --docker, such as --docker unix:///run/docker-2.sock (%w)", api.DaemonHost(), err)
	}
	return &rawEngine{api: api, version: v.Version, run: "bench-" + strings.ToLower(assembly.Secret()[:8])}, nil
}

func (e *rawEngine) close() { _ = e.api.Close() } // nothing is written to it

// prepare makes a network, and a tiny image unless there is one to use.
func (e *rawEngine) prepare(ctx context.Context, image string) error {
	_, err := e.api.NetworkCreate(ctx, e.run, dockerclient.NetworkCreateOptions{Driver: "bridge", Labels: map[string]string{labelBench: e.run}})
	if err != nil {
		return fmt.Errorf("cannot create a network: %w", err)
	}
	e.image = image
	if image == "" {
		return e.makeImage(ctx)
	}
	if _, err = e.api.ImageInspect(ctx, image); errdefs.IsNotFound(err) {
		return fmt.Errorf("the engine does not have the image %s: pull it first, so that this is not measured", image)
	}
	return err
}

func (e *rawEngine) makeImage(ctx context.Context) error {
	if runtime.GOARCH != "amd64" {
		return errors.New("the benchmark can only make an image for amd64: name one that the engine has with --image; its command must keep running")
	}
	files, err := archive("Dockerfile", []byte(dockerfile), "wait", waiter())
	if err != nil {
		return err
	}
	e.image, e.isOurs = "mariposa-"+e.run+":1", true
	r, err := e.api.ImageBuild(ctx, files, dockerclient.ImageBuildOptions{Tags: []string{e.image}, Remove: true, ForceRemove: true, NoCache: true})
	if err != nil {
		return fmt.Errorf("cannot make an image: %w", err)
	}
	defer r.Body.Close() // it was only read
	text, err := io.ReadAll(r.Body)
	if err == nil {
		_, err = e.api.ImageInspect(ctx, e.image)
	}
	if err != nil {
		return fmt.Errorf("cannot make an image: %w\n%s", err, text)
	}
	return nil
}

// dockerfile describes the tiny image. The first process of a container ignores every signal
// that it has no handler for, except SIGKILL.
const dockerfile = "FROM scratch\nCOPY wait /wait\nCMD [\"/wait\"]\nSTOPSIGNAL SIGKILL\n"

// startRaw creates and starts containers as fast as the engine can, as many at once as an agent
// would, and returns how long it took.
func (e *rawEngine) startRaw(ctx context.Context, network string, n, atOnce int) (time.Duration, error) {
	began := time.Now()
	calls := context.WithoutCancel(ctx) // a canceled call may create a container that nobody knows of
	err := forEach(ctx, n, atOnce, func(context.Context, int) error {
		c, err := e.api.ContainerCreate(calls, dockerclient.ContainerCreateOptions{
			Config:     &container.Config{Image: e.image, Labels: map[string]string{labelBench: e.run}},
			HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode(network)},
		})
		if err != nil {
			return err
		}
		e.mu.Lock()
		e.started = append(e.started, c.ID)
		e.mu.Unlock()
		_, err = e.api.ContainerStart(calls, c.ID, dockerclient.ContainerStartOptions{})
		return err
	})
	return time.Since(began), err
}

// removeRaw removes the raw containers.
func (e *rawEngine) removeRaw(ctx context.Context) error {
	e.mu.Lock()
	ids := e.started
	e.started = nil
	e.mu.Unlock()
	return e.remove(ctx, ids)
}

func (e *rawEngine) remove(ctx context.Context, ids []string) error {
	return forEach(ctx, len(ids), 8, func(ctx context.Context, n int) error {
		_, err := e.api.ContainerRemove(ctx, ids[n], dockerclient.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// kill ends a container as a crash does, and returns how long it took until the engine reported
// its end.
func (e *rawEngine) kill(ctx context.Context, id string) (<-chan time.Duration, error) {
	following, stop := context.WithCancel(ctx)
	all := e.api.Events(following, dockerclient.EventsListOptions{Filters: make(dockerclient.Filters).Add("container", id).Add("event", string(events.ActionDie))})
	began, reported := time.Now(), make(chan time.Duration, 1)
	go func() {
		defer stop()
		select {
		case <-all.Messages:
			reported <- time.Since(began)
		case <-all.Err: // the context has ended, or the engine
		}
		close(reported)
	}()
	_, err := e.api.ContainerKill(ctx, id, dockerclient.ContainerKillOptions{Signal: "KILL"})
	if err != nil {
		stop()
	}
	return reported, err
}

// removeAll removes everything that this run has left in the engine: raw containers, what an
// agent that has ended could not remove, and the image.
func (e *rawEngine) removeAll(ctx context.Context) error {
	var failed []error
	for _, label := range []string{labelBench + "=" + e.run, "mariposa.project=" + e.run} {
		ours := make(dockerclient.Filters).Add("label", label)
		list, err := e.api.ContainerList(ctx, dockerclient.ContainerListOptions{All: true, Filters: ours})
		var ids []string
		for _, c := range list.Items {
			ids = append(ids, c.ID)
		}
		failed = append(failed, err, e.remove(ctx, ids))
		networks, err := e.api.NetworkList(ctx, dockerclient.NetworkListOptions{Filters: ours})
		failed = append(failed, err)
		for _, n := range networks.Items {
			failed = append(failed, e.removeNetwork(ctx, n.ID, n.Name))
		}
	}
	if e.isOurs {
		if _, err := e.api.ImageRemove(ctx, e.image, dockerclient.ImageRemoveOptions{Force: true, PruneChildren: true}); !errdefs.IsNotFound(err) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// removeNetwork removes a network. An engine may count containers in it for a moment after they
// are gone.
func (e *rawEngine) removeNetwork(ctx context.Context, id, name string) error {
	for n := 0; ; n++ {
		_, err := e.api.NetworkRemove(ctx, id, dockerclient.NetworkRemoveOptions{})
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if n == 20 || pause(ctx, 250*time.Millisecond) != nil {
			return fmt.Errorf("the network %s is left, because the engine counts containers in it that are gone: restart the engine, then `docker network rm %s` (%w)", name, name, err)
		}
	}
}

// archive returns a tar archive with two files.
func archive(first string, a []byte, second string, b []byte) (io.Reader, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, content []byte) error {
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	}
	return &out, errors.Join(add(first, a), add(second, b), w.Close())
}

// waiter returns the smallest program for Linux on amd64 that waits forever: a header, one
// segment and three instructions. Its start takes no time that would be measured.
func waiter() []byte {
	const base, headers = 0x400000, 64 + 56
	code := []byte{
		0xb8, 34, 0, 0, 0, // mov eax, 34 (the system call pause)
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp to the beginning
	}
	size := uint64(headers + len(code))
	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	for _, field := range []any{
		uint16(2), uint16(62), uint32(1), // an executable for amd64
		uint64(base + headers), uint64(64), uint64(0), // entry, program headers, no sections
		uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000), // one segment: read, execute
	} {
		_ = binary.Write(&b, binary.LittleEndian, field) // a buffer does not fail
	}
	b.Write(code)
	return b.Bytes()
}

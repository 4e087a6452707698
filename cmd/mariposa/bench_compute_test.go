package main_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	dockerclient "github.com/moby/moby/client"

	"mariposa/driver/docker/enginetest"
)

// contents lists everything that an engine has: containers, networks and images.
func contents(t *testing.T, e *enginetest.Engine) string {
	t.Helper()
	var all []string
	containers, err := e.API.ContainerList(t.Context(), dockerclient.ContainerListOptions{All: true})
	must(t, err)
	for _, c := range containers.Items {
		all = append(all, fmt.Sprintf("container %s of %s", c.ID[:12], c.Image))
	}
	networks, err := e.API.NetworkList(t.Context(), dockerclient.NetworkListOptions{})
	must(t, err)
	for _, n := range networks.Items {
		if !slices.Contains([]string{"bridge", "host", "none"}, n.Name) {
			// The engine sometimes counts containers that are gone and refuses to remove their
			// network. Only what it would remove was left behind.
			if _, err := e.API.NetworkRemove(t.Context(), n.ID, dockerclient.NetworkRemoveOptions{}); err != nil {
				continue
			}
		}
		all = append(all, "network "+n.Name)
	}
	images, err := e.API.ImageList(t.Context(), dockerclient.ImageListOptions{All: true})
	must(t, err)
	for _, i := range images.Items {
		all = append(all, "image "+i.ID)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// It measures everything and leaves nothing behind, also when it is interrupted. The name is short:
// it is part of the paths of sockets.
func TestComputeBenchmark(t *testing.T) {
	t.Parallel()
	e, err := enginetest.Start(t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, e.Stop()) })
	h := &devServer{t: t, dir: t.TempDir()}
	before := contents(t, e)
	left := func(when string) {
		t.Helper()
		if now := contents(t, e); now != before {
			t.Errorf("%s, the engine has\n%s\nbut had\n%s", when, now, before)
		}
	}
	got := h.bench([]string{"store", "image", "replace_over_raw_ms", "fsync_ms", "cpu_s"}, []string{
		"engine", "containers", "parallel", "rounds", "raw_s", "up_s", "ratio", "raw_default_network_s", "ratio_default_network", "kills", "raw_one_ms",
		"end_reported_ms", "replace_assigned_ms", "replace_ms", "most_containers", "agent_rss_mb", "agent_peak_mb", "commit_ms",
	}, "compute", "--docker", e.Host(), "--containers", "3", "--rounds", "2", "--kills", "2", "--most-containers", "5")
	if len(got["rounds"].([]any)) != 2 || got["kills"] != 2.0 {
		t.Errorf("it measured %v", got)
	}
	left("after a run")

	out := &lockedBuffer{}
	h.out = out
	cmd := launch(t, program(context.Background(), h.dir, nil, "bench", "compute", "--docker", e.Host(), "--image", enginetest.Image, "--containers", "8", "--most-containers", "8"), out)
	defer end(cmd)
	h.await("it starts a service", func() bool { return strings.Contains(out.String(), "starting a service of 8 containers") })
	must(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code == 0 || !strings.Contains(out.String(), "interrupted while starting containers") || strings.Contains(out.String(), "up_s") {
		t.Errorf("interrupted: exit %d\n%s", code, out)
	}
	left("after an interruption")

	h.cannot("the engine does not have the image no/such:1: pull it first", "bench", "compute", "--docker", e.Host(), "--image", "no/such:1")
	left("without its image")
}

func TestComputeBenchmarkNeedsAnEngine(t *testing.T) {
	t.Parallel()
	h := &devServer{t: t, dir: t.TempDir()}
	h.cannot("no Docker engine answers at unix://"+h.dir+"/none.sock: start it, or name another one with --docker", "bench", "compute", "--docker", "unix://"+h.dir+"/none.sock")
	for _, wrong := range [][]string{{"--docker", "off"}, {"--docker", "/run/x.sock"}, {"--docker", "unix:///x", "--kills", "0"}, {"--docker", "unix:///x", "--most-containers", "3"}} {
		if _, said, code := h.mariposa("", append([]string{"bench", "compute"}, wrong...)...); code != 2 {
			t.Errorf("%v: exit %d\n%s", wrong, code, said)
		}
	}
}

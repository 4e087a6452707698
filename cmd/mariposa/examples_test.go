package main_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"

	dockerclient "github.com/moby/moby/client"
)

// tiersPage is what the front end of the examples with three tiers answers.
type tiersPage struct {
	Greeting string
	Web      struct{ Name string }
	Backend  *struct {
		Greeting, Name string
		Store          struct {
			Name   string
			Visits int
		}
	}
}

// visit asks a front end for its page. It returns nil unless all tiers answered.
func visit(ctx context.Context, at string, dial func(ctx context.Context, address string) (net.Conn, error)) *tiersPage {
	client := &http.Client{Timeout: limit, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/", http.NoBody)
	if err != nil {
		return nil
	}
	res, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close() // it was only read
	b, err := io.ReadAll(res.Body)
	page := &tiersPage{}
	if err != nil || json.Unmarshal(b, page) != nil || page.Backend == nil || page.Backend.Store.Visits == 0 {
		return nil
	}
	return page
}

// The example with three tiers in containers, as its README says: the images, the project, the
// page behind the port of the node, and a store that is killed.
func TestTheComposeLikeExample(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	const example = "../../examples/compose-like/"
	build := exec.CommandContext(t.Context(), example+"images.sh", filepath.Join(binaries, "hello"))
	build.Env = append(build.Environ(), "DOCKER_HOST="+a.engine.Host())
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	a.start()
	a.ok("project", "create", "tiers", "-m", example+"mariposa.yaml", "--wait")
	// The port is published in the network of the engine.
	var page *tiersPage
	open := func() bool {
		page = visit(t.Context(), "127.0.0.1:8080", a.engine.Dial)
		return page != nil
	}
	a.await("the front end answers", open)
	first := page.Backend.Store
	store, known := a.instances("tiers")[first.Name]
	if page.Greeting != "hello" || !known || store.ServiceName != "store" || store.Details["image_version"] != "1.0.0" {
		t.Errorf("it answers %+v, and the store is %+v", page, store)
	}
	_, err := a.engine.API.ContainerKill(t.Context(), store.PhysicalID, dockerclient.ContainerKillOptions{Signal: "KILL"})
	must(t, err)
	a.await("another store continues to count", func() bool {
		return open() && page.Backend.Store.Name != first.Name && page.Backend.Store.Visits > first.Visits
	})
	a.ok("project", "delete", "tiers", "--yes", "-f", "--wait")
}

package assembly_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/agent"
	"mariposa/assembly"
	"mariposa/auth"
	"mariposa/client"
	"mariposa/clock"
	"mariposa/seal"
	"mariposa/store/memory"
)

// skewed is a clock that is wrong.
type skewed struct {
	clock.Real
	by time.Duration
}

func (c skewed) Now() time.Time { return c.Real.Now().Add(c.by) }

// The nodes of one replica report to it, and the other one plans half of the projects.
// With clocks an hour apart, planners took failures for old ones and never backed off.
func TestReplicasWithDifferentClocksBackOff(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"an hour ahead": time.Hour, "an hour behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			skewedReplicas(t, by)
		})
	}
}

func skewedReplicas(t *testing.T, by time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	st, ring, join, token := memory.New(clock.Real{}), seal.NewRing(), assembly.Secret(), assembly.Secret()
	must(t, auth.EnsureToken(ctx, st, token, mariposa.TokenSpec{Use: mariposa.TokenAdmin, Name: "test", User: mariposa.FirstUser, Created: time.Now()}, "for a test"))
	var urls []string
	for i, by := range []time.Duration{0, by} {
		c, err := assembly.Start(ctx, assembly.Config{
			Store: st, Ring: ring, Listen: "127.0.0.1:0", JoinToken: join, Version: "test", Replica: fmt.Sprint("r", i), Clock: skewed{by: by},
		})
		must(t, err)
		t.Cleanup(c.Stop)
		urls = append(urls, c.URL)
	}
	var nodes sync.WaitGroup
	t.Cleanup(nodes.Wait)
	t.Cleanup(cancel)
	for i, url := range urls {
		cfg := assembly.NodeConfig{Dir: filepath.Join(t.TempDir(), "node"), Name: fmt.Sprint("n", i), Dummy: true, InMemory: true}
		nodes.Go(func() { _ = assembly.RunNode(ctx, agent.Link{Servers: []string{url}, Token: join}, cfg) })
	}
	c, err := client.New(client.Options{URL: urls[0], Token: token})
	must(t, err)
	await(t, "both nodes", func() bool {
		all, err := c.Nodes(ctx)
		return err == nil && len(all.Nodes) == 2
	})
	projects := []string{"p1", "p2", "p3", "p4", "p5", "p6"} // each replica plans some of them
	for _, p := range projects {
		_, err := c.CreateProject(ctx, p, []byte("services: {web: {compute_type: dummy, scale: 2, dummy: {fail_prop: \"yes\"}}}\n"), "")
		must(t, err)
	}
	for _, p := range projects {
		await(t, p+" to back off", func() bool {
			s, err := c.State(ctx, p, "")
			if err != nil || len(s.Projects[0].Services) == 0 {
				return false
			}
			b := s.Projects[0].Services[0].Backoff
			return b != nil && b.Failures >= 3
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for late := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

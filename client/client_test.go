package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mariposa"
	"mariposa/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server and a client for it that does not wait between tries.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(Options{URL: srv.URL + "/", Token: "s3cret", UserAgent: "test/1", Organization: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return c
}

// asked is a request as a server saw it, in one line.
func asked(r *http.Request) string {
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.RequestURI()
	if len(body) > 0 {
		line += " " + r.Header.Get("Content-Type") + " " + string(body)
	}
	return line
}

func TestEveryMethodAsksForItsPath(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	drop := func(_ any, err error) error { return err }
	for _, c := range []struct {
		want string
		call func(c *Client) error
	}{
		{"GET /v1/projects?name=x&organization=acme", func(c *Client) error { return drop(c.Projects(ctx, "x")) }},
		{"POST /v1/projects?message=hi+there&name=x&organization=acme application/yaml a: 1", func(c *Client) error { return drop(c.CreateProject(ctx, "x", []byte("a: 1"), "hi there")) }},
		{"GET /v1/projects/a%2Fb?organization=acme", func(c *Client) error { return drop(c.Project(ctx, "a/b")) }},
		{"PUT /v1/projects/x/manifest?message=m&organization=acme&previous=abc&rolling=25%25 application/yaml a: 2", func(c *Client) error {
			return drop(c.UpdateManifest(ctx, "x", []byte("a: 2"), Update{Previous: "abc", Rolling: "25%", Message: "m"}))
		}},
		{"PUT /v1/projects/x/manifest?force=true&organization=acme application/yaml a: 2", func(c *Client) error {
			return drop(c.UpdateManifest(ctx, "x", []byte("a: 2"), Update{Force: true}))
		}},
		{"GET /v1/projects/x/manifest?organization=acme", func(c *Client) error { return drop(c.Manifest(ctx, "x")) }},
		{"DELETE /v1/projects/x?force=true&organization=acme", func(c *Client) error { return drop(c.DeleteProject(ctx, "x", true)) }},
		{"GET /v1/projects/x/versions?organization=acme", func(c *Client) error { return drop(c.Versions(ctx, "x")) }},
		{"GET /v1/projects/x/versions/3?organization=acme", func(c *Client) error { return drop(c.Version(ctx, "x", "3")) }},
		{`PUT /v1/projects/x/state?organization=acme application/json {"action":"reprovision","rolling":2,"services":["web"]}`, func(c *Client) error {
			return drop(c.Act(ctx, "x", contract.Action{Action: "reprovision", Rolling: Amount("2"), Services: []string{"web"}}))
		}},
		{`PUT /v1/projects/x/services/web/state?organization=acme application/json {"action":"stop"}`, func(c *Client) error {
			return drop(c.ActOnService(ctx, "x", "web", contract.Action{Action: "stop"}))
		}},
		{`PUT /v1/projects/x/state?organization=acme application/json {"action":"scale","scale":{"api":"-1","db":3,"web":"+2"}}`, func(c *Client) error {
			return drop(c.Scale(ctx, "x", map[string]string{"web": "+2", "db": "3", "api": "-1"}))
		}},
		{"GET /v1/state", func(c *Client) error { return drop(c.State(ctx, "", "")) }},
		{"GET /v1/state?organization=acme&project=x&service=web", func(c *Client) error { return drop(c.State(ctx, "x", "web")) }},
		{"GET /v1/queue?all=true&organization=acme&project=x&state=failed", func(c *Client) error {
			return drop(c.Queue(ctx, TaskFilter{Project: "x", State: "failed", All: true}))
		}},
		{"GET /v1/queue/t1", func(c *Client) error { return drop(c.Task(ctx, "t1")) }},
		{"GET /v1/instances?node=n1&state=running", func(c *Client) error { return drop(c.AllInstances(ctx, InstanceFilter{Node: "n1", State: "running"})) }},
		{"GET /v1/instances/i1", func(c *Client) error { return drop(c.Instance(ctx, "i1")) }},
		{`PUT /v1/instances/i1 application/json {"action":"crash"}`, func(c *Client) error { return drop(c.ActOnInstance(ctx, "i1", "crash")) }},
		{"GET /v1/events?limit=5&organization=acme&project=x&since=7", func(c *Client) error { return drop(c.Events(ctx, EventFilter{Since: 7, Project: "x", Limit: 5})) }},
		{"GET /v1/events?limit=1", func(c *Client) error { return drop(c.Revision(ctx)) }},
		{"GET /v1/nodes", func(c *Client) error { return drop(c.Nodes(ctx)) }},
		{"GET /v1/nodes/n1", func(c *Client) error { return drop(c.Node(ctx, "n1")) }},
		{`PUT /v1/nodes/n1 application/json {"action":"lose"}`, func(c *Client) error { return drop(c.ActOnNode(ctx, "n1", contract.NodeAction{Action: "lose"})) }},
		{"DELETE /v1/nodes/n1", func(c *Client) error { return drop(c.DeleteNode(ctx, "n1", false)) }},
		{"DELETE /v1/nodes/n1?force=true", func(c *Client) error { return drop(c.DeleteNode(ctx, "n1", true)) }},
		{"GET /healthz", func(c *Client) error { return drop(c.Health(ctx)) }},
		{"GET /readyz", func(c *Client) error { return drop(c.Ready(ctx)) }},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Parallel()
			var got, token, agent string
			cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
				got, token, agent = asked(r), r.Header.Get("Authorization"), r.UserAgent()
				_, _ = io.WriteString(w, "{}")
			})
			if err := c.call(cl); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("asked %s", got)
			}
			if token != "Bearer s3cret" || agent != "test/1" {
				t.Errorf("asked with %q as %q", token, agent)
			}
		})
	}
}

func TestErrorsOfTheServerKeepTheirWordsAndFaults(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"code":"InvalidArgument","message":"the manifest has a fault","errors":[{"field":"services.web.image","code":"Missing","message":"is missing","line":7}]}`)
	})
	_, err := c.Project(context.Background(), "x")
	var e *mariposa.Error
	if !errors.As(err, &e) || e.Code != mariposa.InvalidArgument || e.Message != "the manifest has a fault" {
		t.Fatalf("got %#v", err)
	}
	if len(e.Faults) != 1 || e.Faults[0].Line != 7 || e.Faults[0].Code != mariposa.FaultMissing {
		t.Errorf("got faults %v", e.Faults)
	}
}

func TestAnswersOfStrangersAreCalledStrange(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]mariposa.Code{
		http.StatusBadGateway: mariposa.Unavailable, http.StatusNotFound: mariposa.ResourceNotFound, http.StatusTeapot: mariposa.Internal,
		http.StatusOK: mariposa.Internal,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<html>sorry</html>")
		})
		_, err := c.Nodes(context.Background())
		if mariposa.CodeOf(err) != code || !strings.Contains(fmt.Sprint(err), "is it a Mariposa?") {
			t.Errorf("%d gave %v", status, err)
		}
	}
}

func TestNobodyThereIsSaidWithWhatToDo(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + l.Addr().String()
	_ = l.Close()
	c, err := New(Options{URL: address, Token: "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Health(context.Background())
	want := "no Mariposa answers at " + address + ": start one with `mariposa dev`, or set MARIPOSA_URL"
	if mariposa.CodeOf(err) != mariposa.Unavailable || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestWhatTheCallerCanceledIsCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if _, err := c.Nodes(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOnlyAddressesAreAccepted(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"", "localhost:8080", "ftp://x", "http://", "::"} {
		if _, err := New(Options{URL: u}); mariposa.CodeOf(err) != mariposa.InvalidArgument {
			t.Errorf("%q: got %v", u, err)
		}
	}
}

func TestInstancesTurnsThePages(t *testing.T) {
	t.Parallel()
	var pages []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		m := r.FormValue("marker")
		pages = append(pages, m)
		next := map[string]string{"": "b", "b": "c"}[m]
		_ = json.NewEncoder(w).Encode(contract.Instances{Instances: []contract.Instance{{ID: m + "1"}, {ID: m + "2"}}, Marker: next})
	})
	all, err := c.AllInstances(context.Background(), InstanceFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, i := range all.Instances {
		ids = append(ids, i.ID)
	}
	if !slices.Equal(ids, []string{"1", "2", "b1", "b2", "c1", "c2"}) || !slices.Equal(pages, []string{"", "b", "c"}) {
		t.Errorf("got %v from pages %q", ids, pages)
	}
}

func TestLogsFlowUntilClosed(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, asked(r)+"\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	logs, err := c.Logs(context.Background(), "i1", LogOptions{Tail: 10, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("GET /v1/instances/i1/logs?follow=true&tail=10"))
	if _, err := io.ReadFull(logs, line); err != nil || string(line) != "GET /v1/instances/i1/logs?follow=true&tail=10" {
		t.Errorf("got %q, %v", line, err)
	}
	if err := logs.Close(); err != nil {
		t.Error(err)
	}
}

package api

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// describe begins the OpenAPI document.
func describe(version string) *huma.OpenAPI {
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Mariposa", Version: version,
			Description: "Say what a project should be; Mariposa makes it so, keeps it so, and shows what it is doing. " +
				"Every path may be prefixed with /v1/users/{user} by a caller who may act for that user. " +
				"A change sent with an Idempotency-Key gets its first answer again when it is repeated.",
		},
		Components: &huma.Components{
			Schemas:         huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
			SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}},
		},
		Tags: []*huma.Tag{
			{Name: "projects", Description: "Projects, their manifests and versions."},
			{Name: "metadata", Description: "Values that manifests refer to, secrets among them."},
			{Name: "people", Description: "Users, organizations, roles, tokens and quotas."},
			{Name: "state", Description: "Goal and reality, and changes of the goal."},
			{Name: "queue", Description: "Tasks: every change that people can see."},
			{Name: "instances", Description: "What runs."},
			{Name: "volumes", Description: "What outlives it."},
			{Name: "networks", Description: "Where it meets."},
			{Name: "nodes", Description: "Where it runs."},
			{Name: "events", Description: "The feed of changes, as a list or live."},
			{Name: "server", Description: "The server itself."},
		},
	}
}

// plainRoutes are those of the server itself.
func (s *server) plainRoutes() {
	health := route(http.MethodGet, "/healthz", "server", "health", "Whether the server lives")
	ready := route(http.MethodGet, "/readyz", "server", "ready", "Whether the server can write its store")
	health.Security, ready.Security = nil, nil
	serve(s, health, func(context.Context, *struct{}) (*document[contract.Health], error) {
		return answer(contract.Health{Status: "ok", Version: s.Version})
	})
	serve(s, ready, s.ready)

	s.plain("/metrics", "metrics", "What Prometheus reads", "text/plain", s.metricsHandler())
	s.plain("/v1/manifest.schema.json", "manifest-schema", "The JSON Schema of manifests, for editors", "application/schema+json", http.HandlerFunc(serveSchema))
	s.plain(agentPath, "agent", "Where agents connect: a WebSocket, with the join token as bearer token", "", http.HandlerFunc(s.serveAgent))
	s.plain("/openapi.json", "openapi", "This document", "application/openapi+json", s.openAPIHandler())
	s.plain("/docs", "docs", "This document as a page", "text/html", s.docsHandler())
}

// plain registers a handler that is no operation of huma's, and describes it.
func (s *server) plain(path, id, summary, kind string, handler http.Handler) {
	op := route(http.MethodGet, path, "server", id, summary)
	if tokenless[path] {
		op.Security = nil
	}
	op.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{kind: {}}}}
	if kind == "" {
		op.Responses = map[string]*huma.Response{"101": {Description: "Switching Protocols"}}
	}
	s.huma.OpenAPI().AddOperation(&op)
	s.mux.Handle(http.MethodGet+" "+path, handler)
}

func (s *server) ready(ctx context.Context, _ *struct{}) (*document[contract.Health], error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	// A store that hangs may not even notice that nobody waits any more.
	pinged := make(chan error, 1)
	go func() { pinged <- s.Store.Ping(ctx) }()
	var err error
	select {
	case err = <-pinged:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "not ready", "err", err)
		return nil, mariposa.Errorf(mariposa.Unavailable, "%s: try again shortly", unwritable(err))
	}
	return answer(contract.Health{Status: "ready", Version: s.Version})
}

func serveSchema(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/schema+json")
	_, _ = w.Write(manifest.Schema()) // whoever asked may be gone
}

// serveAgent hands an agent's connection to the fleet for as long as it lasts.
func (s *server) serveAgent(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the pipe has limits of its own
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		s.Logger.InfoContext(r.Context(), "an agent's connection could not be opened", "err", err)
		return // Accept has answered
	}
	s.Fleet.Serve(r.Context(), conn)
}

// openAPIHandler serves the document, made when first asked for: by then every
// route is there.
func (s *server) openAPIHandler() http.Handler {
	text := sync.OnceValues(func() ([]byte, error) { return json.Marshal(s.huma.OpenAPI()) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := text()
		if err != nil {
			s.unforeseen(r.Context(), err).write(w)
			return
		}
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(body) // whoever asked may be gone
	})
}

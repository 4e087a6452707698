package api

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// describe returns the initial OpenAPI document.
func describe(version string) *huma.OpenAPI {
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Mariposa", Version: version,
			Description: "Describe the desired state of a project; Mariposa starts it, keeps it running and shows what it is doing. " +
				"A caller with permission to act for a user can prefix every path with /v1/users/{user}. " +
				"If a change with an Idempotency-Key is repeated, the server returns the first response again.",
		},
		Components: &huma.Components{
			Schemas:         huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
			SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}},
		},
	}
	for _, t := range topics {
		doc.Tags = append(doc.Tags, &huma.Tag{Name: t.name, Description: t.description})
	}
	return doc
}

func (s *server) alive(ctx context.Context, _ *struct{}) (*document[contract.Health], error) {
	return answer(s.health(ctx, "ok"))
}

// health describes this server. Clients with several URLs compare the installation before
// they send a token.
func (s *server) health(ctx context.Context, status string) contract.Health {
	id, _ := s.Store.Identity(ctx) // kept in memory; a store that was closed has none
	return contract.Health{Status: status, Version: s.Version, Installation: id.Cluster}
}

func (s *server) ready(ctx context.Context, _ *struct{}) (*document[contract.Health], error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	// A store that hangs may not even notice the timeout.
	pinged := make(chan error, 1)
	go func() { pinged <- s.Store.Ping(ctx) }()
	var err error
	select {
	case err = <-pinged:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "server is not ready", "err", err)
		return nil, mariposa.Errorf(mariposa.Unavailable, "%s: try again shortly", explainUnwritable(err))
	}
	return answer(s.health(ctx, "ready"))
}

func (s *server) schemaHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/schema+json")
		_, _ = w.Write(manifest.Schema()) // the client may be gone
	})
}

// openAPIHandler serves the document, generated on first use: by then every route is
// registered.
func (s *server) openAPIHandler() http.Handler {
	text := sync.OnceValues(func() ([]byte, error) { return json.Marshal(s.huma.OpenAPI()) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := text()
		if err != nil {
			s.unexpectedError(r.Context(), err).write(w)
			return
		}
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(body) // the client may be gone
	})
}

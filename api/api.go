// Package api is the HTTP face: it reads what people and programs ask for, finds
// what they mean as far as they may see it, has the room change do it, and shows
// what is so in the documents of the contract. Reads come from the picture; whoever
// wrote reads the write back.
//
// The room owns routes, tokens and errors as the outside sees them. It refuses to
// know which writes a change consists of, to plan, to talk to drivers, and to keep
// anything that the store does not have.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/clock"
	"mariposa/fleet"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
)

// Options are what the API is made from. All but Used, Metrics and Logger are
// required.
type Options struct {
	Store      store.Store
	Picture    *picture.Picture
	Cache      *picture.VersionCache
	Fleet      *fleet.Fleet
	Used       func(node string) mariposa.Resources // what is claimed of a node
	Clock      clock.Clock
	NewID      func() string    // makes ids that grow
	Vault      *seal.Vault      // opens and seals metadata and kept answers
	Place      change.PlaceFunc // finds nodes for unmanaged instances
	Trial      change.TrialFunc // finds out whether nodes would take instances, claiming nothing
	AdminToken string           // empty: only tokens that the store knows
	JoinToken  string           // of agents; likewise
	Version    string           // of this release
	Domain     string           // under which instances have names; mariposa.internal if empty
	// KeepVersions is how many versions of a project are kept; change.DefaultKeep if zero.
	KeepVersions int
	Metrics      prometheus.Gatherer
	Logger       *slog.Logger
}

// server answers requests.
type server struct {
	Options
	mux           *http.ServeMux
	huma          huma.API
	admitted      map[string]callers // by path; those that are missing admit users
	metrics       *requestMetrics
	change        *change.Changer
	states        stateCache
	directory     *auth.Directory
	tokenFailures *auth.Limiter // requests without a valid token, by where they come from
	denials       *auth.Limiter // requests that were denied, likewise
	tokenUses     useTimes      // of tokens
	streams       atomic.Int64  // how many are open
	shells        atomic.Int64  // how many of those are commands inside instances
}

const (
	requestTimeout = 30 * time.Second // for one request that is no stream
	writeTimeout   = time.Minute      // for one answer, or one piece of a stream
	maxBody        = 1 << 20          // of requests that are no manifest
	maxStreams     = 4096
	awaitTimeout   = 2 * time.Second // how long to wait for the picture
)

// New makes the handler of everything under /v1 and beside it.
func New(o Options) http.Handler {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Used == nil {
		o.Used = func(string) mariposa.Resources { return mariposa.Resources{} }
	}
	installErrors()
	s := &server{
		Options: o, mux: http.NewServeMux(), admitted: map[string]callers{}, metrics: newRequestMetrics(),
		directory:     auth.NewDirectory(o.Picture, o.AdminToken, o.JoinToken),
		tokenFailures: auth.NewLimiter(60, time.Second), denials: auth.NewLimiter(200, 100*time.Millisecond),
	}
	s.change = change.New(change.Options{
		Store: o.Store, Picture: o.Picture, Cache: o.Cache, Directory: s.directory, Clock: o.Clock, NewID: o.NewID, Vault: o.Vault,
		Place: o.Place, Trial: o.Trial, Await: s.await, KeepVersions: o.KeepVersions,
	})
	s.huma = humago.New(s.mux, huma.Config{
		OpenAPI:                      describe(o.Version),
		Formats:                      map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
	})
	s.huma.UseMiddleware(s.checkOperation)
	for _, t := range topics {
		for i := range t.routes {
			s.add(t, &t.routes[i])
		}
	}
	return s
}

// await waits a while until reads show a revision. A picture that lags is no
// reason to call a change failed.
func (s *server) await(ctx context.Context, revision int64) {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	_ = s.Picture.Await(ctx, revision)
}

// document is an answer in JSON.
type document[T any] struct{ Body T }

func answer[T any](v T) (*document[T], error) { return &document[T]{v}, nil }

// changed answers with what was made of a change.
func changed[T any](v *T, err error) (*document[T], error) {
	if err != nil {
		return nil, err
	}
	return answer(*v)
}

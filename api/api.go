// Package api is the HTTP API: it decodes requests, resolves their objects as far as
// the caller may see them, has the package change carry them out, and encodes the
// results as documents of the contract. Reads come from the picture; a client reads
// its own writes.
//
// The package owns routes, tokens and errors as clients see them. It does not know
// which writes a change consists of, does not plan or talk to drivers, and keeps no
// state outside the store.
package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/clock"
	"mariposa/fleet"
	"mariposa/listener"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
)

// Options are the dependencies of the API. All but Used, Metrics and Logger are
// required.
type Options struct {
	Store     store.Store
	Picture   *picture.Picture
	Cache     *picture.VersionCache
	Fleet     *fleet.Fleet
	Used      func(node string) mariposa.Resources // the resources claimed on a node
	Clock     clock.Clock
	NewID     func() string    // makes increasing ids
	Vault     *seal.Vault      // opens and seals metadata and kept answers
	Place     change.PlaceFunc // finds nodes for unmanaged instances
	Trial     change.TrialFunc // finds out whether nodes would take instances, without claims
	JoinToken string           // of agents in this process; empty: there are none
	Version   string           // of this release
	Domain    string           // of instance names; mariposa.internal if empty
	// KeepVersions is how many versions of a project are kept; change.DefaultKeep if zero.
	KeepVersions int
	// RequestTimeout is how long a request that is no stream may take; 30 s if zero.
	RequestTimeout time.Duration
	// Heartbeat is how often a stream of events shows that it is alive; 15 s if zero.
	Heartbeat time.Duration
	// Limits are what one user can take of the server.
	Limits Limits
	// Proxies are trusted to say whom they speak for.
	Proxies listener.Proxies
	Metrics prometheus.Gatherer
	Logger  *slog.Logger
}

// server handles requests.
type server struct {
	Options
	mux           *http.ServeMux
	huma          huma.API
	admitted      map[string]callers // by path; users if missing
	metrics       *requestMetrics
	change        *change.Changer
	states        stateCache
	directory     *auth.Directory
	tokenFailures *auth.Limiter // requests with a wrong token, by where they come from
	failureRows   *auth.Limiter // of those, audit records, wherever they come from
	denials       *auth.Limiter // requests that were denied, by user and kind
	attempts      *auth.Limiter // plans, and changes that were refused, by user
	tokenUses     useTimes      // of tokens
	usage         *usage
}

const (
	defaultRequestTimeout = 30 * time.Second
	defaultHeartbeat      = 15 * time.Second
	writeTimeout          = time.Minute     // for one response, or one piece of a stream
	maxBody               = 1 << 20         // of requests that are not manifests
	awaitTimeout          = 2 * time.Second // for the picture
)

// New returns the handler of all routes.
func New(o Options) http.Handler {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Used == nil {
		o.Used = func(string) mariposa.Resources { return mariposa.Resources{} }
	}
	o.RequestTimeout = cmp.Or(o.RequestTimeout, defaultRequestTimeout)
	o.Heartbeat = cmp.Or(o.Heartbeat, defaultHeartbeat)
	installErrors()
	s := &server{
		Options: o, mux: http.NewServeMux(), admitted: map[string]callers{}, metrics: newRequestMetrics(),
		directory:     auth.NewDirectory(o.Picture, o.JoinToken),
		tokenFailures: auth.NewLimiter(60, time.Second), failureRows: auth.NewLimiter(600, 200*time.Millisecond),
		denials: auth.NewLimiter(50, 10*time.Second), attempts: auth.NewLimiter(200, time.Second), usage: newUsage(o.Limits),
	}
	s.change = change.New(change.Options{
		Store: o.Store, Picture: o.Picture, Cache: o.Cache, Directory: s.directory, Clock: o.Clock, NewID: o.NewID, Vault: o.Vault,
		Place: o.Place, Trial: o.Trial, Await: s.await, KeepVersions: o.KeepVersions,
	})
	s.huma = humago.New(s.mux, huma.Config{
		OpenAPI:                      describe(o.Version),
		Formats:                      map[string]huma.Format{"application/json": strictJSON, "json": strictJSON},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
	})
	s.huma.UseMiddleware(s.checkOperation)
	s.mux.Handle("GET /{$}", landing(o.Version))
	s.admitted["/"] = anybody
	for _, t := range topics {
		for i := range t.routes {
			s.add(t, &t.routes[i])
		}
	}
	return s
}

// await waits until reads show a revision, for a limited time. A picture that lags
// behind does not make a change fail.
func (s *server) await(ctx context.Context, revision int64) {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	_ = s.Picture.Await(ctx, revision)
}

// document is a JSON response.
type document[T any] struct{ Body T }

func answer[T any](v T) (*document[T], error) { return &document[T]{v}, nil }

// changed answers with the result of a change.
func changed[T any](v *T, err error) (*document[T], error) {
	if err != nil {
		return nil, err
	}
	return answer(*v)
}

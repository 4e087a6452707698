// Package api is the HTTP API. It decodes requests, looks up their objects among those
// that the caller can see, carries out changes with package change, and encodes the
// results as documents of package contract. Reads are served from the picture. Clients
// read their own writes.
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
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/clock"
	"mariposa/discover"
	"mariposa/fleet"
	"mariposa/history"
	"mariposa/listener"
	"mariposa/picture"
	"mariposa/relay"
	"mariposa/seal"
	"mariposa/store"
)

// Options are the dependencies of the API. All but Used, Links, Metrics and Logger are
// required.
type Options struct {
	Store     store.Store
	Picture   *picture.Picture
	Cache     *picture.VersionCache
	Fleet     *fleet.Fleet
	Used      func(node string) mariposa.Resources // the resources claimed on a node
	History   *history.Recorder                    // how services and nodes fared; nil: nothing is remembered
	Clock     clock.Clock
	NewID     func() string    // generates increasing ids
	Vault     *seal.Vault      // encrypts and decrypts metadata and stored responses
	Place     change.PlaceFunc // finds nodes for unmanaged instances
	Trial     change.TrialFunc // checks whether instances fit on nodes, without claiming resources
	JoinToken string           // of agents in this process; empty: no agents
	Version   string           // of this release
	Domain    string           // of instance names; mariposa.internal if empty
	Names     *discover.Book   // what names resolve to; read from the picture for each request if nil
	// KeepVersions is how many versions of a project are kept; change.DefaultKeep if zero.
	KeepVersions int
	// RequestTimeout limits requests other than streams; 30 s if zero.
	RequestTimeout time.Duration
	// Heartbeat is the longest silence of a stream of events or log lines; 5 s if zero.
	Heartbeat time.Duration
	// Limits are the limits of one user.
	Limits Limits
	// Proxies are trusted to forward the addresses of clients.
	Proxies listener.Proxies
	// Links are the connections to the other replicas; nil if there can be none.
	Links *relay.Links
	// OIDC is the provider at which people can sign in to the web page; nil: none.
	OIDC    *OIDC
	Metrics prometheus.Gatherer
	Logger  *slog.Logger
}

// server handles requests.
type server struct {
	Options
	mux           *http.ServeMux
	huma          huma.API
	admitted      map[string]callers // by path; default: users
	metrics       *requestMetrics
	change        *change.Changer
	states        stateCache
	tallies       tallyCache
	published     publisher
	encodings     encodings
	selections    selections
	directory     *auth.Directory
	tokenFailures *auth.Limiter // requests with an invalid token, by source address
	announcements *auth.Limiter // connections of agents without a join token or a key, by source address
	catchUps      *auth.Limiter // reads of the newest revision for such agents, for all sources together
	failureRows   *auth.Limiter // audit records about them, for all sources together
	denials       *auth.Limiter // denied requests, by user and action
	signIns       *auth.Limiter // attempts to sign in with a password, by source address
	userSignIns   *auth.Limiter // the same, by user: see attemptKey
	hashing       chan struct{} // limits how many passwords are hashed at once
	attempts      *auth.Limiter // plans and rejected changes, by user
	tokenUses     useTimes      // of tokens
	provider      *provider     // of sign-ins; nil: none
	usage         *usage
	backingUp     atomic.Bool // a backup is in progress
}

const (
	defaultRequestTimeout = 30 * time.Second
	defaultHeartbeat      = 5 * time.Second
	writeTimeout          = time.Minute     // for one response, or one piece of a stream
	maxBody               = 1 << 20         // of requests that are not manifests
	maxHashing            = 2               // passwords at once: each takes 19 MiB and tens of milliseconds
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
	if o.History == nil {
		o.History = &history.Recorder{Options: history.Options{Clock: o.Clock}}
	}
	o.RequestTimeout = cmp.Or(o.RequestTimeout, defaultRequestTimeout)
	o.Heartbeat = cmp.Or(o.Heartbeat, defaultHeartbeat)
	installErrors()
	s := &server{
		Options: o, mux: http.NewServeMux(), admitted: map[string]callers{}, metrics: newRequestMetrics(),
		directory:     auth.NewDirectory(o.Picture, o.JoinToken),
		tokenFailures: auth.NewLimiter(60, time.Second), failureRows: auth.NewLimiter(600, 200*time.Millisecond),
		announcements: auth.NewLimiter(30, time.Second), catchUps: auth.NewLimiter(20, 100*time.Millisecond),
		// A single source cannot use up the attempts of a user, and lock them out.
		signIns: auth.NewLimiter(20, 5*time.Second), userSignIns: auth.NewLimiter(30, time.Second), hashing: make(chan struct{}, maxHashing),
		denials: auth.NewLimiter(50, 10*time.Second), attempts: auth.NewLimiter(200, time.Second), usage: newUsage(o.Limits),
		provider: newProvider(o.OIDC),
	}
	s.published.s = s
	s.change = change.New(change.Options{
		Store: o.Store, Picture: o.Picture, Cache: o.Cache, Directory: s.directory, Clock: o.Clock, NewID: o.NewID, Vault: o.Vault,
		Place: s.place, Trial: o.Trial, Await: s.await, Quarantine: o.Fleet.Quarantine, IsOriginProven: o.Fleet.IsOriginProven, Foreign: o.Fleet.ForeignContainer, Resolve: o.Fleet.ResolveImages, KeepVersions: o.KeepVersions,
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

// place finds a node for an unmanaged instance. While this replica has lost its lease in the
// database, its nodes are not connected: that is no fault of the request, and will pass.
func (s *server) place(id string, spec *mariposa.InstanceSpec) (claim store.Claim, release func(), err error) {
	claim, release, err = s.Place(id, spec)
	if err != nil && s.Fleet.LacksNodes() {
		return claim, release, mariposa.Errorf(mariposa.Unavailable, "no node can be reached, because this server could not renew its lease in the database, "+
			"which may accept no writes; nothing was changed: try again shortly")
	}
	return claim, release, err
}

// await waits for a limited time until reads include a revision. A change does not fail
// if the picture lags behind.
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

// Package assembly wires the packages together into running processes: a control plane,
// and agents in the same process or elsewhere. The binary, the benchmark and the tests
// that start the whole program share it. It makes no decisions.
package assembly

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"mariposa/api"
	"mariposa/clock"
	"mariposa/listener"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/wire"
)

// Config configures a control plane.
type Config struct {
	Store store.Store // closed by Stop
	// Open opens the store if Store is nil. While that fails with store.ErrUnavailable, the
	// control plane answers that it waits for its database.
	Open func(context.Context) (store.Store, error)
	// Explain says in plain words why the store cannot be opened; the error itself if nil.
	Explain func(error) string
	// Reopen opens the store again after its state has changed (store.Store.Rewound). If
	// nil, Store is kept.
	Reopen func(context.Context) (store.Store, error)
	Ring   *seal.Ring // the keys that encrypt secrets in the store
	Listen string
	// Advertise is the URL at which the other replicas and agents reach this one; the
	// listen address if empty, unless that means all addresses of the machine.
	Advertise string
	JoinToken string // of agents in this process, not stored; empty if there are none
	Version   string
	Replica   string        // its name among replicas; generated if empty. One that keeps its name resumes its leases at once
	Keep      time.Duration // how long the feed is kept; 7 days if zero
	KeepRows  int64         // how many changes at most; 2 million if zero
	KeepWhole int64         // how many of the newest no project loses that has no more bytes than it may; 100,000 if zero
	Beat      time.Duration // heartbeat of agents; 5 s if zero
	NewID     func() string // generates ids, which grow with time; by the store's clock if nil
	Clock     clock.Clock   // of this machine, whose time may be wrong but must not jump; a clock.Steady if nil

	TLSCert, TLSKey string        // files; without them the server speaks plain HTTP
	Insecure        bool          // allow plain HTTP from other machines
	Domain          string        // under which instances have names; mariposa.internal if empty
	DNS             *DNSConfig    // how it answers DNS queries; nil: not at all
	ApproveNodes    bool          // new nodes wait for approval
	PendingNodes    int           // how many nodes without a join token may wait for approval; none if zero
	StormBreaker    int           // percentage of nodes that may be lost within a minute before rescheduling stops; 33 if zero; negative: any
	KeepVersions    int           // of a project; 100 if zero
	KeepAudit       time.Duration // 365 days if zero; negative: forever
	KeepTasks       time.Duration // of ended tasks; 30 days if zero; negative: forever

	Limits      api.Limits       // of one user
	OIDC        *api.OIDC        // where people sign in to the web page; nil: nowhere else
	Connections listener.Options // how many, and which proxies are trusted

	cert *certificate // of this replica; nil: plain HTTP
}

// Control is one replica of the control plane.
type Control struct {
	URL string

	cfg     Config
	cert    *certificate // nil: plain HTTP
	gate    *listener.Listener
	server  *http.Server
	cluster string                 // the id of the installation; set before current
	waiting atomic.Pointer[string] // what it waits for before it has served anything; nil afterwards
	current atomic.Pointer[plane]  // nil while it changes to another state of the store
	cancel  context.CancelFunc
	all     sync.WaitGroup
	stopped sync.Once
	failed  chan error
}

// Start starts a control plane; when it returns, requests are answered.
func Start(ctx context.Context, cfg Config) (*Control, error) {
	cert, err := loadCertificate(cfg)
	if err != nil {
		return nil, err
	}
	cfg.cert = cert
	if err := checkAdvertised(cfg); err != nil {
		return nil, err
	}
	tcp, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w: choose another address with --listen or MARIPOSA_LISTEN", cfg.Listen, err)
	}
	c := &Control{cfg: cfg, cert: cert, gate: listener.New(wire.Listener{Listener: tcp}, cfg.Connections), URL: "http://" + tcp.Addr().String(), failed: make(chan error, 1)}
	incoming := net.Listener(c.gate)
	if cert != nil {
		c.URL = "https://" + tcp.Addr().String()
		incoming = tls.NewListener(incoming, cert.config())
	}
	if c.cfg.Advertise == "" && !isWildcard(tcp.Addr()) {
		c.cfg.Advertise = c.URL
	}
	if c.cfg.Replica == "" {
		c.cfg.Replica = NewID()
	}
	c.waiting.Store(new(waitingMessage))
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	// The API limits how long bodies and responses may take, because streams have no
	// end. HTTP/2 is not offered: one connection could carry many requests at once.
	c.server = &http.Server{
		Handler: c, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return run }, ConnContext: listener.Context,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	c.all.Go(func() {
		if err := c.server.Serve(incoming); !errors.Is(err, http.ErrServerClosed) {
			c.failed <- err
		}
	})
	first, err := c.startFirst(ctx)
	if err != nil {
		_ = c.server.Close() // the first error is the one to report
		cancel()
		c.all.Wait()
		return nil, err
	}
	c.cluster = first.identity.Cluster
	c.current.Store(first)
	c.waiting.Store(nil)
	c.all.Go(func() { c.followStore(run, first) })
	return c, nil
}

// loadCertificate reads the certificate. Without one it refuses to send tokens
// unencrypted over the network.
func loadCertificate(cfg Config) (*certificate, error) {
	if cfg.TLSCert != "" || cfg.TLSKey != "" {
		return newCertificate(cfg.TLSCert, cfg.TLSKey)
	}
	if !cfg.Insecure && !isLoopback(cfg.Listen) {
		return nil, fmt.Errorf("%s is reachable from other machines, and tokens would be sent unencrypted: set --tls-cert and --tls-key, "+
			"listen on 127.0.0.1, or pass --insecure if a proxy in front of it terminates TLS", cfg.Listen)
	}
	return nil, nil
}

// Picture returns the control plane's view of the store, for callers in the same
// process that read it without requests.
func (c *Control) Picture() *picture.Picture { return c.current.Load().pic }

// Failed reports when the control plane has ended by itself.
func (c *Control) Failed() <-chan error { return c.failed }

// Stop stops accepting requests, hands over the leases and closes the store.
// Instances keep running. It is idempotent and takes a few seconds at most.
func (c *Control) Stop() {
	c.stopped.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		go func() { // streams end with the actors, so do not wait for them first
			time.Sleep(200 * time.Millisecond)
			c.endActors()
		}()
		if err := c.server.Shutdown(ctx); err != nil {
			_ = c.server.Close() // connections that are still open would never close by themselves
		}
		c.endActors()
		done := make(chan struct{})
		go func() { // a store that hangs must not keep the process from ending: what was acknowledged is durable
			defer close(done)
			c.all.Wait()
			if p := c.current.Load(); p != nil {
				p.stop()
				closeStore(p.store)
			}
		}()
		select {
		case <-done:
		case <-time.After(6 * time.Second):
			slog.Warn("the store does not respond; exiting without closing it")
		}
	})
}

func (c *Control) endActors() {
	c.cancel()
	if p := c.current.Load(); p != nil {
		p.cancel()
	}
}

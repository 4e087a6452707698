package api

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// requestMetrics counts requests. It has its own registry, so that one process can run
// several servers.
type requestMetrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	streams   prometheus.Gauge
}

func newRequestMetrics() *requestMetrics {
	m := &requestMetrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mariposa_http_requests_total", Help: "Requests by route and status.",
		}, []string{"route", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mariposa_http_request_seconds", Help: "Duration of requests, including streams.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"route"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mariposa_http_streams", Help: "Open streams of events and logs.",
		}),
	}
	m.registry.MustRegister(m.requests, m.durations, m.streams)
	return m
}

// observe counts one request. The route label is a pattern of the API and never client
// input, so that clients cannot create labels.
func (m *requestMetrics) observe(pattern string, status int, took time.Duration) {
	if pattern == "" {
		pattern = "none"
	}
	m.requests.WithLabelValues(pattern, strconv.Itoa(status)).Inc()
	m.durations.WithLabelValues(pattern).Observe(took.Seconds())
}

func (s *server) metricsHandler() http.Handler {
	all := prometheus.Gatherers{s.metrics.registry}
	if s.Metrics != nil {
		all = append(all, s.Metrics)
	}
	return promhttp.HandlerFor(prometheus.GathererFunc(shareCalls(all.Gather)), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// shareCalls lets concurrent callers of a function share one call: metrics are public, and
// thousands of clients may request them at once. Callers that arrive during a call share
// the next one, so the result is never older than the request.
func shareCalls[T any](f func() (T, error)) func() (T, error) {
	type call struct {
		done   chan struct{}
		result T
		err    error
	}
	var running, mu sync.Mutex
	var next *call // guarded by mu; nil: no caller waits
	return func() (T, error) {
		mu.Lock()
		c := next
		if c != nil {
			mu.Unlock()
			<-c.done
			return c.result, c.err
		}
		c = &call{done: make(chan struct{})}
		next = c
		mu.Unlock()
		defer close(c.done)
		running.Lock()
		defer running.Unlock()
		mu.Lock()
		next = nil
		mu.Unlock()
		c.result, c.err = f()
		return c.result, c.err
	}
}

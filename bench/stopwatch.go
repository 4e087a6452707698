package bench

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// sample collects the durations of many operations of one kind.
type sample struct {
	mu   sync.Mutex
	took []time.Duration
	span time.Duration // from the first start to the last end
}

func (s *sample) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = append(s.took, d)
}

func (s *sample) percentiles() Percentiles { return percentiles(s.took) }

func (s *sample) perSecond() float64 { return perSecond(len(s.took), s.span) }

func perSecond(n int, d time.Duration) float64 { return round(float64(n) / d.Seconds()) }

type sampleKey struct{}

// withSample returns a context whose requests are timed.
func withSample(ctx context.Context, s *sample) context.Context {
	return context.WithValue(ctx, sampleKey{}, s)
}

// stopwatch times requests up to the last byte of their answers, without the time that a
// client takes to decode them.
type stopwatch struct{ http.RoundTripper }

// stopwatchClient returns the HTTP client that all readers share. It keeps enough idle
// connections for hundreds of concurrent requests.
func stopwatchClient() *http.Client {
	return &http.Client{Transport: stopwatch{&http.Transport{MaxIdleConns: 2048, MaxIdleConnsPerHost: 2048, DisableCompression: true}}}
}

func (w stopwatch) RoundTrip(req *http.Request) (*http.Response, error) {
	s, ok := req.Context().Value(sampleKey{}).(*sample)
	if !ok {
		return w.RoundTripper.RoundTrip(req)
	}
	began := time.Now()
	res, err := w.RoundTripper.RoundTrip(req)
	if err == nil {
		res.Body = &timedBody{ReadCloser: res.Body, end: func() { s.add(time.Since(began)) }}
	}
	return res, err
}

type timedBody struct {
	io.ReadCloser
	end func()
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.end != nil {
		b.end()
		b.end = nil
	}
	return n, err
}

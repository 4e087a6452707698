package agent_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mariposa/agent"
	"mariposa/clock"
	"mariposa/wire"
)

// Every request contains the key of the node, and our headers are not removed on a
// redirect.
func TestAnAgentIsNotLedAwayWithItsKey(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]func(http.Handler) *httptest.Server{
		"to plain http":     httptest.NewServer,
		"to another server": httptest.NewTLSServer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var leaked, asked atomic.Int32
			thief := elsewhere(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Header.Get(wire.NodeHeader) != "" || r.Header.Get("Authorization") != "" {
					leaked.Add(1)
				}
			}))
			defer thief.Close()
			to := thief.URL
			if strings.HasPrefix(to, "https:") {
				to = strings.Replace(to, "127.0.0.1", "localhost", 1)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1) == 2 {
					cancel() // the redirected request has returned
				}
				http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
			}))
			defer front.Close()
			client := front.Client()
			transport := client.Transport.(*http.Transport)
			transport.TLSClientConfig.InsecureSkipVerify = true //nolint:gosec // only the destination matters
			_ = agent.Run(ctx, agent.Link{Servers: []string{front.URL}, Token: "mrj_x", Client: client}, agent.Options{
				Hello: wire.Hello{Node: "n1", Name: "n1", Key: "0123456789abcdef"}, Clock: clock.Real{},
			}) // it ends with the context
			if leaked.Load() > 0 || asked.Load() < 2 {
				t.Errorf("the key was given away %d times in %d attempts", leaked.Load(), asked.Load())
			}
		})
	}
}

package healthagent

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"mariposa/contract"
)

// empty is a server with a project that has no checks.
type empty struct{}

func (empty) HealthChecks(context.Context, string, string) (*contract.HealthChecks, error) {
	return &contract.HealthChecks{}, nil
}

func (empty) Version(context.Context, string, string) (*contract.Version, error) {
	return nil, errUnknown
}

func TestATokenIsRequiredIfOneIsSet(t *testing.T) {
	t.Parallel()
	a := New(empty{}, "shop", time.Hour)
	for _, c := range []struct {
		token, sent string
		want        int
	}{
		{"", "", http.StatusOK},
		{"secret", "", http.StatusUnauthorized},
		{"secret", "Bearer other", http.StatusUnauthorized},
		{"secret", "secret", http.StatusUnauthorized},
		{"secret", "Bearer secret", http.StatusOK},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/healthchecks", nil)
		r.Header.Set("Authorization", c.sent)
		w := httptest.NewRecorder()
		a.Handler(c.token).ServeHTTP(w, r)
		if w.Code != c.want {
			body, _ := io.ReadAll(w.Body)
			t.Errorf("token %q, sent %q: %d %s", c.token, c.sent, w.Code, body)
		}
	}
}

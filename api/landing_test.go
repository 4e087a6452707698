package api_test

import (
	"strings"
	"testing"
)

// The root page explains what the server is and shows no data.
func TestTheAddressOfTheServerShowsWhatItIs(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	r := h.as("").call("GET", "/", nil, "Accept", "text/html")
	if policy := r.header.Get("Content-Security-Policy"); r.status != 200 || !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("/ answers %d with the policy %q", r.status, policy)
	}
	for _, want := range []string{"<h1>Mariposa</h1>", "mariposa login", `href="/docs"`, "prefers-color-scheme: dark"} {
		if !strings.Contains(string(r.body), want) {
			t.Errorf("/ does not show %q", want)
		}
	}
	for _, wrong := range []string{"http://", "https://", "<script", "<img", "<link"} {
		if strings.Contains(string(r.body), wrong) {
			t.Errorf("/ refers to something outside: %q", wrong)
		}
	}
	r = h.as("").call("GET", "/", nil, "Accept", "application/json")
	if r.status != 200 || !strings.Contains(string(r.body), `"docs":"/docs"`) {
		t.Errorf("as JSON, / answers %d %s", r.status, r.body)
	}
	if r := h.as("").call("GET", "/nothing", nil); r.status != 401 {
		t.Errorf("/nothing answers %d", r.status)
	}
}

package client

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"mariposa"
)

func TestATokenDoesNotTravelInTheClear(t *testing.T) {
	t.Parallel()
	for address, refused := range map[string]bool{
		"http://127.0.0.1:8080": false, "http://localhost:8080": false, "http://[::1]:8080": false, "http://127.9.9.9": false, "http://0.0.0.0:1": false,
		"https://mariposa.example.com": false, "http://mariposa.example.com": true, "HTTP://10.0.0.1": true, "http://localhost.example.com": true, "http://[2001:db8::1]:80": true,
		"http://127.0.0.1.example.com": true, "http://user:127.0.0.1@example.com": true, "http://[::ffff:127.0.0.1]": false, "http://x.localhost": true,
	} {
		_, err := New(Options{URL: address, Token: "t"})
		if (err != nil) != refused || (refused && (mariposa.CodeOf(err) != mariposa.InvalidArgument || !strings.Contains(err.Error(), "--insecure"))) {
			t.Errorf("%s: %v", address, err)
		}
		if _, err := New(Options{URL: address, Token: "t", Insecure: true}); err != nil {
			t.Errorf("%s with Insecure: %v", address, err)
		}
	}
}

// A redirect to plain HTTP on another machine is not followed.
func TestNoRedirectLeadsIntoTheClear(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://mariposa.invalid"+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	c, err := New(Options{URL: srv.URL, Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Nodes(t.Context()); err == nil || !strings.Contains(err.Error(), "unencrypted") {
		t.Errorf("it went there: %v", err)
	}
}

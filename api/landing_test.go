package api_test

import (
	"strings"
	"testing"

	"mariposa"
)

// Programs learn at the address of the server what it is; browsers get the web page there.
func TestTheAddressOfTheServerShowsWhatItIs(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	r := h.as("").call("GET", "/", nil, "Authorization", "")
	if r.status != 200 || r.header.Get("Content-Type") != "application/json" || !strings.Contains(string(r.body), `"docs":"/docs"`) {
		t.Errorf("/ answers %d %s", r.status, r.body)
	}
	if r := h.as("").call("GET", "/nothing", nil); r.status != 401 {
		t.Errorf("/nothing answers %d", r.status)
	}
}

// A browser at an address that does not exist is led to the start page; clients of the API
// get an error of the contract, and so does a browser at an address that needs a token.
func TestABrowserThatIsLostFindsTheStartPage(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, path := range []string{"/nothing", "/ui/projects", "/v1/nothing"} {
		r := h.as("").call("GET", path, nil, "Accept", browser, "Authorization", "")
		if r.status != 404 || !strings.HasPrefix(r.header.Get("Content-Type"), "text/html") || !strings.Contains(string(r.body), `<a href="/">`) {
			t.Errorf("%s answers a browser %d %s", path, r.status, r.body)
		}
		h.as("").call("GET", path, nil).wantError(401, mariposa.Unauthorized)
		h.call("GET", path, nil, "Accept", browser).wantError(404, mariposa.ResourceNotFound)
	}
	h.as("").call("GET", "/v1/projects", nil, "Accept", browser, "Authorization", "").wantError(401, mariposa.Unauthorized)
	h.as("").call("GET", "/v1/users/ann/projects", nil, "Accept", browser, "Authorization", "").wantError(401, mariposa.Unauthorized)
}

// Media types are not case-sensitive, and a weight of 0 excludes one.
func TestAnUnknownAddressAnswersInTheTypeThatIsAccepted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t).as("")
	for accept, html := range map[string]bool{
		"text/html": true, "TEXT/HTML": true, "Text/Html;Q=0.5": true, "application/json, text/html; level=1; q=0.1": true,
		"text/html;q=0": false, "text/html; Q=0.000, */*": false, "text/htmlx": false, "application/json": false, "*/*": false, "": false,
	} {
		r := h.call("GET", "/nothing", nil, "Accept", accept, "Authorization", "")
		if is := strings.HasPrefix(r.header.Get("Content-Type"), "text/html"); is != html || (r.status == 404) != html {
			t.Errorf("Accept: %s is answered with %d %s", accept, r.status, r.header.Get("Content-Type"))
		}
	}
}

// A parameter that is unknown, or given twice, is refused rather than ignored.
func TestQueryParametersAreNeverIgnored(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.call("GET", "/?x=1", nil).wantError(400, mariposa.InvalidArgument, "x", "is unknown")
	h.call("GET", "/v1/instances?x=1", nil).wantError(400, mariposa.InvalidArgument, "x", "is unknown")
	for _, path := range []string{"/v1/instances?usage=true&usage=false", "/v1/queue?all=true&all=true", "/v1/events?limit=1&project=&limit=2", "/v1/state?project=a&project=b"} {
		h.call("GET", path, nil).wantError(400, mariposa.InvalidArgument, "is given more than once")
	}
}

package api

import (
	"encoding/json"
	"html/template"
	"net/http"
	"strings"
)

// landing serves a page at / that explains how to use the server. It shows no data, so
// it is public. A client that accepts JSON gets a small document instead.
func landing(version string) http.Handler {
	var page strings.Builder
	template.Must(template.New("landing").Parse(landingPage)).Execute(&page, version) //nolint:errcheck // a constant template of one text cannot fail
	short, _ := json.Marshal(map[string]string{"name": "Mariposa", "version": version, "docs": "/docs", "openapi": "/openapi.json"})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		if refused := refuseQuery(r.URL.Query()); refused != nil {
			refused.write(w)
			return
		}
		if accepts(r.Header.Values("Accept"), "application/json") && !acceptsHTML(r) {
			h.Set("Content-Type", "application/json")
			_, _ = w.Write(short) // the client may be gone
			return
		}
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		_, _ = w.Write([]byte(page.String()))
	})
}

// isLostBrowser reports whether a person opened a path that does not exist. Clients of
// the API, which have a token or do not ask for HTML, get an error of the contract.
func (s *server) isLostBrowser(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Authorization") != "" || !acceptsHTML(r) ||
		strings.HasPrefix(r.URL.Path, userPrefix) { // any path may follow it
		return false
	}
	handler, pattern := s.mux.Handler(r)
	if pattern != "" {
		return false
	}
	said := &discardWriter{header: http.Header{}}
	handler.ServeHTTP(said, r)
	return said.header.Get("Allow") == "" // otherwise it takes another method
}

func writeLostPage(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write([]byte(lostPage)) // the client may be gone
}

const lostPage = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Not found · Mariposa</title>
</head>
<body>
<h1>Not found</h1>
<p>There is no page at this address. <a href="/">Go to the start page</a></p>
</body>
</html>
`

const landingPage = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Mariposa</title>
<style>
:root { color-scheme: light dark; --text: #1d2733; --dim: #5b6876; --back: #fbfaf7; --box: #f0eee8; --link: #9a3412 }
@media (prefers-color-scheme: dark) { :root { --text: #e6e4df; --dim: #9aa5b1; --back: #14181d; --box: #1e242b; --link: #fdba74 } }
body { margin: 0 auto; max-width: 42rem; padding: 4rem 1.5rem; font: 1.05rem/1.6 system-ui, sans-serif; color: var(--text); background: var(--back) }
h1 { font-size: 2.2rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem }
p { margin: .5rem 0 } .dim { color: var(--dim) } a { color: var(--link) }
pre { background: var(--box); padding: 1rem; border-radius: .5rem; overflow-x: auto; font-size: .9rem }
</style>
</head>
<body>
<h1>Mariposa</h1>
<p class="dim">Version {{.}}</p>
<p>You describe what a project should be. Mariposa starts it, keeps it running and shows what it is doing.</p>
<h2>Sign in with the command line</h2>
<pre>mariposa login --url URL-OF-THIS-SERVER --token-stdin
mariposa project list</pre>
<p>An admin gives you a token: <code>mariposa user create</code>, then <code>mariposa token create</code>.</p>
<h2>Documentation</h2>
<p><a href="/docs">The HTTP API</a> · <a href="/openapi.json">OpenAPI</a> · <code>mariposa --help</code></p>
</body>
</html>
`

package api

import (
	"encoding/json"
	"net/http"
	"strings"
)

// landing answers at / what the server is, for programs: browsers get the web page there. It
// shows no data, so it is public.
func landing(version string) http.Handler {
	short, _ := json.Marshal(map[string]string{"name": "Mariposa", "version": version, "docs": "/docs", "openapi": "/openapi.json"})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refused := refuseQuery(r.URL.Query()); refused != nil {
			refused.write(w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(short) // the client may be gone
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

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strings"
	"time"
)

// identity identifies the instance that answered, so that users can see instances being
// replaced.
type identity struct {
	Name     string `json:"name"`
	Instance string `json:"instance,omitempty"`
	PID      int    `json:"pid"`
}

// greeting is the answer of the backend, or of the app with what the store says.
type greeting struct {
	Greeting string `json:"greeting"`
	identity
	Store *visits `json:"store,omitempty"`
}

// page is the answer of the web front end. Either Backend is set, or Message says why
// not.
type page struct {
	Greeting string    `json:"greeting"`
	Web      identity  `json:"web"`
	Backend  *greeting `json:"backend,omitempty"`
	Message  string    `json:"message,omitempty"`
}

// backend answers with a greeting.
func backend(me identity) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, greeting{Greeting: "the backend greets you", identity: me})
	})
	mux.HandleFunc("GET /health", healthy)
	return mux
}

// web serves its own greeting and the backend's, which it fetches for each request. While
// the backend is down, web answers 503 and keeps running.
func web(me identity, word, address string) http.Handler {
	client := newClient()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		answer, status := page{Greeting: word, Web: me}, http.StatusOK
		said := &greeting{}
		if err := fetch(r.Context(), client, http.MethodGet, address, said); err != nil {
			answer.Message = fmt.Sprintf("The backend at %s is away: %v.", address, err)
			status = http.StatusServiceUnavailable
		} else {
			answer.Backend = said
		}
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.WriteHeader(status)
			_ = layout.Execute(w, answer) // an error means that the client is gone
			return
		}
		writeJSON(w, status, answer)
	})
	// The front end reports healthy even if the backend is down: replacing the front end
	// would not bring the backend back.
	mux.HandleFunc("GET /health", healthy)
	return mux
}

// newClient returns a client that makes a new connection per request: it reaches a replaced
// program immediately.
func newClient() *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

// fetch asks another program for a JSON document.
func fetch(ctx context.Context, client *http.Client, method, address string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+address+"/", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("unexpected status %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(answer); err != nil {
		return fmt.Errorf("invalid answer: %w", err)
	}
	return nil
}

func healthy(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, "ready")
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client is gone
}

var layout = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{.Greeting}}</title>
<body style="font: 18px/1.5 system-ui; max-width: 40em; margin: 4em auto; padding: 0 1em">
<h1>{{.Greeting}}</h1>
{{with .Backend}}<p>“{{.Greeting}}”, says {{.Name}} (pid {{.PID}}).</p>{{end}}
{{with .Message}}<p><strong>{{.}}</strong></p>{{end}}
<p>This page comes from {{.Web.Name}} (pid {{.Web.PID}}).</p>
</body>
</html>
`))

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

// identity says which instance answered, so that a reader sees instances come
// and go.
type identity struct {
	Name     string `json:"name"`
	Instance string `json:"instance,omitempty"`
	PID      int    `json:"pid"`
}

// greeting is the backend's answer.
type greeting struct {
	Greeting string `json:"greeting"`
	identity
}

// page is the web front's answer: either Backend is set, or Message says why not.
type page struct {
	Greeting string    `json:"greeting"`
	Web      identity  `json:"web"`
	Backend  *greeting `json:"backend,omitempty"`
	Message  string    `json:"message,omitempty"`
}

// backend greets whoever asks.
func backend(me identity) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, greeting{Greeting: "the backend greets you", identity: me})
	})
	mux.HandleFunc("GET /health", healthy)
	return mux
}

// web serves its own greeting and the one it fetches from the backend for each
// request. While the backend is down it answers 503 and stays up.
func web(me identity, word, address string) http.Handler {
	// A connection per request finds a replaced backend at once.
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		answer, status := page{Greeting: word, Web: me}, http.StatusOK
		said, err := fetch(r.Context(), client, address)
		if err != nil {
			answer.Message = fmt.Sprintf("The backend at %s is away: %v.", address, err)
			status = http.StatusServiceUnavailable
		} else {
			answer.Backend = said
		}
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.WriteHeader(status)
			_ = layout.Execute(w, answer) // the client has gone: nobody is left to notify
			return
		}
		writeJSON(w, status, answer)
	})
	// The front end is healthy while it can report that the backend is down:
	// replacing it would not bring the backend back.
	mux.HandleFunc("GET /health", healthy)
	return mux
}

func fetch(ctx context.Context, client *http.Client, address string) (*greeting, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %s", response.Status)
	}
	var said greeting
	if err := json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&said); err != nil {
		return nil, fmt.Errorf("its answer makes no sense: %w", err)
	}
	return &said, nil
}

func healthy(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, "ready")
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone: nobody is left to notify
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

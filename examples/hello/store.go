package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// visits is the store's answer.
type visits struct {
	Visits int `json:"visits"`
	identity
}

// app counts each visit in the store and greets the visitor.
func app(me identity, address string) http.Handler {
	client := newClient()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		var said visits
		if err := fetch(r.Context(), client, http.MethodPost, address, &said); err != nil {
			http.Error(w, fmt.Sprintf("The store at %s is away: %v.", address, err), http.StatusServiceUnavailable)
			return
		}
		writeJSON(w, http.StatusOK, greeting{Greeting: fmt.Sprintf("you are visitor %d", said.Visits), identity: me, Store: &said})
	})
	mux.HandleFunc("GET /health", healthy)
	return mux
}

// store counts visits. The number is in a file, if it has a directory.
type store struct {
	http.Handler

	mu    sync.Mutex
	path  string
	count int
}

// openStore returns a store that continues to count where an earlier one in the directory has
// stopped.
func openStore(me identity, dir string) (*store, error) {
	s := &store{}
	if dir != "" {
		s.path = filepath.Join(dir, "visits")
		b, err := os.ReadFile(s.path)
		if err == nil {
			s.count, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read the number of visits: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", func(w http.ResponseWriter, _ *http.Request) {
		n, err := s.add()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writeJSON(w, http.StatusOK, visits{Visits: n, identity: me})
	})
	mux.HandleFunc("GET /health", healthy)
	s.Handler = mux
	return s, nil
}

// add counts a visit. It is in the file before anybody hears of it.
func (s *store) add() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path != "" {
		err := os.WriteFile(s.path+".new", []byte(strconv.Itoa(s.count+1)+"\n"), 0o600)
		if err == nil {
			err = os.Rename(s.path+".new", s.path)
		}
		if err != nil {
			return 0, fmt.Errorf("cannot write the number of visits: %w", err)
		}
	}
	s.count++
	return s.count, nil
}

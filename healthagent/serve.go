package healthagent

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"go.yaml.in/yaml/v3"

	"mariposa"
	"mariposa/contract"
)

// Checks is the answer to GET /v1/healthchecks.
type Checks struct {
	Project string    `json:"project"`
	Read    time.Time `json:"read"`            // when the definitions were read
	Error   string    `json:"error,omitempty"` // why they could not be read the last time
	Checks  []Check   `json:"healthchecks"`
}

// Check is one check of a service with its result for each instance.
type Check struct {
	ID        string               `json:"id"`
	Service   string               `json:"service"`
	Version   string               `json:"version"`
	Health    mariposa.Health      `json:"health"` // unhealthy if it fails for any instance; unknown without instances
	Check     contract.HealthCheck `json:"check"`
	Instances []Result             `json:"instances"`
}

// Result is the result of a check for one instance.
type Result struct {
	Instance string          `json:"instance"`
	Name     string          `json:"name"`
	Health   mariposa.Health `json:"health"`
	Reason   string          `json:"reason,omitempty"`
	Since    *time.Time      `json:"since,omitempty"`
	Node     mariposa.Health `json:"node_health"` // as the agent of its node sees the whole instance
}

// Handler serves the results. If token is not empty, requests must have it.
func (a *Agent) Handler(token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/healthchecks", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.list()) })
	mux.HandleFunc("POST /v1/healthchecks/update", a.serveUpdate)
	mux.HandleFunc("GET /v1/healthchecks/{id}", a.serveCheck)
	mux.HandleFunc("GET /v1/healthchecks/{id}/definition", a.serveDefinition)
	want := sha256.Sum256([]byte("Bearer " + token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if token != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 0 {
			refuse(w, http.StatusUnauthorized, "Unauthorized", "send the token of this health agent as a bearer token")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, 1<<10) // no request needs one
		mux.ServeHTTP(w, r)
	})
}

func (a *Agent) serveUpdate(w http.ResponseWriter, r *http.Request) {
	if err := a.Update(r.Context()); err != nil {
		refuse(w, http.StatusBadGateway, "Unavailable", fmt.Sprintf("cannot read the health checks of %s: %v", a.Project, err))
		return
	}
	answer(w, http.StatusOK, a.list())
}

func (a *Agent) serveCheck(w http.ResponseWriter, r *http.Request) {
	for _, c := range a.list().Checks {
		if c.ID == r.PathValue("id") {
			answer(w, http.StatusOK, c)
			return
		}
	}
	refuse(w, http.StatusNotFound, "NotFound", errUnknown.Error())
}

// serveDefinition answers with the check as it is written in the manifest.
func (a *Agent) serveDefinition(w http.ResponseWriter, r *http.Request) {
	s, n, err := a.find(r.PathValue("id"))
	if err != nil {
		refuse(w, http.StatusNotFound, "NotFound", err.Error())
		return
	}
	text, err := a.definition(r.Context(), s, n)
	if err != nil {
		refuse(w, http.StatusBadGateway, "Unavailable", fmt.Sprintf("cannot read the manifest of %s: %v", a.Project, err))
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(text) // the client may have gone
}

// definition returns one check of a service in YAML.
func (a *Agent) definition(ctx context.Context, s contract.ServiceChecks, n int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	v, err := a.Source.Version(ctx, a.Project, s.Version)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Services map[string]struct {
			HealthChecks   []yaml.Node `yaml:"healthchecks"`
			ContainerPilot yaml.Node   `yaml:"containerpilot"`
		}
	}
	if err := yaml.Unmarshal([]byte(v.Manifest), &doc); err != nil {
		return nil, err
	}
	given := doc.Services[s.ServiceName]
	switch {
	case n < len(given.HealthChecks):
		return yaml.Marshal(&given.HealthChecks[n])
	case !given.ContainerPilot.IsZero():
		return yaml.Marshal(map[string]*yaml.Node{"containerpilot": &given.ContainerPilot})
	}
	return nil, fmt.Errorf("version %s of service %s has no such check", s.Version, s.ServiceName)
}

// list returns all checks with their results.
func (a *Agent) list() Checks {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := Checks{Project: a.Project, Read: a.readAt, Checks: []Check{}}
	if a.err != nil {
		all.Error = a.err.Error()
	}
	for _, s := range a.services {
		for n, c := range s.HealthChecks {
			check := Check{ID: idOf(s, n), Service: s.ServiceName, Version: s.Version, Health: mariposa.HealthUnknown, Check: c, Instances: []Result{}}
			for _, i := range s.Instances {
				r := a.result(i, n)
				if why := obstacle(c.Type, c.Path, c.Network); why != "" {
					r.Health, r.Since, r.Reason = mariposa.HealthUnknown, nil, why
				}
				check.Health = worse(check.Health, r.Health)
				check.Instances = append(check.Instances, r)
			}
			all.Checks = append(all.Checks, check)
		}
	}
	return all
}

// result returns what is known about one check of an instance. The caller holds the lock.
func (a *Agent) result(i contract.InstanceHealth, n int) Result {
	r := Result{Instance: i.Instance, Name: i.InstanceName, Health: mariposa.HealthUnknown, Node: i.Health}
	switch st, is := a.results[i.Instance]; {
	case i.State != mariposa.StateRunning:
		r.Reason = "the instance is " + string(i.State)
	case !is || n >= len(st.Checks):
		r.Reason = "it has not been checked yet"
	default:
		c := st.Checks[n]
		r.Health, r.Reason, r.Since = c.Health, c.Reason, &c.Since
	}
	return r
}

// badness orders healths from the best to the worst.
var badness = map[mariposa.Health]int{mariposa.HealthUnknown: 0, mariposa.HealthHealthy: 1, mariposa.HealthStarting: 2, mariposa.HealthUnhealthy: 3}

func worse(a, b mariposa.Health) mariposa.Health {
	if badness[b] > badness[a] {
		return b
	}
	return a
}

func answer(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc) // the client may have gone
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, map[string]string{"code": code, "message": message})
}

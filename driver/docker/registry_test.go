package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/registry"

	"mariposa"
)

// fakeRegistry is a registry with a few documents. Real ones are used in the tests of the whole
// system; this one does what they never do.
type fakeRegistry struct {
	*httptest.Server

	mu        sync.Mutex
	documents map[string]string // by what follows the name of the repository
	challenge string            // sent to those who have no token
	login     string            // of the last request for a token
}

func newFakeRegistry(t *testing.T) *fakeRegistry {
	t.Helper()
	r := &fakeRegistry{documents: map[string]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch path := strings.TrimPrefix(req.URL.Path, "/v2/shop/web/"); {
		case req.URL.Path == "/token" && req.URL.Query().Get("scope") == "repository:shop/web:pull" && req.URL.Query().Get("service") == "test":
			user, password, _ := req.BasicAuth()
			r.login = user + ":" + password
			_, _ = fmt.Fprint(w, `{"access_token": "let-me-in"}`)
		case r.challenge != "" && req.Header.Get("Authorization") != "Bearer let-me-in":
			w.Header().Set("WWW-Authenticate", r.challenge)
			w.WriteHeader(http.StatusUnauthorized)
		case r.documents[path] != "":
			_, _ = fmt.Fprint(w, r.documents[path])
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// add adds a document and returns its digest.
func (r *fakeRegistry) add(kind, text string) string {
	sum := sha256.Sum256([]byte(text))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.documents[kind+"/"+digest] = text
	return digest
}

// demand sets what those without a token are told, and forgets the last login.
func (r *fakeRegistry) demand(challenge string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.challenge, r.login = challenge, ""
}

func (r *fakeRegistry) lastLogin() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.login
}

func (r *fakeRegistry) image(labels string) string {
	config := r.add("blobs", `{"architecture":"amd64","config":{"Labels":`+labels+`}}`)
	return r.add("manifests", `{"schemaVersion":2,"config":{"mediaType":"x","digest":"`+config+`"},"layers":[]}`)
}

func (r *fakeRegistry) labels(ctx context.Context, digest string, login *mariposa.Login) (map[string]string, error) {
	repository := newRemoteRepository(strings.TrimPrefix(r.URL, "http://"), "shop/web", "amd64", true, login)
	defer repository.close()
	return repository.labels(ctx, digest)
}

func TestLabelsOfAnImageThatTheEngineDoesNotHave(t *testing.T) {
	t.Parallel()
	r := newFakeRegistry(t)
	want := map[string]string{"a": "b"}
	arm, amd := r.image(`{"a":"arm"}`), r.image(`{"a":"b"}`)
	index := r.add("manifests", `{"manifests":[{"digest":"`+arm+`","platform":{"os":"linux","architecture":"arm64"}},{"digest":"`+amd+`","platform":{"os":"linux","architecture":"amd64"}}]}`)
	for name, digest := range map[string]string{"a manifest": amd, "an index": index} {
		if got, err := r.labels(t.Context(), digest, nil); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	r.demand(`Bearer realm="` + r.URL + `/token",service="test",scope="repository:shop/web:pull"`)
	for name, login := range map[string]*mariposa.Login{":": nil, "u:p": {Username: "u", Password: "p"}} {
		if got, err := r.labels(t.Context(), index, login); err != nil || !maps.Equal(got, want) || r.lastLogin() != name {
			t.Errorf("with a token for %q: %v, %v", r.lastLogin(), got, err)
		}
	}
}

// A hostile registry gets neither memory nor time, and no login without TLS.
func TestAHostileRegistryGivesNoLabels(t *testing.T) {
	t.Parallel()
	r := newFakeRegistry(t)
	other := r.image(`{"a":"b"}`)
	config := r.add("blobs", `{}`)
	r.mu.Lock()
	r.documents["blobs/"+config] = `{"config":{"Labels":{"a":"forged"}}}`
	r.mu.Unlock()
	for name, digest := range map[string]string{
		"a forged document": r.add("manifests", `{"config":{"digest":"`+config+`"}}`), "a path": r.add("manifests", `{"config":{"digest":"../../../token"}}`),
		"a large document": r.add("manifests", `{"config":{"digest":"`+other+`"},"more":"`+strings.Repeat("x", maxManifest)+`"}`), "nothing": r.add("manifests", `{}`), "no JSON": r.add("manifests", `x`),
	} {
		if got, err := r.labels(t.Context(), digest, nil); err == nil || got != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, challenge := range []string{`Bearer realm="file:///etc/passwd"`, `Basic realm="x"`, `Digest realm="x"`, "Bearer", `Bearer realm="` + r.URL + `/token",service="other"`} {
		r.demand(challenge)
		if got, err := r.labels(ctx, other, nil); err == nil || ctx.Err() != nil {
			t.Errorf("%s: %v, %v", challenge, got, err)
		}
	}
	secure := newRemoteRepository("registry.example", "shop/web", "amd64", false, &mariposa.Login{Username: "u", Password: "p"})
	r.demand("")
	if err := secure.answer(ctx, `Bearer realm="`+r.URL+`/token",service="test"`); err == nil || r.lastLogin() != "" {
		t.Errorf("%v; the login %q was sent without TLS", err, r.lastLogin())
	}
}

func TestWhichRegistriesNeedNoTLS(t *testing.T) {
	t.Parallel()
	c := &registry.ServiceConfig{
		IndexConfigs: map[string]*registry.IndexInfo{"lab:5000": {}, "docker.io": {Secure: true}}, InsecureRegistryCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	}
	for host, want := range map[string]bool{"lab:5000": true, "lab": false, "docker.io": false, "127.0.0.1:5000": true, "localhost:1": true, "10.1.2.3": true, "11.1.2.3:80": false, "[::1]:5000": true} {
		if isInsecure(c, host) != want {
			t.Errorf("%s: want %t", host, want)
		}
	}
	if isInsecure(nil, "lab:5000") || !isInsecure(nil, "127.0.0.1:5000") {
		t.Error("without a configuration, only the machine itself needs no TLS")
	}
}

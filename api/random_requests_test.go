package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"mariposa"
	"mariposa/api"
	"mariposa/store"
)

// checkingStore counts changes, and records those that not every store could store.
type checkingStore struct {
	store.Store
	mu    sync.Mutex
	made  int
	wrong []string
}

func (s *checkingStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	results := s.Store.Commit(ctx, units...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, u := range units {
		if results[i].Err == nil && changes(u) {
			s.made++
		}
		for _, w := range u.Writes {
			text, err := json.Marshal([]any{w.ID, w.Project, w.Spec, w.Status, w.Event})
			if err != nil || bytes.Contains(text, []byte(`\u0000`)) || bytes.Contains(text, []byte(`\ufffd`)) {
				s.wrong = append(s.wrong, string(text))
			}
		}
	}
	return results
}

func (s *checkingStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// operation is a route as the OpenAPI document describes it.
type operation struct {
	api.Route
	params []param
	body   schema // of its JSON body; nil: it takes none
}

type param struct{ Name, In string }

type schema map[string]any

// described is the part of the OpenAPI document from which requests are generated.
type described struct {
	Paths map[string]map[string]struct {
		Parameters  []param
		RequestBody *struct {
			Content map[string]struct{ Schema schema }
		}
	}
	Components struct{ Schemas map[string]schema }
}

func (h *testServer) operations() ([]operation, map[string]schema) {
	h.t.Helper()
	var doc described
	if err := json.Unmarshal(h.call("GET", "/openapi.json", nil).body, &doc); err != nil {
		h.t.Fatal(err)
	}
	var all []operation
	for _, rt := range api.UserRoutes() {
		op := doc.Paths[rt.Path][strings.ToLower(rt.Method)]
		o := operation{Route: rt, params: op.Parameters}
		if op.RequestBody != nil {
			o.body = op.RequestBody.Content["application/json"].Schema
			if o.body == nil {
				o.body = schema{"type": "object"}
			}
		}
		all = append(all, o)
	}
	return all, doc.Components.Schemas
}

// randomRequests generates requests: mostly valid for their route, each with something
// unexpected.
type randomRequests struct {
	*rand.Rand
	schemas map[string]schema
	good    map[string][]string // references that are there, by parameter
}

func (o *randomRequests) one(of []string) string { return of[o.IntN(len(of))] }

var randomTexts = []string{
	"", " ", ".", "..", "/", "%2f", "%00", "%ff", "\x00", "\xff\xfe", "ä", "\u2028", "' or 1=1 --", "{{ .meta.key }}", "null", "true", "-1", "0",
	"99999999999999999999", "1e400", "NaN", "a/b/c", "a b", "?", "#", "••••", "latest", "SELF", "admin", "../../etc/passwd", "<script>", "💥", "\r\nX: y",
	"00000000-0000-0000-0000-000000000000", "\ufffd", strings.Repeat("x", 63), strings.Repeat("y", 256), strings.Repeat("z", 5000),
}

var randomBodies = []string{
	"", " ", "null", "true", "0", "[]", "{}", `""`, "{", "[", `{"a":`, "\x00", "\xff\xfe\xfa", "{}{}", `{"":""}`, `{"action":"start","action":"stop"}`,
	`{"name":"a","name":"b"}`, `{"name":"\u0000"}`, `{"name":"\ud800"}`, "{\"name\":\"\xff\"}", `{"__proto__":{}}`, "a: &a [*a]", "a: b\n---\nc: d", "- x\n- y\n",
	strings.Repeat("[", 10_000), strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000), `{"scale":` + strings.Repeat("9", 400) + "}", "\ufeff{}",
	"services: {web: {compute_type: dummy}}", `{"services":{"web":{"compute_type":"dummy"}}}`, "key: value\n", "just a text",
}

var randomKinds = []string{
	"application/json", "application/json", "application/json", "application/json; charset=utf-8", "application/yaml", "text/plain", "application/x-www-form-urlencoded",
	"multipart/form-data; boundary=x", "application/octet-stream", "text/html", "", "not a type", "application/json; charset=\xff", "APPLICATION/JSON",
}

// value generates a value for a schema, and sometimes one that does not match.
func (o *randomRequests) value(s schema, depth int) any {
	if o.IntN(12) == 0 || depth > 6 {
		return o.anything(depth)
	}
	if ref, ok := s["$ref"].(string); ok {
		return o.value(o.schemas[ref[strings.LastIndexByte(ref, '/')+1:]], depth+1)
	}
	if words, ok := s["enum"].([]any); ok && o.IntN(4) > 0 {
		return words[o.IntN(len(words))]
	}
	kind, _ := s["type"].(string)
	if kinds, ok := s["type"].([]any); ok {
		kind, _ = kinds[o.IntN(len(kinds))].(string)
	}
	switch kind {
	case "object":
		out := map[string]any{}
		props, _ := s["properties"].(map[string]any)
		for name, p := range props {
			if sub, ok := p.(map[string]any); ok && o.IntN(3) > 0 {
				out[name] = o.value(sub, depth+1)
				if refs := o.good[name]; refs != nil && o.IntN(2) == 0 {
					out[name] = o.one(refs)
				}
			}
		}
		if o.IntN(10) == 0 {
			out[o.one(randomTexts)] = o.anything(depth)
		}
		return out
	case "array":
		items, _ := s["items"].(map[string]any)
		out := []any{}
		for range o.IntN(4) {
			out = append(out, o.value(items, depth+1))
		}
		return out
	case "integer", "number":
		return json.RawMessage(o.one([]string{"0", "1", "-1", "2.5", "1e3", "1e300", "9223372036854775807", "9223372036854775808", "99999999999999999999999"}))
	case "boolean":
		return o.IntN(2) == 0
	case "string":
		if o.IntN(2) == 0 {
			return o.one([]string{"shop", "x", "web", "1", "viewer", "a-name", "12h"})
		}
		return o.one(randomTexts)
	}
	return o.anything(depth)
}

func (o *randomRequests) anything(depth int) any {
	switch o.IntN(8) {
	case 0:
		return nil
	case 1:
		return true
	case 2:
		return json.RawMessage(o.one([]string{"-0", "1e400", "123456789012345678901234567890", "0.1"}))
	case 3:
		if depth < 6 {
			return []any{o.anything(depth + 1), o.anything(depth + 1)}
		}
	case 4:
		if depth < 6 {
			return map[string]any{o.one(randomTexts): o.anything(depth + 1)}
		}
	}
	return o.one(randomTexts)
}

// randomRequest is a generated request.
type randomRequest struct {
	method, path string
	body         []byte
	headers      []string
}

func (m randomRequest) String() string {
	return fmt.Sprintf("%s %q with %q and %.300q", m.method, m.path, m.headers, m.body)
}

// request generates a request for an operation.
func (o *randomRequests) request(op operation) randomRequest {
	m := randomRequest{method: op.Method, path: op.Path}
	query := url.Values{}
	for _, p := range op.params {
		ref := o.one(randomTexts)
		if refs := o.good[p.Name]; refs != nil && o.IntN(4) > 0 {
			ref = o.one(refs)
		}
		switch {
		case p.In == "path":
			m.path = strings.ReplaceAll(m.path, "{"+p.Name+"}", url.PathEscape(ref))
		case p.In == "query" && o.IntN(4) == 0:
			query.Set(p.Name, ref)
		}
	}
	if o.IntN(15) == 0 {
		query.Set(o.one([]string{"colour", "", "reveal", "force", "\xff"}), o.one(randomTexts))
	}
	if len(query) > 0 {
		m.path += "?" + query.Encode()
	}
	kind := "application/json"
	if o.IntN(4) == 0 {
		kind = o.one(randomKinds)
	}
	m.headers = []string{"Content-Type", clean(kind)}
	if op.body != nil || o.IntN(10) == 0 {
		if o.IntN(3) == 0 {
			m.body = []byte(o.one(randomBodies))
		} else {
			m.body, _ = json.Marshal(o.value(op.body, 0)) // 1e400 is JSON too
		}
		if o.IntN(20) == 0 && len(m.body) > 0 {
			m.body[o.IntN(len(m.body))] = byte(o.IntN(256))
		}
	}
	if o.IntN(8) == 0 {
		m.headers = append(m.headers, "Idempotency-Key", clean(o.one(randomTexts)))
	}
	return m
}

// clean removes characters that clients do not allow in headers.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
}

func (h *testServer) send(m randomRequest) reply {
	h.t.Helper()
	var body io.Reader
	if m.body != nil {
		body = bytes.NewReader(m.body)
	}
	req := must(http.NewRequestWithContext(h.ctx, m.method, h.url+m.path, body))(h.t)
	req.Header.Set("Authorization", "Bearer "+h.token)
	for i := 0; i+1 < len(m.headers); i += 2 {
		if m.headers[i+1] != "" {
			req.Header.Set(m.headers[i], m.headers[i+1])
		}
	}
	res := must(h.http.Do(req))(h.t)
	defer res.Body.Close()
	return reply{t: h.t, status: res.StatusCode, header: res.Header, body: must(io.ReadAll(res.Body))(h.t)}
}

// statuses are the HTTP statuses of the contract, and 405 for a wrong method.
var statuses = map[mariposa.Code][]int{
	mariposa.InvalidArgument: {400, 405}, mariposa.Unauthorized: {401}, mariposa.Forbidden: {403}, mariposa.ResourceNotFound: {404}, mariposa.Conflict: {409},
	mariposa.TooOld: {410}, mariposa.TooLarge: {413}, mariposa.Throttled: {429}, mariposa.QuotaExceeded: {409}, mariposa.Unavailable: {503},
}

// whyWrong returns what is wrong with a response to any request; empty: nothing.
func whyWrong(r reply) string {
	if r.status < 400 {
		return ""
	}
	var f failure
	if err := json.Unmarshal(r.body, &f); err != nil || f.Message == "" || f.Errors == nil || r.header.Get("Content-Type") != "application/json" {
		return "it is no failure in the words of the contract"
	}
	if !slices.Contains(statuses[f.Code], r.status) {
		return "its status does not belong to its code"
	}
	return ""
}

func (w *testTeams) references() map[string][]string {
	return map[string][]string{
		"project": {"shop", w.shop.ID, w.dark.ID}, "organization": {"acme", w.acme, "umbra", "sam"}, "user": {"sam", "olga", w.users["vera"]}, "service": {"web", "db"},
		"key": {"mode", "key", "new"}, "version": {"1", "2", "latest", w.shop.Version}, "tag": {"latest", "good"}, "node": {"n1"}, "package": {"small", "big"},
		"instance": {w.instance, w.single, "probe"}, "task": {*w.shop.Task}, "token": {w.token, "first"}, "manifest": {"services: {web: {compute_type: dummy}}"},
	}
}

// No request causes an internal error, all errors are errors of the contract, and a
// failed request changes nothing.
func TestNothingThatIsSentBreaksAnything(t *testing.T) {
	t.Parallel()
	rounds, each := 10, 350
	if testing.Short() {
		rounds = 2
	}
	answered, failed := map[string]int{}, 0
	for round := range uint64(rounds) {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) { // each with a server that ends with it
			s := &checkingStore{}
			w := newTestTeams(t, withStore(func(st store.Store) store.Store { s.Store = st; return s }))
			operations, schemas := w.operations()
			o := &randomRequests{Rand: rand.New(rand.NewPCG(round, 4)), schemas: schemas, good: w.references()}
			callers := []*testServer{w.testServer, w.testServer, w.asUser("olga"), w.asUser("ada"), w.asUser("sam")}
			for range each {
				op := operations[o.IntN(len(operations))]
				m := o.request(op)
				before := s.count()
				r := callers[o.IntN(len(callers))].send(m)
				if why := whyWrong(r); why != "" {
					t.Errorf("%s: %s: %d %s", m, why, r.status, r.body)
				}
				if r.status >= 400 {
					if failed++; s.count() != before {
						t.Errorf("%s failed with %d %s, and changed something", m, r.status, r.body)
					}
				} else {
					answered[op.ID]++
				}
			}
			for _, text := range s.wrong {
				t.Errorf("not every store can keep %s", text)
			}
			if contains(w.logs.String(), "level=ERROR") {
				t.Errorf("the server logged an internal error: %s", w.logs.String())
			}
		})
	}
	if !testing.Short() && (len(answered) < 40 || failed < 1000) {
		t.Errorf("%d requests failed, and only %d routes ever answered: %v", failed, len(answered), answered)
	}
}

func FuzzBodies(f *testing.F) {
	w := newTestTeams(f)
	operations, _ := w.operations()
	for i := range operations {
		f.Add(uint8(i), "x", "", []byte("{}"), "application/json")
	}
	for i, body := range randomBodies {
		f.Add(uint8(i), "shop", "organization=acme", []byte(body), randomKinds[i%len(randomKinds)])
	}
	f.Fuzz(func(t *testing.T, which uint8, ref, query string, body []byte, kind string) {
		h := *w.asUser("sam") // who has nothing that could go
		h.t = t
		op := operations[int(which)%len(operations)]
		m := randomRequest{method: op.Method, path: op.Path, body: body, headers: []string{"Content-Type", clean(kind)}}
		for _, p := range op.params {
			m.path = strings.ReplaceAll(m.path, "{"+p.Name+"}", url.PathEscape(ref))
		}
		if _, err := url.ParseQuery(query); err == nil && query != "" {
			m.path += "?" + (&url.URL{RawQuery: query}).Query().Encode()
		}
		if strings.Contains(m.path, "//") || strings.Contains(m.path, "/./") || strings.Contains(m.path, "..") {
			return // the client or the server would clean it first
		}
		r := h.send(m)
		if why := whyWrong(r); why != "" {
			t.Fatalf("%s: %s: %d %s", m, why, r.status, r.body)
		}
	})
}

// Text that not every store can store is rejected everywhere.
func TestTextThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	s := &checkingStore{}
	w := newTestTeams(t, withStore(func(st store.Store) store.Store { s.Store = st; return s }))
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/users", `{"name":"new","email":"a\u0000b"}`},
		{"PUT", "/v1/users/sam", `{"email":"a\u0000b"}`},
		{"POST", "/v1/tokens", `{"name":"a\u0000b"}`},
		{"PUT", "/v1/packages/big", `{"name":"big","memory":1,"cpu":1,"family":"a\u0000b"}`},
		{"POST", "/v1/organizations", `{"name":"a\u0000b"}`},
		{"POST", "/v1/projects", `{"name":"new","message":"a\u0000b","manifest":{"services":{}}}`},
		{"POST", "/v1/projects", `{"name":"new","manifest":{"services":{"web":{"compute_type":"process","command":["a\u0000b"]}}}}`},
		{"PUT", "/v1/projects/" + w.shop.ID + "?force=true", `{"message":"a\u0000b","metadata":{"mode":"c"}}`},
		{"PUT", "/v1/projects/" + w.shop.ID + "?force=true", `{"metadata":{"mode":"a\u0000b"}}`},
		{"PUT", "/v1/projects/" + w.shop.ID + "/metadata/mode", `{"value":"a\u0000b"}`},
		{"PUT", "/v1/projects/" + w.shop.ID + "/metadata", `{"mode":"a\u0000b"}`},
		{"PUT", "/v1/projects/" + w.shop.ID + "/state", `{"action":"revert","version":"1","message":"a\u0000b"}`},
		{"POST", "/v1/projects/" + w.shop.ID + "/tags", `{"tag":"a\u0000b","version":"1"}`},
		{"POST", "/v1/projects/" + w.shop.ID + "/copy", `{"name":"new","metadata":["a\u0000b"]}`},
		{"POST", "/v1/instances", `{"project":"` + w.shop.ID + `","name":"a\u0000b","compute_type":"dummy"}`},
		{"POST", "/v1/instances", `{"project":"` + w.shop.ID + `","compute_type":"process","command":["a\u0000b"]}`},
	} {
		if r := w.call(c.method, c.path, []byte(c.body)); r.status != 400 {
			t.Errorf("%s %s %s answered %d %s", c.method, c.path, c.body, r.status, r.body)
		}
		body := strings.ReplaceAll(c.body, `\u0000`, "\xff")
		if r := w.call(c.method, c.path, []byte(body)); r.status >= 500 {
			t.Errorf("%s %s %q answered %d %s", c.method, c.path, body, r.status, r.body)
		}
	}
	for _, text := range s.wrong {
		t.Errorf("not every store can keep %s", text)
	}
}

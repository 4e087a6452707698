package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

// planted are secrets that must appear only where they are explicitly requested. They
// contain characters that are escaped in some formats.
var planted = []string{`sword<fish>&"1"`, "later-secret-2", "third\\secret\n3", "made-secret-later-4", "copied-secret-5"}

// findPlanted searches a text for planted secrets, plain and as encoded in JSON, YAML,
// URLs and base64.
func findPlanted(text []byte, secrets []string) string {
	for _, secret := range secrets {
		quoted, _ := json.Marshal(secret)
		var plain bytes.Buffer
		e := json.NewEncoder(&plain)
		e.SetEscapeHTML(false)
		_ = e.Encode(secret) // a text can be written
		for _, form := range []string{secret, strings.Trim(string(quoted), `"`), strings.Trim(strings.TrimSpace(plain.String()), `"`)} {
			if i := bytes.Index(text, []byte(form)); i >= 0 {
				return fmt.Sprintf("%q in %q", secret, text[max(0, i-200):min(len(text), i+100)])
			}
		}
	}
	return ""
}

// everything returns the whole content of the store: every object, change and audit
// record, with base64 decoded.
func (h *testServer) everything() []byte {
	h.t.Helper()
	var all bytes.Buffer
	put := func(v any) {
		text := must(json.Marshal(v))(h.t)
		all.Write(text)
		all.WriteByte('\n')
		for _, word := range bytes.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(`",:{}[] `, r) }) {
			if raw, err := base64.StdEncoding.DecodeString(string(word)); err == nil && len(raw) > 8 {
				all.Write(raw)
				all.WriteByte('\n')
			}
		}
	}
	must(h.store.Snapshot(h.ctx, func(r store.Record) error { put(r); return nil }))(h.t)
	for _, kind := range mariposa.Kinds {
		for _, r := range must(h.store.List(h.ctx, store.Query{Kind: kind}))(h.t) {
			put(r)
		}
	}
	for _, c := range must(h.store.Changes(h.ctx, 0, 0))(h.t) {
		put(c)
	}
	for _, a := range must(h.store.Audit(h.ctx, store.AuditQuery{}))(h.t) {
		put(a)
	}
	return all.Bytes()
}

// Secrets in metadata are used in all parts of a definition; instances fail with errors
// that quote them, and versions change. No response, log or stored record contains one,
// unless a caller with permission requests it.
func TestAPlantedSecretIsFoundNowhere(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	node := h.join("n1")
	live := h.stream("", h.picture.Revision())
	defer live.close()
	var heard bytes.Buffer
	ended := make(chan struct{})
	go func() { // ends with the stream
		defer close(ended)
		_, _ = io.Copy(&heard, live.res.Body)
	}()
	said := h.live(node)
	live.close()
	<-ended
	if heard.Len() < 10_000 {
		t.Errorf("the stream brought only %d bytes", heard.Len())
	}
	logs, kept := []byte(h.logs.String()), h.everything()
	doc := want[map[string]string](h.call("GET", "/v1/projects/shop/metadata?reveal=true", nil), 200)
	if doc["key"] != planted[0] || len(doc["made"]) != 24 {
		t.Errorf("who may read secrets and asks reads %q", doc)
	}
	secrets := append([]string{doc["made"]}, planted...)
	for what, text := range map[string][]byte{
		"the answers": said, "the live events": heard.Bytes(), "the server's log": logs, "the store": kept,
	} {
		if found := findPlanted(text, secrets); found != "" {
			t.Errorf("%s reveal %s", what, found)
		}
		if what != "the server's log" && !bytes.Contains(text, []byte("quote")) {
			t.Errorf("%s do not mention the project", what)
		}
	}
	a := want[contract.Audit](h.call("GET", "/v1/audit?action=secret.read", nil), 200).Records
	if len(a) != 1 || a[0].ObjectName != "all" || a[0].ProjectName != "shop" {
		t.Errorf("reading secrets is recorded as %+v", a)
	}
}

const secretive = `services:
  web:
    compute_type: process
    command: [talk, "--key={{ .meta.key }}"]
    environment: {KEY: "{{ .meta.key }}", PLAIN: "{{ .meta.plain }}"}
    files: {/etc/key: "{{ .meta.key }}"}
    mdata: {key: "{{ .meta.key }}"}
    update: {min_healthy: 0}
  broken: {compute_type: process, command: [quote, "{{ .meta.key }}"], update: {min_healthy: 0, on_failure: continue}}
metadata:
  key: {secret: true, required: true}
  made: {secret: true, generate: 24}
  plain: {}
`

// live runs a project with secrets through its life cycle, and returns all responses.
func (h *testServer) live(node *loggingDriver) []byte {
	var said bytes.Buffer
	call := func(method, path string, body any, headers ...string) reply {
		r := h.call(method, path, body, headers...)
		fmt.Fprintf(&said, "%s %s: %d %v %s\n", method, path, r.status, r.header, r.body)
		return r
	}
	shop := map[string]any{"name": "shop", "manifest": secretive, "metadata": map[string]string{"key": planted[0], "plain": "visible"}}
	want[contract.Changed](call("POST", "/v1/projects", shop), 201)
	var id string
	h.until("an instance to run, and one to fail", func() bool {
		failed := false
		for _, i := range want[contract.Instances](h.call("GET", "/v1/instances?project=shop", nil), 200).Instances {
			if i.State == mariposa.StateRunning {
				id = i.ID
			}
			failed = failed || i.State == mariposa.StateFailed && contains(i.Reason, "cannot run quote")
		}
		return id != "" && failed
	})
	r := h.begin("/v1/instances/" + id + "/logs?follow=true&tail=16")
	node.speak <- "my key is " + planted[0] + ", as everybody knows"
	line := make([]byte, 64)
	n, _ := io.ReadAtLeast(r.Body, line, 30)
	said.Write(line[:n])
	r.Body.Close()

	const path = "/v1/projects/shop"
	call("PUT", path+"/metadata/key", planted[1], plainText...)
	want[contract.Changed](h.call("PUT", path+"/metadata/plain", planted[3], plainText...), 200)
	call("PUT", path+"/metadata/plain?secret=true", planted[3], plainText...) // it was none before
	call("PUT", path+"/metadata/other?secret=true", planted[2], plainText...)
	call("POST", path+"/copy", contract.Copy{Name: "twin", Metadata: []string{"key", "other"}}, "Idempotency-Key", "a key")
	call("POST", path+"/copy", contract.Copy{Name: "twin", Metadata: []string{"key", "other"}}, "Idempotency-Key", "a key")
	call("PUT", "/v1/projects/twin/metadata/key", map[string]string{"value": planted[4]}, "Idempotency-Key", "another")
	// Errors do not contain it.
	call("PUT", path+"/metadata", "key: "+planted[1]+"\n  bad: [\n")
	call("PUT", path+"/metadata", "- "+planted[1]+"\n")
	call("PUT", path+"/metadata", map[string]any{"key": []string{planted[1]}})
	call("PUT", path+"/metadata/key?cas=1", planted[1], plainText...)
	call("POST", path+"/metadata/key/incr", nil)
	call("PUT", path+"/metadata/key", []byte(`{"value":"`+planted[1]+`","colour":1}`+"}"))
	call("PUT", path+"?force=true", map[string]any{"metadata": map[string]string{"key": planted[1]}, "name": "Not A Name"})
	call("PUT", path+"/manifest?force=true", strings.Replace(secretive, "secret: true, required: true", "secret: true, pattern: '[0-9]'", 1))
	call("PUT", path+"/state", contract.Action{Action: "reprovision"})
	h.until("the new ones to run", func() bool {
		for _, i := range want[contract.Instances](h.call("GET", "/v1/instances?project=shop&state=running", nil), 200).Instances {
			if i.ID != id && i.ServiceName == "web" {
				return true
			}
		}
		return false
	})
	call("PUT", path+"/state", contract.Action{Action: "revert", Version: "1"})
	h.readAll(call)
	return said.Bytes()
}

// readAll requests everything that can be read about the project.
func (h *testServer) readAll(call func(method, path string, body any, headers ...string) reply) {
	h.t.Helper()
	const path = "/v1/projects/shop"
	versions := want[contract.Versions](call("GET", path+"/versions", nil), 200).Versions
	for _, v := range versions {
		call("GET", fmt.Sprintf("%s/versions/%d", path, v.Number), nil)
		for _, other := range versions {
			call("GET", fmt.Sprintf("%s/diff?from=%d&to=%d", path, other.Number, v.Number), nil)
		}
	}
	h.until("an instance of web to be shown", func() (shown bool) {
		for _, i := range want[contract.Instances](call("GET", "/v1/instances", nil), 200).Instances {
			r := call("GET", "/v1/instances/"+i.ID, nil)
			if r.status == 404 {
				continue // it was replaced in the meantime
			}
			one := want[contract.Instance](r, 200)
			if one.ServiceName != "web" || one.ProjectName != "shop" {
				continue
			}
			shown = true
			if !contains(strings.Join(one.Environment, " "), "KEY="+manifest.Mask) {
				h.t.Errorf("the environment is shown as %q", one.Environment)
			}
		}
		return shown
	})
	for _, k := range want[contract.Tasks](call("GET", "/v1/queue?all=true", nil), 200).Tasks {
		call("GET", "/v1/queue/"+k.ID, nil)
	}
	for _, one := range []string{
		"/v1/projects", path, path + "/manifest", path + "/metadata", path + "/metadata/key", path + "/metadata/made", path + "/metadata/plain", path + "/tags",
		path + "/state", path + "/services", path + "/services/web", path + "/services/broken/state", path + "/users", "/v1/state", "/v1/services", "/v1/nodes",
		"/v1/nodes/n1", "/v1/events?since=0&limit=1000", "/v1/events?limit=1000", "/v1/audit?limit=1000", "/v1/tokens", "/metrics", "/v1/projects/twin/metadata",
	} {
		call("GET", one, nil)
	}
	call("GET", path+"/metadata", nil, "Accept", "application/json")
	call("GET", "/v1/audit", nil, "Accept", "application/x-ndjson")
}

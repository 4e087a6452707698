package api_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

var plainText = []string{"Content-Type", "text/plain"}

// set sets a metadata key of shop as plain text.
func (h *testServer) set(key, value string, query ...string) reply {
	h.t.Helper()
	return h.call("PUT", "/v1/projects/shop/metadata/"+key+strings.Join(query, ""), value, plainText...)
}

func (h *testServer) key(key string) contract.MetadataKey {
	h.t.Helper()
	return want[contract.MetadataKey](h.call("GET", "/v1/projects/shop/metadata/"+key, nil), 200)
}

func TestMetadataIsKeptByteForByte(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	const path = "/v1/projects/shop/metadata"
	for name, doc := range map[string]string{
		"comments and blank lines": "# ours\n\nmode:   calm  # for now\n\n\nsize: 007\n",
		"other line ends":          "mode: calm\r\nsize: 1\r\n",
		"no end of line":           "mode: calm",
		"quotes of all kinds":      "a: 'it''s'\nb: \"tab\\there\"\n\"c-d\": \"\"\n",
		"several lines":            "cert: |\n  -----BEGIN-----\n  abc\n  -----END-----\nfolded: >-\n  one\n  two\nlast: x\n",
		"json":                     `{"mode": "calm", "n": 1.50, "yes": true, "gone": null}`,
		"spellings":                "a: 0x1F\nb: 1e3\nc: yes\nd: TRUE\ne: ~\nf: 3.10\n",
		"nothing":                  "# nothing yet\n",
	} {
		c := want[contract.Changed](h.call("PUT", path, doc), 200)
		got := h.call("GET", path+"?reveal=true", nil)
		if string(got.body) != doc || got.header.Get("Content-Type") != "application/yaml" || got.header.Get("Mariposa-Version") != c.Version {
			t.Errorf("%s: %q came back as %q", name, doc, got.body)
		}
		if again := want[contract.Changed](h.call("PUT", path, doc), 200); again.Number != c.Number {
			t.Errorf("%s: the same again made version %d after %d", name, again.Number, c.Number)
		}
	}
	before := "# ours\nmode: 'calm' # for now\nkey: sesame\n"
	want[contract.Changed](h.call("PUT", path, before), 200)
	want[contract.Changed](h.set("size", "7"), 200)
	want[contract.Changed](h.call("PUT", path+"/key", []byte(`{"value":"open","secret":true}`)), 200)
	if got := h.call("GET", path+"?reveal=true", nil); string(got.body) != "# ours\nmode: 'calm' # for now\nkey: open\nsize: 7\n" {
		t.Errorf("single changes made of it %q", got.body)
	}
	shown := string(h.call("GET", path, nil).body)
	if !contains(shown, "mode: 'calm' # for now") || !contains(shown, manifest.Mask) || contains(shown, "open") {
		t.Errorf("shown as %q", shown)
	}
	want[contract.Changed](h.call("PUT", path, strings.Replace(shown, "calm", "wild", 1)), 200)
	if got := h.call("GET", path+"?reveal=true", nil); string(got.body) != "# ours\nmode: 'wild' # for now\nkey: open\nsize: 7\n" {
		t.Errorf("submitting a masked secret changed it to %q", got.body)
	}
	list := want[contract.Metadata](h.call("GET", path, nil, "Accept", "application/json"), 200)
	if len(list.Keys) != 3 || list.Keys[0].Key != "key" || list.Keys[0].Value != manifest.Mask || !list.Keys[0].Secret || list.Keys[1].Value != "wild" {
		t.Errorf("listed as %+v", list)
	}
}

func TestAMetadataKeyIsSetCountedAndUnset(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello+"metadata: {count: {default: 40}}\n")
	const path = "/v1/projects/shop/metadata/"
	h.call("GET", path+"mode", nil).wantError(404, mariposa.ResourceNotFound, "mode")
	one := want[contract.Changed](h.set("mode", "calm"), 200)
	if one.Key != "mode" || one.Value != "calm" || one.CAS == "" || one.Number != 2 || one.Task != nil {
		t.Errorf("set: %+v", one)
	}
	if k := h.key("mode"); k.Value != "calm" || k.CAS != one.CAS || !k.Set || k.Declared || k.Changed == nil {
		t.Errorf("got: %+v", k)
	}
	for body, wanted := range map[string]string{`{"value":"a b"}`: "a b", `{"value":1.50}`: "1.50", `{"value":true}`: "true", `"bare"`: "bare", `12345678901234567890`: "12345678901234567890"} {
		if c := want[contract.Changed](h.call("PUT", path+"mode", []byte(body)), 200); c.Value != wanted || h.key("mode").Value != wanted {
			t.Errorf("%s became %q", body, c.Value)
		}
	}
	for _, body := range []string{`{"value":[1]}`, `{"value":{}}`, `{"value":null}`, `{`, `null`, `[]`, ``} {
		h.call("PUT", path+"mode", []byte(body)).wantError(400, mariposa.InvalidArgument)
	}
	h.set("a%20b", "x").wantError(400, mariposa.InvalidArgument, "name")
	h.set(strings.Repeat("k", 256), "x").wantError(400, mariposa.InvalidArgument)

	count := func(query string) string {
		return want[contract.Changed](h.call("POST", path+"count/"+query, nil), 200).Value
	}
	for _, c := range [][2]string{{"incr", "41"}, {"incr?by=10", "51"}, {"decr", "50"}, {"decr?by=60", "-10"}, {"incr?by=0", "-10"}} {
		if got := count(c[0]); got != c[1] {
			t.Errorf("%s made %s, not %s", c[0], got, c[1])
		}
	}
	h.call("POST", path+"count/incr?by=-1", nil).wantError(400, mariposa.InvalidArgument, "by")
	h.call("POST", path+"count/incr?by=x", nil).wantError(400, mariposa.InvalidArgument)
	h.call("POST", path+"mode/incr", nil).wantError(400, mariposa.InvalidArgument, "whole number")
	want[contract.Changed](h.set("count", "9223372036854775807"), 200)
	h.call("POST", path+"count/incr", nil).wantError(400, mariposa.InvalidArgument, "64-bit")

	cas := h.key("mode").CAS
	want[contract.Changed](h.set("mode", "x", "?cas="+cas), 200)
	h.set("mode", "y", "?cas="+cas).wantError(409, mariposa.Conflict, "changed by someone else")
	h.set("mode", "y", "?cas=0").wantError(409, mariposa.Conflict)
	h.set("new", "y", "?cas=1").wantError(409, mariposa.Conflict, "cas=0")
	want[contract.Changed](h.set("new", "y", "?cas=0"), 200)
	h.call("DELETE", path+"mode?cas="+cas, nil).wantError(409, mariposa.Conflict)
	h.call("POST", path+"count/decr?cas=1", nil).wantError(409, mariposa.Conflict)
	was := h.key("mode").CAS
	want[contract.Changed](h.call("DELETE", path+"mode?cas="+was, nil), 200)
	h.call("DELETE", path+"mode", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("GET", path+"mode", nil).wantError(404, mariposa.ResourceNotFound)
	if again := want[contract.Changed](h.set("mode", "x"), 200); again.CAS == was {
		t.Error("a key that was deleted and set again has the cas it had: who saw the first could overwrite the second")
	}
	want[contract.Changed](h.call("DELETE", path+"count", nil), 200)
	if k := h.key("count"); k.Set || k.Default != "40" || !k.Declared {
		t.Errorf("unset, the key is %+v", k)
	}
}

// Fifty users write one key with cas: every successful write replaced the value that
// its writer had seen, so that no write is lost.
func TestCASLosesNothingUnderManyWriters(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	want[contract.Changed](h.set("log", "begin"), 200)
	const writers = 50
	var all sync.WaitGroup
	var mu sync.Mutex
	before := map[string]string{} // what each value replaced
	for w := range writers {
		all.Go(func() {
			for {
				seen := h.key("log")
				mine := seen.Value + "," + strconv.Itoa(w)
				r := h.set("log", mine, "?cas="+seen.CAS)
				if r.status == 200 {
					mu.Lock()
					before[mine] = seen.Value
					mu.Unlock()
					return
				}
				r.wantError(409, mariposa.Conflict)
			}
		})
	}
	for range writers {
		all.Go(func() { want[contract.Changed](h.call("POST", "/v1/projects/shop/metadata/n/incr", nil), 200) })
	}
	all.Wait()
	value, n := h.key("log").Value, 0
	for ; value != "begin"; n++ {
		was, known := before[value]
		if !known {
			t.Fatalf("the value %q was never written", value)
		}
		value = was
	}
	if n != writers {
		t.Errorf("%d of %d writes are in the value", n, writers)
	}
	if got := h.key("n").Value; got != strconv.Itoa(writers) {
		t.Errorf("counted to %s", got)
	}
}

func TestAValueMayHaveAMegabyte(t *testing.T) {
	long(t)
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	const path = "/v1/projects/shop/metadata"
	full := strings.Repeat("x", manifest.MaxValue)
	want[contract.Changed](h.set("big", full), 200)
	if k := h.key("big"); k.Value != full {
		t.Errorf("%d bytes came back", len(k.Value))
	}
	escaped := `{"value":"` + strings.Repeat(`\u0041`, manifest.MaxValue) + `"}`
	if c := want[contract.Changed](h.call("PUT", path+"/letters", []byte(escaped)), 200); len(c.Value) != manifest.MaxValue {
		t.Errorf("the escaped value has %d bytes", len(c.Value))
	}
	before := h.recorded()
	h.set("big", full+"x").wantError(413, mariposa.TooLarge, "1048577", "1048576")
	h.set("big", full+full+full+full+full+full+full+full).wantError(413, mariposa.TooLarge)
	h.call("PUT", path+"/big", []byte(`{"value":"`+full+`x"}`)).wantError(413, mariposa.TooLarge, "big")
	h.call("PUT", path, "big: "+full+"x\n").wantError(413, mariposa.TooLarge, "big")
	h.call("PUT", path, "big: "+full+"\n"+strings.Repeat("# and more\n", 1<<19)).wantError(413, mariposa.TooLarge) // together it is too much
	h.call("POST", "/v1/projects", map[string]any{"name": "other", "manifest": hello, "metadata": map[string]string{"big": full + "x"}}).wantError(413, mariposa.TooLarge, "big")
	if got := h.recorded(); !maps.Equal(got, before) {
		t.Errorf("what was refused changed something: %v, before %v", got, before)
	}
	want[contract.Changed](h.call("PUT", path, "big: "+full+"\n"), 200)
}

// Values are checked against their declaration in the manifest. Errors never quote a value.
func TestValuesAreHeldAgainstTheirDeclaration(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	const declared = `services: {web: {compute_type: dummy}}
metadata:
  port: {type: integer, description: where it listens}
  debug: {type: boolean}
  level: {choices: [info, warn], default: info}
  host: {pattern: "[a-z.]+"}
  pin: {secret: true, pattern: "[0-9]{4}"}
`
	h.create("shop", declared)
	for key, values := range map[string][2]string{"port": {"8080", "plenty"}, "debug": {"true", "perhaps"}, "level": {"warn", "loud"}, "host": {"a.example", "A_B"}, "pin": {"1234", "swordfish"}} {
		f := h.set(key, values[1]).wantError(400, mariposa.InvalidArgument, key)
		if len(f.Errors) != 1 || f.Errors[0].Field != "metadata."+key || contains(fmt.Sprint(f), values[1]) {
			t.Errorf("%s: %+v", key, f)
		}
		want[contract.Changed](h.set(key, values[0]), 200)
	}
	f := h.call("PUT", "/v1/projects/shop/metadata", "port: many\npin: swordfish\nother: 1\n").wantError(400, mariposa.InvalidArgument)
	if len(f.Errors) != 2 || f.Errors[0].Line != 1 || f.Errors[1].Line != 2 || contains(fmt.Sprint(f), "swordfish") {
		t.Errorf("all faults: %+v", f)
	}
	h.call("PUT", "/v1/projects/shop/manifest?force=true", strings.Replace(declared, "[0-9]{4}", "[0-9]{5}", 1)).wantError(400, mariposa.InvalidArgument, "pin")
	f = h.call("POST", "/v1/projects", map[string]any{"name": "x", "manifest": declared, "metadata": map[string]string{"pin": "swordfish"}}).wantError(400, mariposa.InvalidArgument, "pin")
	if contains(fmt.Sprint(f), "swordfish") {
		t.Errorf("quoted: %+v", f)
	}
	if k := h.key("port"); k.Description != "where it listens" || k.Value != "8080" {
		t.Errorf("port is %+v", k)
	}
}

func TestValuesAreGenerated(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	const generating = "services: {web: {compute_type: dummy}}\nmetadata: {password: {secret: true, generate: 32}, salt: {generate: 8}}\n"
	h.create("shop", generating)
	reveal := func(project string) contract.MetadataKey {
		return want[contract.MetadataKey](h.call("GET", "/v1/projects/"+project+"/metadata/password?reveal=true", nil), 200)
	}
	first := reveal("shop")
	if len(first.Value) != 32 || strings.Trim(first.Value, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") != "" || !first.Secret {
		t.Errorf("generated: %+v", first)
	}
	if k := h.key("password"); k.Value != manifest.Mask {
		t.Errorf("shown: %+v", k)
	}
	if k := h.key("salt"); len(k.Value) != 8 || k.Secret {
		t.Errorf("generated: %+v", k)
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", generating+"# more\n"), 200)
	if again := reveal("shop"); again.Value != first.Value || again.CAS != first.CAS {
		t.Error("it was generated again")
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata", "mine: 1\n"), 200)
	if again := reveal("shop"); again.Value == first.Value || len(again.Value) != 32 {
		t.Errorf("unset and needed, it became %q", again.Value)
	}
	want[contract.Changed](h.call("POST", "/v1/projects/shop/copy", contract.Copy{Name: "twin"}), 201)
	if reveal("twin").Value == reveal("shop").Value {
		t.Error("the copy has the same password")
	}
	given := map[string]any{"name": "given", "manifest": generating, "metadata": map[string]string{"password": "mine"}}
	want[contract.Changed](h.call("POST", "/v1/projects", given), 201)
	if k := reveal("given"); k.Value != "mine" || !k.Secret {
		t.Errorf("what was given became %+v", k)
	}
}

// Metadata in an update of the project works like PUT /metadata: the project has the
// new version, whether or not a task applies the values.
func TestMetadataAloneCanBeSetWithTheProject(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	got := want[contract.Changed](h.call("PUT", "/v1/projects/shop?previous=1", map[string]any{"metadata": map[string]string{"mode": "fast"}}), 200)
	if got.Number != 2 || got.Task != nil {
		t.Errorf("set: %+v", got)
	}
	if p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); p.Number != 2 || p.Version != got.Version {
		t.Errorf("the project is at %d %s", p.Number, p.Version)
	}
	if key := want[contract.MetadataKey](h.call("GET", "/v1/projects/shop/metadata/mode", nil), 200); key.Value != "fast" {
		t.Errorf("the key is %+v", key)
	}
}

// The response names the services that still run with old values.
func TestAnAnswerNamesWhatRunsWithOldValues(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	const one, two = "{compute_type: dummy, environment: {V: '{{ .meta.one }}'}}", "{compute_type: dummy, environment: {V: '{{ .meta.both }}', W: '{{ .meta.one }}'}}"
	h.create("shop", "services:\n  a: "+strings.ReplaceAll(one, "one", "both")+"\n  b: "+two+"\nmetadata: {one: {default: x}, both: {default: x}}\n")
	h.awaitRest("shop")
	for key, says := range map[string]string{"one": "b still runs with the old values: ", "both": "a, b still run with the old values: "} {
		got := want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/"+key, "y", "Content-Type", "text/plain"), 200)
		if !strings.HasPrefix(got.Reason, says) {
			t.Errorf("after a change of %s: %q", key, got.Reason)
		}
	}
}

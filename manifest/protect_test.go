package manifest

import (
	"fmt"
	"strings"
	"testing"
)

const protecting = "services:\n" +
	"  db: {compute_type: dummy, environment: {PORT: \"1\", P: \"{{ .meta.pw }}\"}}\n" +
	"  web: {compute_type: dummy, environment: {DB: \"{{ .services.db.environment.P }}\", MODE: \"{{ .meta.mode }}\"}}\n" +
	"  live: {compute_type: dummy, mdata: {p: \"{{ .meta.pw }}\"}}\n" +
	"  escaped: {compute_type: dummy, command: [\"\\x7b\\u007b .meta.pw }}\"]}\n" +
	"  by-address: {compute_type: dummy, environment: {DB: \"{{ .services.db.address }}\"}}\n" +
	"metadata: {pw: {secret: true, protect: true}, mode: {}, other: {secret: true}}\n"

func TestOnlySecretsAreProtected(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"{protect: true}":                 "metadata.k.protect: only secrets can be protected; add secret: true",
		"{secret: true, protect: maybe}":  "metadata.k.protect",
		"{secret: true, protect: true}":   "",
		"{secret: true, protect: false}":  "",
		"{protect: false}":                "",
		"{secret: false, protect: true }": "only secrets can be protected",
	} {
		_, err := Parse([]byte("services: {}\nmetadata: {k: " + rule + "}\n"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(listing(err), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

func TestWhoIsGivenAValue(t *testing.T) {
	t.Parallel()
	p := mustParse(t, protecting)
	for service, want := range map[string]bool{
		"db": true, "web": true, "live": true, "escaped": true, "by-address": false, "nobody": false,
	} {
		if got := p.Holds(service, "pw"); got != want {
			t.Errorf("%s is given it: %v", service, got)
		}
	}
	if got := fmt.Sprint(p.RefersTo(), p.UsesAny([]string{"other", "pw"}), p.UsesAny(nil)); got != "[mode pw] [pw] []" {
		t.Errorf("it refers to %s", got)
	}
}

// The approved content depends on the manifest, on which keys are protected, and on every
// value that is referred to and not protected.
func TestTheContentOfAnApproval(t *testing.T) {
	t.Parallel()
	v := mustImport(t, nil, "pw: a\nmode: calm\nother: x\n")
	content := func(text string, v *Values, protected ...string) string {
		return mustParse(t, text).Content([]byte(text), v, protected, someMac)
	}
	base := content(protecting, v, "pw")
	for what, same := range map[string]string{
		"a new secret":            content(protecting, mustImport(t, v, "pw: b\nmode: calm\nother: x\n"), "pw"),
		"a value not referred to": content(protecting, mustImport(t, v, "pw: a\nmode: calm\nother: y\n"), "pw"),
		"protection of others":    content(protecting, v, "other", "pw"),
	} {
		if same != base {
			t.Errorf("%s makes it another", what)
		}
	}
	for what, other := range map[string]string{
		"a comment":               content(protecting+"# more\n", v, "pw"),
		"a value":                 content(protecting, mustImport(t, v, "pw: a\nmode: wild\nother: x\n"), "pw"),
		"a value that is not set": content(protecting, mustImport(t, v, "pw: a\nother: x\n"), "pw"),
		"more that is protected":  content(protecting, v, "mode", "pw"),
	} {
		if other == base {
			t.Errorf("%s leaves it the same", what)
		}
	}
	if unset := content(protecting, nil, "pw"); unset != content(protecting, mustImport(t, nil, "pw: a\n"), "pw") {
		t.Error("the first value of the secret makes it another")
	}
}

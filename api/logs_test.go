package api_test

import (
	"regexp"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// The end of a log may be a secret that an instance is still writing. It is held back
// until the rest of it is there.
func TestALogShowsNoPartOfASecretThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	node := h.join("n1")
	const talking = "services:\n  web: {compute_type: process, command: [talk], stop: {preservestopped: always}}\n"
	shop := map[string]any{"name": "shop", "manifest": talking, "metadata": map[string]string{"other": "visible"}}
	want[contract.Changed](h.call("POST", "/v1/projects", shop), 201)
	want[contract.Changed](h.set("key", "swordfish", "?secret=true"), 200)
	var id string
	h.until("the instance to run", func() bool {
		for _, i := range want[contract.Instances](h.call("GET", "/v1/instances?state=running", nil), 200).Instances {
			id = i.ID
		}
		return id != ""
	})
	stamp := regexp.MustCompile(`(?m)^\d{4}-\S+ `)
	read := func(query, text string) string {
		t.Helper()
		node.speak <- text
		r := h.call("GET", "/v1/instances/"+id+"/logs?tail=17"+query, nil)
		if r.status != 200 {
			t.Fatalf("answered %d: %s", r.status, r.body)
		}
		return stamp.ReplaceAllString(string(r.body), "TIME ")
	}
	for _, c := range []struct{ query, text, want string }{
		{"", "key=swordf", "key="},
		{"", "key=swordfish", "key=••••"},
		{"", "all is well\n", "all is well\n"},
		{"&timestamps=true&since=1h", "key=swordfis", "TIME key="},
		{"&reveal=true", "key=swordf", "key=swordf"},
	} {
		if got := read(c.query, c.text); got != c.want {
			t.Errorf("%q with %q is shown as %q, want %q", c.text, c.query, got, c.want)
		}
	}
	// An instance that has ended writes no more: what its log ends with is all there is.
	h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
	for text, shown := range map[string]string{"key=swordf": "key=••••", "it has ended": "it has ended", "it is us": "it is us"} {
		if got := read("", text); got != shown {
			t.Errorf("after the end, %q is shown as %q, want %q", text, got, shown)
		}
	}
}

package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/picture"
	"mariposa/store"
)

func (h *testServer) stored(project string) contract.Stored {
	h.t.Helper()
	return *want[contract.Project](h.as(adminToken).call("GET", "/v1/projects/"+project, nil), 200).Stored
}

// manyValues returns a metadata document of about n bytes.
func manyValues(bytes int) string {
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same bytes each time
	var doc strings.Builder
	for i := 0; doc.Len() < bytes; i++ {
		fmt.Fprintf(&doc, "key_%d: %q\n", i, strings.Repeat(string(rune('a'+chance.IntN(26))), 1+chance.IntN(2000)))
	}
	return doc.String()
}

// Regression: forty changes of one byte stored forty times four megabytes, and as much
// in the feed.
func TestGenerationsOfMetadataShareWhatDidNotChange(t *testing.T) {
	long(t)
	t.Parallel()
	h := newTestServer(t, keepVersions(1000))
	h.create("shop", "services: {web: {compute_type: dummy}}\n")
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata?force=true", manyValues(128<<10)), 200)
	before := h.stored("shop")
	if before.Metadata < 128<<10 || before.Metadata > 256<<10 || before.Total != before.Versions+before.Metadata || before.Limit != mariposa.DefaultStoredPerProject {
		t.Fatalf("one generation takes %+v", before)
	}
	const changes = 20
	for i := range changes {
		want[contract.Changed](h.call("PUT", fmt.Sprintf("/v1/projects/shop/metadata/key_%d", i*3), []byte(`{"value":"x"}`)), 200)
	}
	after := h.stored("shop")
	if each := (after.Metadata - before.Metadata) / changes; each < 1000 || each > 90_000 {
		t.Errorf("a change of one byte stores %d bytes", each)
	}
	if q := want[contract.Quota](h.call("GET", "/v1/organizations/admin/quota", nil), 200); q.Stored.Used != after.Total || q.Stored.PerProject != after.Limit {
		t.Errorf("the quota is %+v, the project %+v", q.Stored, after)
	}
	for _, c := range must(h.store.Changes(context.Background(), 0, 0))(t) {
		if (c.Record.Kind == mariposa.KindPart || c.Record.Kind == mariposa.KindMetadata) && c.Record.Spec != nil {
			t.Fatalf("the feed holds %s %s", c.Record.Kind, c.Record.ID)
		}
	}
	h.readsEveryGeneration("shop")
}

// The size of a project's events is shown separately, and does not count against the
// limit of the rest.
func TestStoredEventsAreShown(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", "services: {web: {compute_type: dummy}}\n")
	before := h.stored("shop")
	if before.Events <= 0 || before.EventsLimit != mariposa.DefaultStoredPerProject/4 || before.Total != before.Versions+before.Metadata {
		t.Fatalf("stored %+v", before)
	}
	for i := range 60 {
		want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/key", fmt.Appendf(nil, `{"value":"%d"}`, i)), 200)
	}
	after := h.stored("shop")
	if after.Events <= before.Events || after.Events%4096 != 0 {
		t.Errorf("%d bytes of events before sixty changes, %d after", before.Events, after.Events)
	}
	q := want[contract.Quota](h.call("GET", "/v1/organizations/admin/quota", nil), 200)
	if q.Stored.Events != after.Events || q.Stored.EventsPerProject != after.EventsLimit {
		t.Errorf("the quota is %+v, the project %+v", q.Stored, after)
	}
	want[contract.Settings](h.call("PUT", "/v1/settings", []byte(`{"stored_per_project": 40000000}`)), 200)
	if got := h.stored("shop"); got.EventsLimit != 10_000_000 {
		t.Errorf("with a limit of 40 MB, %d bytes of events may be kept", got.EventsLimit)
	}
}

// readsEveryGeneration checks that every kept version has all of its values, and that
// no unused part is kept.
func (h *testServer) readsEveryGeneration(name string) {
	h.t.Helper()
	project := want[contract.Project](h.call("GET", "/v1/projects/"+name, nil), 200)
	cache := picture.NewVersionCache(h.store, h.vault)
	inUse, generations := map[string]bool{}, map[int]bool{}
	for _, r := range must(h.store.List(h.ctx, store.Query{Kind: mariposa.KindVersion, Project: project.ID}))(h.t) {
		spec := r.Spec.(*mariposa.VersionSpec)
		v := must(cache.Version(h.ctx, project.ID, spec.Number))(h.t)
		if (v.Values == nil) != (spec.Metadata == 0) {
			h.t.Errorf("version %d has the values %v", spec.Number, v.Values)
		}
		generations[spec.Metadata] = true
	}
	for _, r := range must(h.store.List(h.ctx, store.Query{Kind: mariposa.KindMetadata, Project: project.ID}))(h.t) {
		spec := r.Spec.(*mariposa.MetadataSpec)
		if !generations[spec.Number] {
			h.t.Errorf("generation %d is kept, and no version has it", spec.Number)
		}
		for _, ref := range spec.Parts {
			inUse[ref.ID(project.ID)] = true
		}
	}
	for _, r := range must(h.store.List(h.ctx, store.Query{Kind: mariposa.KindPart, Project: project.ID}))(h.t) {
		if !inUse[r.ID] {
			h.t.Errorf("part %s is kept, and no generation has it", r.ID)
		}
	}
}

// After any sequence of changes, all kept values can be read, and nothing else is kept.
func TestForgettingVersionsKeepsThePartsThatOthersShare(t *testing.T) {
	long(t)
	t.Parallel()
	h := newTestServer(t, keepVersions(4))
	c := h.create("shop", "services: {web: {compute_type: dummy}}\n")
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata?force=true", manyValues(60<<10)), 200)
	chance := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same steps each time
	for i := range 40 {
		key := fmt.Sprintf("/v1/projects/shop/metadata/key_%d", chance.IntN(60))
		switch chance.IntN(6) {
		case 0:
			h.call("DELETE", key, nil)
		case 1:
			want[contract.Changed](h.call("POST", "/v1/projects/shop/metadata/counter/incr", nil), 200)
		case 2:
			want[contract.Changed](h.call("POST", "/v1/projects/shop/tags", contract.NewTag{Tag: fmt.Sprintf("t%d", i%3), Version: "latest"}), 201)
		case 3:
			for _, v := range want[contract.Versions](h.call("GET", "/v1/projects/shop/versions", nil), 200).Versions[1:2] {
				h.call("PUT", "/v1/projects/shop/state", fmt.Appendf(nil, `{"action":"revert","version":"%d"}`, v.Number))
			}
		default:
			want[contract.Changed](h.call("PUT", key, fmt.Appendf(nil, `{"value":%q}`, strings.Repeat("v", chance.IntN(3000)))), 200)
		}
		if i%4 == 3 {
			h.readsEveryGeneration("shop")
		}
	}
	if n := len(want[contract.Versions](h.call("GET", "/v1/projects/shop/versions", nil), 200).Versions); n > 9 {
		t.Errorf("%s has %d versions", c.Name, n)
	}
}

// A generation that an earlier release stored as a whole can be read, and later ones
// share its parts.
func TestMetadataFromBeforePartsIsReadAndSharedFromTheNextChangeOn(t *testing.T) {
	long(t)
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", "services: {web: {compute_type: dummy}}\n")
	doc := manyValues(150 << 10)
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata?force=true", doc), 200)
	box := must(h.vault.Box(h.ctx, c.ID))(t)
	id := mariposa.MetadataID(c.ID, 1)
	whole := must(json.Marshal(map[string]any{"document": doc, "last": 7, "keys": map[string]any{"key_1": map[string]any{"secret": true, "cas": 7}}}))(t)
	u := store.Unit{}
	u.Put(store.Write{Kind: mariposa.KindMetadata, ID: id, Project: c.ID, Spec: &mariposa.MetadataSpec{Project: c.ID, Number: 1, Sealed: box.Seal(whole, []byte(id))}})
	for _, r := range must(h.store.List(h.ctx, store.Query{Kind: mariposa.KindPart, Project: c.ID}))(t) {
		u.Delete(mariposa.KindPart, r.ID, mariposa.Event{})
	}
	h.commit(u)
	old := h.restart()
	if got := want[contract.MetadataKey](old.call("GET", "/v1/projects/shop/metadata/key_1?reveal=true", nil), 200); got.CAS != "7" || !got.Secret || !strings.Contains(doc, fmt.Sprintf("key_1: %q", got.Value)) {
		t.Errorf("it is read as %.100v", got)
	}
	want[contract.Changed](old.call("PUT", "/v1/projects/shop/metadata/key_2", []byte(`{"value":"x"}`)), 200)
	before := old.stored("shop").Metadata
	want[contract.Changed](old.call("PUT", "/v1/projects/shop/metadata/key_2", []byte(`{"value":"y"}`)), 200)
	if more := old.stored("shop").Metadata - before; more > 90_000 {
		t.Errorf("a change of one byte stores %d bytes", more)
	}
	old.readsEveryGeneration("shop")
}

func TestWhatIsStoredOfAProjectIsBounded(t *testing.T) {
	long(t)
	t.Parallel()
	h := newTestServer(t)
	manifest := func(n, bytes int) string {
		return fmt.Sprintf("services: {web: {compute_type: dummy}}\n# %d %s\n", n, strings.Repeat("x", bytes))
	}
	c := h.create("shop", manifest(1, 100_000))
	h.plan(c.ID, settledAlone(c))
	h.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindVersion, ID: mariposa.VersionID(c.ID, 1), Status: &mariposa.VersionStatus{Completed: time.Now()}}}})
	h.quota("admin", `{"stored_per_project":1000000}`)
	put := func(n, bytes int) reply {
		return h.call("PUT", "/v1/projects/shop/manifest?force=true", manifest(n, bytes))
	}
	for n := 2; n <= 20; n++ {
		want[contract.Changed](put(n, 100_000), 200)
		if s := h.stored("shop"); s.Total > 1_000_000 || s.Limit != 1_000_000 {
			t.Fatalf("after version %d, %+v is stored", n, s)
		}
	}
	numbers := func() (all []int) {
		for _, v := range want[contract.Versions](h.call("GET", "/v1/projects/shop/versions", nil), 200).Versions {
			all = append(all, v.Number)
		}
		return all
	}
	if got := numbers(); got[0] != 20 || got[len(got)-1] != 1 || len(got) > 8 {
		t.Errorf("versions %v are left: the newest, and 1 which is in force and is what a revert goes back to", got)
	}

	// Tagged versions are kept. A change over the limit is then rejected with a hint.
	for i, n := range numbers() {
		want[contract.Changed](h.call("POST", "/v1/projects/shop/tags", contract.NewTag{Tag: fmt.Sprintf("t%d", i), Version: fmt.Sprint(n)}), 201)
	}
	before := numbers()
	put(21, 300_000).wantError(409, mariposa.QuotaExceeded, "project shop", "its limit is 976 KiB", "tags", "smaller", "installation admin")
	h.call("PUT", "/v1/projects/shop/metadata?force=true", manyValues(400_000)).wantError(409, mariposa.QuotaExceeded, "project shop")
	if got := numbers(); fmt.Sprint(got) != fmt.Sprint(before) {
		t.Errorf("a refused change left %v of %v", got, before)
	}
	want[contract.Changed](put(21, 10), 200) // what is smaller is let through
	h.quota("admin", `{"stored_per_project":2000000}`)
	want[contract.Changed](put(22, 300_000), 200)
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/state", []byte(`{"action":"revert"}`)), 202)
}

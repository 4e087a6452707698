package api_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"mariposa"
	"mariposa/api"
	"mariposa/contract"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestEverythingButAFewPathsNeedsTheToken(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	for _, path := range []string{"/v1/projects", "/v1/state", "/v1/nothing", "/nothing", "/v1/events", "/v1/manifest.schema.json", "/v1/users/admin/projects", "/v1/agent"} {
		for _, header := range []string{"", "Bearer", "Bearer wrong", "Basic " + adminToken, adminToken, "Bearer " + adminToken + "x"} {
			r := h.call("GET", path, nil, "Authorization", header)
			r.wantError(401, mariposa.Unauthorized)
			if r.header.Get("Www-Authenticate") == "" {
				t.Error("it does not say what is wanted")
			}
		}
	}
	h.call("GET", "/v1/projects", nil, "Authorization", "Bearer "+joinToken).wantError(401, mariposa.Unauthorized)
	h.call("GET", "/v1/agent", nil).wantError(401, mariposa.Unauthorized)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/"} {
		if r := h.call("GET", path, nil, "Authorization", ""); r.status != 200 {
			t.Errorf("%s answered %d", path, r.status)
		}
	}
	if r := h.call("GET", "/v1/projects", nil, "Authorization", "bearer "+adminToken); r.status != 200 {
		t.Errorf("the scheme is not a matter of case: %d", r.status)
	}
}

func TestWhatIsNotThereIsReportedInOurWords(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	for _, path := range []string{"/v1", "/v1/", "/v1/nothing", "/v1/projects/", "/v1/projects/a/b/c", "/v1/users/bob/projects", "/v1/users/admin/nothing", "/v1/users/bob"} {
		h.call("GET", path, nil).wantError(404, mariposa.ResourceNotFound)
	}
	r := h.call("PATCH", "/v1/projects", nil)
	r.wantError(405, mariposa.InvalidArgument, "PATCH")
	if allow := r.header.Get("Allow"); !strings.Contains(allow, "POST") {
		t.Errorf("Allow: %s", allow)
	}
	for _, path := range []string{"/v1/projects/x", "/v1/projects/x/manifest", "/v1/projects/x/versions", "/v1/projects/x/state", "/v1/projects/x/services", "/v1/projects/x/services/y", "/v1/projects/" + newID(), "/v1/nodes/x", "/v1/events?project=x"} {
		h.call("GET", path, nil).wantError(404, mariposa.ResourceNotFound)
	}
}

func TestAddressesThatAreNoTextAreRefused(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	for _, path := range []string{"/v1/queue/%00", "/v1/queue/%ff", "/v1/queue?marker=%00&all=true", "/v1/projects?name=%ff", "/v1/projects?name=%zz", "/v1/users/admin/queue/%00"} {
		h.call("GET", path, nil).wantError(400, mariposa.InvalidArgument)
	}
	h.call("POST", "/v1/projects", map[string]any{"name": "x", "manifest": hello, "message": "\x00"}).wantError(400, mariposa.InvalidArgument, "message")
}

func TestUnknownParametersAreErrors(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	for _, rt := range api.UserRoutes() {
		if rt.ID == "manifest-schema" { // a file, which editors may ask for in any way
			continue
		}
		q := w.sample(rt)
		sep := "?"
		if strings.Contains(q.path, "?") {
			sep = "&"
		}
		q.path += sep + "colour=red"
		f := w.send(visitor{token: adminToken, user: "admin"}, q).wantError(400, mariposa.InvalidArgument, "colour")
		if len(f.Errors) == 0 || f.Errors[0].Field != "colour" || f.Errors[0].Code != mariposa.FaultUnknown {
			t.Errorf("%s: %+v", rt, f.Errors)
		}
	}
}

func TestAUsersPrefixMeansTheSame(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := want[contract.Changed](h.call("POST", "/v1/users/admin/projects?name=shop", hello), 201)
	for _, path := range []string{"/v1/projects/shop", "/v1/users/admin/projects/shop", "/v1/users/admin/projects/" + c.ID} {
		if p := want[contract.Project](h.call("GET", path, nil), 200); p.Name != "shop" {
			t.Errorf("%s: %+v", path, p)
		}
	}
}

func TestTheOpenAPIDocumentIsAsPromised(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	r := h.call("GET", "/openapi.json", nil)
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID, Summary string
			Tags                 []string
		}
	}
	if err := json.Unmarshal(r.body, &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("%v, version %q", err, doc.OpenAPI)
	}
	seen := map[string]bool{}
	for _, rt := range api.Routes() {
		op := doc.Paths[rt.Path][strings.ToLower(rt.Method)]
		if op.OperationID != rt.ID || op.Summary == "" || len(op.Tags) != 1 || seen[rt.ID] {
			t.Errorf("%s is not described, or twice: %+v", rt, op)
		}
		seen[rt.ID] = true
	}
	described := 0
	for _, methods := range doc.Paths {
		described += len(methods)
	}
	if described != len(seen) {
		t.Errorf("%d operations are described, and the table has %d routes", described, len(seen))
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, r.body, "", "  "); err != nil {
		t.Fatal(err)
	}
	pretty.WriteByte('\n')
	sameAsGolden(t, "testdata/openapi.json", pretty.Bytes())
}

// The golden file prevents accidental changes of permissions and audit actions.
func TestPermissionsAndAuditNamesAreAsPromised(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, rt := range api.Routes() {
		access := rt.Callers
		if access == "users" {
			access = strings.TrimSuffix(string(rt.Permission)+" on "+rt.On, " on ")
		}
		for _, word := range slices.Sorted(maps.Keys(rt.Variants)) {
			access += fmt.Sprintf(", %s: %s", word, rt.Variants[word])
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", rt, cmp.Or(rt.Audit, "-"), map[bool]string{true: "text", false: "-"}[rt.Text], access)
	}
	table.Flush()
	sameAsGolden(t, "testdata/routes.txt", text.Bytes())
}

// sameAsGolden compares with a golden file, or writes it with -update.
func sameAsGolden(t *testing.T, golden string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept := must(os.ReadFile(golden))(t); !bytes.Equal(kept, got) {
		t.Error("the API is no longer as " + golden + " says; if that is wanted, run this test with -update")
	}
}

func TestTheDocsPageNeedsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	r := h.call("GET", "/docs", nil)
	page := string(r.body)
	if r.status != 200 || !strings.HasPrefix(r.header.Get("Content-Type"), "text/html") {
		t.Fatalf("answered %d %s", r.status, r.header)
	}
	for _, part := range []string{"/v1/projects/{project}/manifest", "Submit a new manifest", "NewProject"} {
		if !strings.Contains(page, part) {
			t.Errorf("the page does not say %q", part)
		}
	}
	if strings.Contains(page, "<script") || strings.Contains(page, "http://") || strings.Contains(page, "https://") {
		t.Error("the page reaches out")
	}
}

func TestMetricsCountRequestsByRoute(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	h.call("GET", "/v1/projects/shop", nil)
	h.call("GET", "/v1/projects/nobody", nil)
	h.call("GET", "/v1/made-up-"+newID(), nil)
	text := string(h.call("GET", "/metrics", nil).body)
	for _, line := range []string{
		`mariposa_http_requests_total{code="200",route="GET /v1/projects/{project}"} 1`,
		`mariposa_http_requests_total{code="404",route="GET /v1/projects/{project}"} 1`,
		`mariposa_http_requests_total{code="404",route="none"} 1`,
		`mariposa_http_request_seconds_count{route="POST /v1/projects"} 1`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("%s is missing", line)
		}
	}
	if strings.Contains(text, "made-up") {
		t.Error("a label was made up by a caller")
	}
}

func TestTheSchemaOfManifestsIsServed(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	r := h.call("GET", "/v1/manifest.schema.json", nil)
	if r.status != http.StatusOK || !json.Valid(r.body) || !strings.Contains(string(r.body), "compute_type") {
		t.Errorf("answered %d", r.status)
	}
}

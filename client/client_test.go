package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/leaktest"
	"mariposa/listener/porttest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// must fails a test for an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve starts a server, and a client that does not wait between attempts.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(Options{URL: srv.URL + "/", Token: "s3cret", UserAgent: "test/1", Organization: "acme"})
	must(t, err)
	t.Cleanup(c.Close)
	c.pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return c
}

// asked returns a received request in one line.
func asked(r *http.Request) string {
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.RequestURI()
	if len(body) > 0 {
		line += " " + r.Header.Get("Content-Type") + " " + string(body)
	}
	return line
}

func TestEveryMethodAsksForItsPath(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	drop := func(_ any, err error) error { return err }
	for _, c := range []struct {
		want string
		call func(c *Client) error
	}{
		{"GET /v1/projects?name=x&organization=acme", func(c *Client) error { return drop(c.Projects(ctx, "x")) }},
		{"POST /v1/projects?message=hi+there&name=x&organization=acme application/yaml a: 1", func(c *Client) error { return drop(c.CreateProject(ctx, "x", []byte("a: 1"), "hi there")) }},
		{"GET /v1/projects/a%2Fb?organization=acme", func(c *Client) error { return drop(c.Project(ctx, "a/b")) }},
		{"PUT /v1/projects/x/manifest?message=m&organization=acme&previous=abc&rolling=25%25 application/yaml a: 2", func(c *Client) error {
			return drop(c.UpdateManifest(ctx, "x", []byte("a: 2"), Update{Previous: "abc", Rolling: "25%", Message: "m"}))
		}},
		{"PUT /v1/projects/x/manifest?force=true&organization=acme application/yaml a: 2", func(c *Client) error {
			return drop(c.UpdateManifest(ctx, "x", []byte("a: 2"), Update{Force: true}))
		}},
		{"GET /v1/projects/x/manifest?organization=acme", func(c *Client) error { return drop(c.Manifest(ctx, "x")) }},
		{"GET /v1/projects/x/services?organization=acme", func(c *Client) error { return drop(c.Services(ctx, "x")) }},
		{"GET /v1/projects/x/services/web?organization=acme", func(c *Client) error { return drop(c.Service(ctx, "x", "web")) }},
		{"POST /v1/projects/x/services?message=m&name=web&organization=acme application/yaml a: 1", func(c *Client) error {
			return drop(c.AddService(ctx, "x", "web", []byte("a: 1"), Update{Message: "m"}))
		}},
		{"PUT /v1/projects/x/services/web?organization=acme&rolling=2 application/yaml a: 1", func(c *Client) error {
			return drop(c.UpdateService(ctx, "x", "web", []byte("a: 1"), Update{Rolling: "2"}))
		}},
		{"DELETE /v1/projects/x/services/web?organization=acme&previous=3", func(c *Client) error { return drop(c.DeleteService(ctx, "x", "web", Update{Previous: "3"})) }},
		{"DELETE /v1/projects/x?force=true&organization=acme", func(c *Client) error { return drop(c.DeleteProject(ctx, "x", true)) }},
		{"DELETE /v1/projects/x?organization=acme&volumes=true", func(c *Client) error { return drop(c.DeleteWithVolumes(ctx, "x", false)) }},
		{"GET /v1/volumes?node=n1&organization=acme&project=x&service=db", func(c *Client) error {
			return drop(c.AllVolumes(ctx, VolumeFilter{Project: "x", Service: "db", Node: "n1"}))
		}},
		{"GET /v1/volumes/v1", func(c *Client) error { return drop(c.Volume(ctx, "v1")) }},
		{`POST /v1/volumes/v1/attach application/json {"project":"shop"}`, func(c *Client) error {
			return drop(c.AttachVolume(ctx, "v1", contract.VolumeAttachment{Project: "shop"}))
		}},
		{"DELETE /v1/volumes/v1", func(c *Client) error { return drop(c.DeleteVolume(ctx, "v1")) }},
		{"GET /v1/projects/x/versions?organization=acme", func(c *Client) error { return drop(c.Versions(ctx, "x")) }},
		{"PUT /v1/projects/x/versions/3/approval?organization=acme", func(c *Client) error { return drop(c.ApproveVersion(ctx, "x", "3")) }},
		{"DELETE /v1/projects/x/versions/3/approval?organization=acme", func(c *Client) error { return drop(c.WithdrawApproval(ctx, "x", "3")) }},
		{"GET /v1/projects/x/versions/3?organization=acme", func(c *Client) error { return drop(c.Version(ctx, "x", "3")) }},
		{`PUT /v1/projects/x/state?organization=acme application/json {"action":"reprovision","rolling":2,"services":["web"]}`, func(c *Client) error {
			return drop(c.Act(ctx, "x", contract.Action{Action: "reprovision", Rolling: Amount("2"), Services: []string{"web"}}))
		}},
		{`PUT /v1/projects/x/services/web/state?organization=acme application/json {"action":"stop"}`, func(c *Client) error {
			return drop(c.ActOnService(ctx, "x", "web", contract.Action{Action: "stop"}))
		}},
		{`PUT /v1/projects/x/state?organization=acme application/json {"action":"scale","scale":{"api":"-1","db":3,"web":"+2"}}`, func(c *Client) error {
			return drop(c.Scale(ctx, "x", map[string]string{"web": "+2", "db": "3", "api": "-1"}))
		}},
		{"GET /v1/state", func(c *Client) error { return drop(c.State(ctx, "", "")) }},
		{"GET /v1/state?organization=acme&project=x&service=web", func(c *Client) error { return drop(c.State(ctx, "x", "web")) }},
		{"GET /v1/queue?all=true&limit=1000&organization=acme&project=x&state=failed", func(c *Client) error {
			return drop(c.Queue(ctx, TaskFilter{Project: "x", State: "failed", All: true}))
		}},
		{"GET /v1/queue?limit=50&service=web", func(c *Client) error { return drop(c.Queue(ctx, TaskFilter{Service: "web", Limit: 50})) }},
		{"GET /v1/queue/t1", func(c *Client) error { return drop(c.Task(ctx, "t1")) }},
		{"GET /v1/queue/t1?limit=20", func(c *Client) error { return drop(c.TaskSteps(ctx, "t1", 20)) }},
		{"DELETE /v1/queue/t1", func(c *Client) error { return drop(c.TerminateTask(ctx, "t1")) }},
		{"POST /v1/projects/x/plan?organization=acme", func(c *Client) error { return drop(c.Plan(ctx, "x", nil, "", "")) }},
		{"POST /v1/projects/x/plan?canary=1&organization=acme&rolling=25%25 application/yaml a: 1", func(c *Client) error { return drop(c.Plan(ctx, "x", []byte("a: 1"), "25%", "1")) }},
		{"GET /v1/instances?node=n1&state=running", func(c *Client) error { return drop(c.AllInstances(ctx, InstanceFilter{Node: "n1", State: "running"})) }},
		{"GET /v1/instances/i1", func(c *Client) error { return drop(c.Instance(ctx, "i1")) }},
		{`PUT /v1/instances/i1 application/json {"action":"crash"}`, func(c *Client) error { return drop(c.ActOnInstance(ctx, "i1", "crash")) }},
		{"GET /v1/events?limit=5&organization=acme&project=x&since=7", func(c *Client) error { return drop(c.Events(ctx, EventFilter{Since: 7, Project: "x", Limit: 5})) }},
		{"GET /v1/events?limit=1", func(c *Client) error { return drop(c.Revision(ctx)) }},
		{"GET /v1/nodes", func(c *Client) error { return drop(c.Nodes(ctx)) }},
		{"GET /v1/nodes/n1", func(c *Client) error { return drop(c.Node(ctx, "n1")) }},
		{"GET /v1/nodes/n1/history", func(c *Client) error { return drop(c.NodeHistory(ctx, "n1", 0)) }},
		{"GET /v1/projects/x/history?minutes=360&organization=acme", func(c *Client) error { return drop(c.ProjectHistory(ctx, "x", 360)) }},
		{`PUT /v1/nodes/n1 application/json {"action":"lose"}`, func(c *Client) error { return drop(c.ActOnNode(ctx, "n1", contract.NodeAction{Action: "lose"})) }},
		{"DELETE /v1/nodes/n1", func(c *Client) error { return drop(c.DeleteNode(ctx, "n1", false)) }},
		{"DELETE /v1/nodes/n1?force=true", func(c *Client) error { return drop(c.DeleteNode(ctx, "n1", true)) }},
		{`POST /v1/projects application/json {"name":"x","organization":"acme","manifest":"a: 1","metadata":{"k":"v"},"message":"m"}`, func(c *Client) error {
			return drop(c.NewProject(ctx, contract.NewProject{Name: "x", Manifest: []byte(`"a: 1"`), Metadata: []byte(`{"k":"v"}`), Message: "m"}))
		}},
		{`POST /v1/projects/x/copy?organization=acme application/json {"name":"y","organization":"beta","metadata":["k"]}`, func(c *Client) error {
			return drop(c.CopyProject(ctx, "x", contract.Copy{Name: "y", Organization: "beta", Metadata: []string{"k"}}))
		}},
		{`POST /v1/projects/x/move?organization=acme application/json {"organization":"beta"}`, func(c *Client) error { return drop(c.MoveProject(ctx, "x", "beta")) }},
		{"GET /v1/projects/x/users?organization=acme", func(c *Client) error { return drop(c.ProjectUsers(ctx, "x")) }},
		{`PUT /v1/projects/x/users/ann?organization=acme application/json {"role":"deployer"}`, func(c *Client) error {
			return drop(c.PutProjectUser(ctx, "x", "ann", mariposa.RoleDeployer))
		}},
		{"DELETE /v1/projects/x/users/ann?organization=acme", func(c *Client) error { return drop(c.RemoveProjectUser(ctx, "x", "ann")) }},
		{"GET /v1/projects/x/diff?from=1&organization=acme&to=2", func(c *Client) error { return drop(c.Diff(ctx, "x", "1", "2")) }},
		{"GET /v1/projects/x/tags?organization=acme", func(c *Client) error { return drop(c.Tags(ctx, "x")) }},
		{`POST /v1/projects/x/tags?organization=acme application/json {"tag":"good","version":"2"}`, func(c *Client) error { return drop(c.AddTag(ctx, "x", "good", "2")) }},
		{"DELETE /v1/projects/x/tags/good?organization=acme", func(c *Client) error { return drop(c.DeleteTag(ctx, "x", "good")) }},
		{`PUT /v1/projects/x/state?organization=acme application/json {"action":"revert","version":"2","rolling":"25%","message":"back"}`, func(c *Client) error {
			return drop(c.Revert(ctx, "x", Revert{Version: "2", Rolling: "25%", Message: "back"}))
		}},
		{`PUT /v1/projects/x/state?organization=acme application/json {"action":"revert","canary":3,"with_scale":true}`, func(c *Client) error {
			return drop(c.Revert(ctx, "x", Revert{Canary: "3", WithScale: true}))
		}},
		{`PUT /v1/projects/x/state?organization=acme application/json {"action":"revert"}`, func(c *Client) error { return drop(c.Revert(ctx, "x", Revert{})) }},
		{"GET /v1/projects/x/metadata?organization=acme", func(c *Client) error { return drop(c.Metadata(ctx, "x", false)) }},
		{"GET /v1/projects/x/metadata?organization=acme&reveal=true", func(c *Client) error { return drop(c.MetadataDocument(ctx, "x", true)) }},
		{"PUT /v1/projects/x/metadata?message=m&organization=acme&previous=abc application/yaml k: v", func(c *Client) error {
			return drop(c.ImportMetadata(ctx, "x", []byte("k: v"), Update{Previous: "abc", Message: "m"}))
		}},
		{"PUT /v1/projects/x/metadata?force=true&organization=acme application/yaml k: v", func(c *Client) error {
			return drop(c.ImportMetadata(ctx, "x", []byte("k: v"), Update{Force: true}))
		}},
		{"GET /v1/projects/x/metadata/k.a?organization=acme", func(c *Client) error { return drop(c.MetadataKey(ctx, "x", "k.a", false)) }},
		{`PUT /v1/projects/x/metadata/k?cas=7&message=m&organization=acme application/json {"value":"v","secret":true}`, func(c *Client) error {
			yes := true
			return drop(c.SetMetadata(ctx, "x", "k", contract.MetadataValue{Value: []byte(`"v"`), Secret: &yes}, KeyChange{CAS: "7", Message: "m"}))
		}},
		{"DELETE /v1/projects/x/metadata/k?organization=acme", func(c *Client) error { return drop(c.DeleteMetadata(ctx, "x", "k", "")) }},
		{"POST /v1/projects/x/metadata/k/incr?by=2&organization=acme", func(c *Client) error { return drop(c.CountMetadata(ctx, "x", "k", 2)) }},
		{"POST /v1/projects/x/metadata/k/decr?by=3&organization=acme", func(c *Client) error { return drop(c.CountMetadata(ctx, "x", "k", -3)) }},
		{"GET /v1/user", func(c *Client) error { return drop(c.Whoami(ctx)) }},
		{"GET /v1/users", func(c *Client) error { return drop(c.Users(ctx)) }},
		{"GET /v1/users/ann", func(c *Client) error { return drop(c.User(ctx, "ann")) }},
		{`POST /v1/users application/json {"name":"ann","admin":true}`, func(c *Client) error {
			return drop(c.CreateUser(ctx, contract.NewUser{Name: "ann", Admin: true}))
		}},
		{`PUT /v1/users/ann application/json {"disabled":false}`, func(c *Client) error {
			no := false
			return drop(c.UpdateUser(ctx, "ann", contract.UserChange{Disabled: &no}, false))
		}},
		{"DELETE /v1/users/ann", func(c *Client) error { return drop(c.DeleteUser(ctx, "ann", false)) }},
		{"DELETE /v1/users/ann?cascade=true", func(c *Client) error { return drop(c.DeleteUser(ctx, "ann", true)) }},
		{"GET /v1/organizations", func(c *Client) error { return drop(c.Organizations(ctx)) }},
		{"GET /v1/organizations/beta", func(c *Client) error { return drop(c.Organization(ctx, "beta")) }},
		{`POST /v1/organizations application/json {"name":"beta"}`, func(c *Client) error {
			return drop(c.CreateOrganization(ctx, contract.NewOrganization{Name: "beta"}))
		}},
		{`PUT /v1/organizations/beta application/json {"base_role":"none"}`, func(c *Client) error {
			return drop(c.UpdateOrganization(ctx, "beta", contract.OrganizationChange{BaseRole: mariposa.RoleNone}))
		}},
		{"DELETE /v1/organizations/beta", func(c *Client) error { return drop(c.DeleteOrganization(ctx, "beta")) }},
		{"GET /v1/organizations/beta/members", func(c *Client) error { return drop(c.Members(ctx, "beta")) }},
		{`PUT /v1/organizations/beta/members/ann application/json {"role":"owner"}`, func(c *Client) error { return drop(c.PutMember(ctx, "beta", "ann", mariposa.OrgOwner)) }},
		{"DELETE /v1/organizations/beta/members/ann", func(c *Client) error { return drop(c.RemoveMember(ctx, "beta", "ann")) }},
		{"GET /v1/organizations/beta/policy", func(c *Client) error { return drop(c.Policy(ctx, "beta")) }},
		{`PUT /v1/organizations/beta/policy application/json {"compute_types":["docker"],"host_ports":false}`, func(c *Client) error {
			return drop(c.SetPolicy(ctx, "beta", contract.PolicyChange{ComputeTypes: &[]string{"docker"}, HostPorts: new(bool)}))
		}},
		{"GET /v1/settings", func(c *Client) error { return drop(c.Settings(ctx)) }},
		{`PUT /v1/settings application/json {"organizations_per_user":null,"quota":{"cpu":null}}`, func(c *Client) error {
			return drop(c.SetSettings(ctx, SettingsChange{Quota: QuotaChange{Lift: []string{"cpu"}}, Lift: []string{"organizations_per_user"}}))
		}},
		{"GET /v1/organizations/beta/quota", func(c *Client) error { return drop(c.Quota(ctx, "beta")) }},
		{"GET /v1/tokens?user=ann", func(c *Client) error { return drop(c.Tokens(ctx, "ann")) }},
		{`POST /v1/tokens application/json {"name":"ci","project":"x","role":"deployer","expires":"90d"}`, func(c *Client) error {
			return drop(c.CreateToken(ctx, contract.NewToken{Name: "ci", Project: "x", Role: mariposa.RoleDeployer, Expires: "90d"}))
		}},
		{`PUT /v1/users/ann/password application/json {"password":"correct horse battery"}`, func(c *Client) error { return drop(c.SetPassword(ctx, "ann", "correct horse battery")) }},
		{"DELETE /v1/users/ann/password", func(c *Client) error { return drop(c.RemovePassword(ctx, "ann")) }},
		{"DELETE /v1/tokens/t1", func(c *Client) error { return drop(c.RevokeToken(ctx, "t1", false)) }},
		{"DELETE /v1/tokens/t1?cascade=true", func(c *Client) error { return drop(c.RevokeToken(ctx, "t1", true)) }},
		{"GET /v1/tokens/t1", func(c *Client) error { return drop(c.Token(ctx, "t1")) }},
		{"GET /v1/tokens?use=join", func(c *Client) error { return drop(c.JoinTokens(ctx)) }},
		{`PUT /v1/tokens/t1 application/json {"action":"adopt"}`, func(c *Client) error { return drop(c.AdoptTokens(ctx, "t1")) }},
		{"GET /v1/packages", func(c *Client) error { return drop(c.Packages(ctx)) }},
		{`PUT /v1/packages/small application/json {"name":"small","memory":512,"cpu":0.5}`, func(c *Client) error {
			return drop(c.PutPackage(ctx, contract.Package{Name: "small", Memory: 512, CPU: 0.5}))
		}},
		{"DELETE /v1/packages/small", func(c *Client) error { return drop(c.DeletePackage(ctx, "small")) }},
		{"POST /v1/keys/rotate", func(c *Client) error { return drop(c.RotateKey(ctx)) }},
		{`POST /v1/instances application/json {"image":"i","name":"n","organization":"acme","project":"x"}`, func(c *Client) error {
			return drop(c.CreateInstance(ctx, "x", "n", map[string]any{"image": "i"}))
		}},
		{"GET /v1/foreign", func(c *Client) error { return drop(c.ForeignContainers(ctx, "")) }},
		{"GET /v1/nodes/n1/foreign", func(c *Client) error { return drop(c.ForeignContainers(ctx, "n1")) }},
		{`POST /v1/nodes/n1/foreign/db/adopt application/json {"project":"x","organization":"acme","name":"n"}`, func(c *Client) error {
			return drop(c.AdoptContainer(ctx, "n1", "db", contract.ContainerAdoption{Project: "x", Name: "n"}))
		}},
		{"DELETE /v1/instances/i1", func(c *Client) error { return drop(c.DeleteInstance(ctx, "i1", false)) }},
		{"DELETE /v1/instances/i1?force=true", func(c *Client) error { return drop(c.DeleteInstance(ctx, "i1", true)) }},
		{"GET /v1/audit?action=manifest.&actor=ann&limit=2&organization=acme&outcome=denied&project=x&since=2026-03-01T12%3A00%3A00Z&until=2026-03-02T12%3A00%3A00Z", func(c *Client) error {
			since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			return drop(c.Audit(ctx, AuditFilter{Project: "x", Actor: "ann", Action: "manifest.", Outcome: mariposa.AuditDenied, Since: since, Until: since.AddDate(0, 0, 1), Limit: 2}))
		}},
		{"GET /healthz", func(c *Client) error { return drop(c.Health(ctx)) }},
		{"GET /readyz", func(c *Client) error { return drop(c.Ready(ctx)) }},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Parallel()
			var got, token, agent string
			cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
				got, token, agent = asked(r), r.Header.Get("Authorization"), r.UserAgent()
				_, _ = io.WriteString(w, "{}")
			})
			must(t, c.call(cl))
			if got != c.want {
				t.Errorf("asked %s", got)
			}
			if token != "Bearer s3cret" || agent != "test/1" {
				t.Errorf("asked with %q as %q", token, agent)
			}
		})
	}
}

func TestErrorsOfTheServerKeepTheirWordsAndFaults(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"code":"InvalidArgument","message":"the manifest has an error","errors":[{"field":"services.web.image","code":"Missing","message":"is missing","line":7}]}`)
	})
	_, err := c.Project(context.Background(), "x")
	var e *mariposa.Error
	if !errors.As(err, &e) || e.Code != mariposa.InvalidArgument || e.Message != "the manifest has an error" {
		t.Fatalf("got %#v", err)
	}
	if len(e.Faults) != 1 || e.Faults[0].Line != 7 || e.Faults[0].Code != mariposa.FaultMissing {
		t.Errorf("got faults %v", e.Faults)
	}
}

func TestAnswersOfStrangersAreCalledStrange(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]mariposa.Code{
		http.StatusBadGateway: mariposa.Unavailable, http.StatusNotFound: mariposa.ResourceNotFound, http.StatusTeapot: mariposa.Internal,
		http.StatusOK: mariposa.Internal,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<html>sorry</html>")
		})
		_, err := c.Nodes(context.Background())
		if mariposa.CodeOf(err) != code || !strings.Contains(fmt.Sprint(err), "check that the URL is that of a Mariposa server") {
			t.Errorf("%d gave %v", status, err)
		}
	}
}

func TestNobodyThereIsSaidWithWhatToDo(t *testing.T) {
	t.Parallel()
	address := "http://" + porttest.Address(t)
	c, err := New(Options{URL: address, Token: "s3cret"})
	must(t, err)
	_, err = c.Health(context.Background())
	want := "no server is running at " + address + ": start one with `mariposa dev`, or set MARIPOSA_URL"
	if mariposa.CodeOf(err) != mariposa.Unavailable || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestWhoMistakesTLSForPlainHTTPGetsToKnow(t *testing.T) {
	t.Parallel()
	secret := httptest.NewUnstartedServer(http.NotFoundHandler())
	secret.Config.ErrorLog = log.New(io.Discard, "", 0) // that somebody came without TLS is what is meant
	secret.StartTLS()
	t.Cleanup(secret.Close)
	open := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(open.Close)
	for address, want := range map[string]string{
		strings.Replace(secret.URL, "https:", "http:", 1): "use a URL that begins with https://",
		strings.Replace(open.URL, "http:", "https:", 1):   "use a URL that begins with http://",
		secret.URL: "--ca",
	} {
		c, err := New(Options{URL: address})
		must(t, err)
		t.Cleanup(c.Close)
		if _, err := c.Health(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

func TestWhatTheCallerCanceledIsCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if _, err := c.Nodes(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOnlyAddressesAreAccepted(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"", "localhost:8080", "ftp://x", "http://", "::"} {
		if _, err := New(Options{URL: u}); mariposa.CodeOf(err) != mariposa.InvalidArgument {
			t.Errorf("%q: got %v", u, err)
		}
	}
}

func TestInstancesTurnsThePages(t *testing.T) {
	t.Parallel()
	var pages []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		m := r.FormValue("marker")
		pages = append(pages, m)
		next := map[string]string{"": "b", "b": "c"}[m]
		_ = json.NewEncoder(w).Encode(contract.Instances{Instances: []contract.Instance{{ID: m + "1"}, {ID: m + "2"}}, Marker: next})
	})
	all, err := c.AllInstances(context.Background(), InstanceFilter{})
	must(t, err)
	var ids []string
	for _, i := range all.Instances {
		ids = append(ids, i.ID)
	}
	if !slices.Equal(ids, []string{"1", "2", "b1", "b2", "c1", "c2"}) || !slices.Equal(pages, []string{"", "b", "c"}) {
		t.Errorf("got %v from pages %q", ids, pages)
	}
}

func TestLogsFlowUntilClosed(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, asked(r)+"\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	logs, err := c.Logs(context.Background(), "i1", LogOptions{Tail: 10, Follow: true, Reveal: true})
	must(t, err)
	line := make([]byte, len("GET /v1/instances/i1/logs?follow=true&reveal=true&tail=10"))
	if _, err := io.ReadFull(logs, line); err != nil || string(line) != "GET /v1/instances/i1/logs?follow=true&reveal=true&tail=10" {
		t.Errorf("got %q, %v", line, err)
	}
	if err := logs.Close(); err != nil {
		t.Error(err)
	}
}

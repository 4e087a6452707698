package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/contract"
)

// shiftedClock is the system clock with an offset.
type shiftedClock struct {
	clock.Real
	by atomic.Int64
}

func (c *shiftedClock) Now() time.Time { return c.Real.Now().Add(time.Duration(c.by.Load())) }

func (c *shiftedClock) turn(d time.Duration) { c.by.Add(int64(d)) }

// stoppedClock shows the same time always, so that limits do not recover while a test runs.
type stoppedClock struct {
	clock.Real
	at time.Time
}

func newStoppedClock() *stoppedClock { return &stoppedClock{at: time.Now()} }

func (c *stoppedClock) Now() time.Time { return c.at }

// Expired tokens and tokens of deleted or disabled users are rejected. The error gives
// the reason for a formerly valid token, and is the same for all others.
func TestDeadTokensLetNobodyIn(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now))
	admin := w.testServer
	tokens := map[string]string{
		"revoked":                 w.mint(contract.NewToken{Name: "one", User: "sam"}),
		"revoked by its owner":    w.mint(contract.NewToken{Name: "two", User: "sam"}),
		"revoked with itself":     w.mint(contract.NewToken{Name: "three", User: "sam"}),
		"expired":                 w.mint(contract.NewToken{Name: "four", User: "sam", Expires: "1h"}),
		"expired at a time":       w.mint(contract.NewToken{Name: "five", User: "sam", Expires: time.Now().Add(time.Hour).Format(time.RFC3339)}),
		"of a user that is gone":  w.keys["max"],
		"of a user who may not":   w.keys["ulla"],
		"bound, of a user gone":   w.mint(contract.NewToken{Name: "six", User: "max", Organization: "max", Role: mariposa.RoleViewer}),
		"made for nodes to join":  joinToken,
		"never made":              "mrp_never",
		"almost one":              w.keys["sam"] + "x",
		"the hash of one":         mariposa.HashToken(w.keys["sam"]),
		"the id of one":           mariposa.TokenID(mariposa.HashToken(w.keys["sam"])),
		"empty":                   "",
		"of another kind of text": "\xff",
	}
	for _, name := range []string{"revoked", "expired", "of a user that is gone", "of a user who may not"} {
		want[contract.Whoami](w.as(tokens[name]).call("GET", "/v1/user", nil), 200)
	}
	ids := map[string]string{}
	for _, t := range want[contract.Tokens](admin.call("GET", "/v1/tokens?user=sam", nil), 200).Tokens {
		ids[t.Name] = t.ID
	}
	want[contract.Changed](admin.call("DELETE", "/v1/tokens/"+ids["one"], nil), 200)
	want[contract.Changed](w.asUser("sam").call("DELETE", "/v1/tokens/two", nil), 200)
	want[contract.Changed](w.as(tokens["revoked with itself"]).call("DELETE", "/v1/tokens/three", nil), 200)
	want[contract.Changed](admin.call("DELETE", "/v1/users/max", nil), 200)
	disabled := true
	want[contract.Changed](admin.call("PUT", "/v1/users/ulla", contract.UserChange{Disabled: &disabled}), 200)
	now.turn(time.Hour + time.Second)
	says := map[string]string{
		"revoked": "was revoked on", "revoked by its owner": "was revoked on", "revoked with itself": "was revoked on",
		"expired": "expired on", "expired at a time": "expired on", "of a user who may not": "is disabled",
		"made for nodes to join": "is a join token", "empty": "a valid token is required",
	}
	for name, token := range tokens {
		f := w.as(token).call("GET", "/v1/projects", nil).wantError(401, mariposa.Unauthorized, says[name])
		if says[name] == "" && f.Message != "this token is unknown: check that it is complete and belongs to this server" {
			t.Errorf("%s gets a different error: %s", name, f.Message)
		}
	}
	want[contract.Whoami](w.asUser("sam").call("GET", "/v1/user", nil), 200)
	disabled = false
	want[contract.Changed](admin.call("PUT", "/v1/users/ulla", contract.UserChange{Disabled: &disabled}), 200)
	want[contract.Whoami](w.asUser("ulla").call("GET", "/v1/user", nil), 200)
}

// The first user cannot be deleted or disabled, users cannot delete or disable
// themselves, and a user who still owns something cannot be deleted.
func TestUsersAreDeletedWithAllTheyHave(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	no := false
	w.call("DELETE", "/v1/users/admin", nil).wantError(409, mariposa.Conflict)
	w.call("PUT", "/v1/users/admin", contract.UserChange{Admin: &no}).wantError(409, mariposa.Conflict, "first user")
	w.call("DELETE", "/v1/users/olga", nil).wantError(409, mariposa.Conflict, "no owner")
	want[contract.Changed](w.asUser("ada").call("POST", "/v1/projects?name=own", hello), 201)
	w.call("DELETE", "/v1/users/ada", nil).wantError(409, mariposa.Conflict, "1 project")
	want[contract.Changed](w.call("DELETE", "/v1/users/vera", nil), 200)
	for _, m := range want[contract.Members](w.call("GET", "/v1/projects/"+w.shop.ID+"/users", nil), 200).Members {
		if m.User == w.users["vera"] || m.UserName == "" {
			t.Errorf("vera is gone, and still there is %+v", m)
		}
	}
	w.call("GET", "/v1/users/vera", nil).wantError(404, mariposa.ResourceNotFound)
	w.call("GET", "/v1/organizations/vera", nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Changed](w.call("POST", "/v1/users", contract.NewUser{Name: "vera"}), 201)
	w.asUser("vera").call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
}

// A source that guesses tokens is throttled for a while. Valid tokens from the same
// source are still accepted.
func TestFailedAttemptsAreLimited(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	now.turn(time.Hour) // tokens that were made just now are no part of this
	h := newTestServer(t, withClock(now))
	var throttled reply
	for i := range 200 {
		r := h.as(fmt.Sprintf("guess-%d", i)).call("GET", "/v1/projects", nil)
		if r.status == http.StatusTooManyRequests {
			throttled = r
			break
		}
		r.wantError(401, mariposa.Unauthorized)
	}
	if throttled.status == 0 {
		t.Fatal("no request was throttled")
	}
	throttled.wantError(429, mariposa.Throttled, "127.0.0.1")
	if throttled.header.Get("Retry-After") == "" {
		t.Error("it does not say for how long")
	}
	want[contract.Projects](h.call("GET", "/v1/projects", nil), 200)
	h.call("GET", "/v1/projects", nil, "Authorization", "").wantError(401, mariposa.Unauthorized) // who tries nothing guesses nothing
	now.turn(10 * time.Second)
	h.as("guess").call("GET", "/v1/projects", nil).wantError(401, mariposa.Unauthorized)
	said := want[contract.Audit](h.call("GET", "/v1/audit?action=login&outcome=denied", nil), 200).Records
	if len(said) < 60 || said[0].From != "127.0.0.1" || !contains(said[0].Reason, "more request") {
		t.Errorf("%d attempts are recorded, the last as %+v", len(said), said[0])
	}
	for _, a := range said {
		if contains(fmt.Sprintf("%+v", a), "guess") {
			t.Fatalf("the guess is in the audit log: %+v", a)
		}
	}
}

// until reads a stream to its end, or to an event of a kind.
func (l *live) until(kind string) (before []sse, last sse) {
	l.t.Helper()
	for {
		e, ok := l.next()
		if !ok {
			l.t.Fatalf("the stream ended before %s, after %+v", kind, before)
		}
		if e.event == kind {
			return before, e
		}
		before = append(before, e)
	}
}

// A stream contains only events that its caller can see, and so does the list.
func TestEventsOfOthersNeverCome(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	since := w.picture.Revision()
	streams := map[string]*live{}
	for _, name := range []string{"ulla", "vera", "mia", "olga", "admin"} {
		streams[name] = w.asUser(name).stream("", since)
		defer streams[name].close()
	}
	var all sync.WaitGroup
	for name, org := range map[string]string{"olga": "acme", "ulla": "umbra"} {
		all.Go(func() {
			for i := range 10 {
				h := w.asUser(name)
				c := want[contract.Changed](h.call("POST", fmt.Sprintf("/v1/projects?name=p%d&organization=%s", i, org), hello), 201)
				want[contract.Changed](h.call("PUT", "/v1/projects/"+c.ID+"/metadata/key", "v", "Content-Type", "text/plain"), 200)
			}
			want[contract.Changed](w.asUser(name).call("POST", "/v1/projects?name=last&organization="+org, hello), 201)
		})
	}
	all.Wait()
	w.node("n2", mariposa.NodeSpec{Name: "host-n2"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	for _, id := range []string{w.shop.ID, w.dark.ID} {
		want[contract.Changed](w.call("POST", "/v1/projects/"+id+"/tags", contract.NewTag{Tag: "end", Version: "1"}), 201)
	}
	orgs := map[string]string{}
	for _, p := range w.picture.Projects.All() {
		orgs[p.ID] = p.Spec().Organization
	}
	sees := map[string]func(sse) bool{
		"ulla":  func(e sse) bool { return orgs[e.data.Project] == w.umbra },
		"vera":  func(e sse) bool { return e.data.Project == w.shop.ID },
		"mia":   func(e sse) bool { return orgs[e.data.Project] == w.acme },
		"olga":  func(e sse) bool { return orgs[e.data.Project] == w.acme },
		"admin": func(sse) bool { return true },
	}
	counts := map[string]int{"ulla": 54, "vera": 1, "mia": 54, "olga": 54}
	for name, l := range streams {
		n := 0
		for {
			e, _ := l.next()
			if n++; !sees[name](e) {
				t.Errorf("%s hears of %s in %s", name, e.event, e.data.ProjectName)
			}
			if contains(e.data.Reason, "tag end") && (name != "admin" || e.data.Project == w.dark.ID) {
				break
			}
		}
		listed := 0
		for at := since; ; {
			page := want[contract.Events](w.asUser(name).call("GET", fmt.Sprintf("/v1/events?since=%d&limit=50", at), nil), 200)
			if len(page.Events) == 0 {
				break
			}
			listed, at = listed+len(page.Events), page.Revision
		}
		if wanted := counts[name]; wanted != 0 && (n != wanted || listed != n) {
			t.Errorf("%s heard of %d events and listed %d, not %d", name, n, listed, wanted)
		}
	}
	if got := want[contract.Events](w.call("GET", fmt.Sprintf("/v1/events?since=%d&limit=1000&organization=umbra", since), nil), 200).Events; len(got) != 54 {
		t.Errorf("of umbra alone there are %d events", len(got))
	}
}

// A stream ends with an error when its token is no longer valid.
func TestAStreamEndsWithItsToken(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now))
	yes := true
	for name, end := range map[string]func(h *testServer){
		"the token is revoked": func(h *testServer) { want[contract.Changed](h.call("DELETE", "/v1/tokens/stream", nil), 200) },
		"the user is disabled": func(*testServer) {
			want[contract.Changed](w.call("PUT", "/v1/users/vera", contract.UserChange{Disabled: &yes}), 200)
		},
		"the user is deleted": func(*testServer) { want[contract.Changed](w.call("DELETE", "/v1/users/vera", nil), 200) },
		"the time is over":    func(*testServer) { now.turn(2 * time.Hour) },
	} {
		if w.picture.UserNamed("vera") == nil {
			want[contract.Changed](w.call("POST", "/v1/users", contract.NewUser{Name: "vera"}), 201)
		}
		no := false
		want[contract.Changed](w.call("PUT", "/v1/users/vera", contract.UserChange{Disabled: &no}), 200)
		want[contract.Changed](w.asUser("olga").call("PUT", "/v1/projects/"+w.shop.ID+"/users/vera", contract.MemberChange{Role: "viewer"}), 200)
		w.call("DELETE", "/v1/users/vera/tokens/stream", nil)
		h := w.as(w.mint(contract.NewToken{Name: "stream", User: "vera", Expires: "1h"}))
		l := h.stream("", w.picture.Revision())
		want[contract.Changed](w.call("PUT", "/v1/projects/"+w.shop.ID+"/metadata/n", "1", "Content-Type", "text/plain"), 200)
		l.until("project.updated")
		end(h)
		want[contract.Changed](w.call("DELETE", "/v1/projects/"+w.shop.ID+"/metadata/n", nil), 200)
		if before, _ := l.until("error"); len(before) > 0 {
			t.Errorf("after %s, the stream sent %+v", name, before)
		}
		if e, more := l.next(); more {
			t.Errorf("once %s, the stream went on with %+v", name, e)
		}
		l.close()
	}
}

// The rights of a caller can change while a stream is open.
func TestRolesTakenAwayDuringAStreamTakeEffect(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	yes, no := true, false
	want[contract.Changed](w.call("PUT", "/v1/users/sam", contract.UserChange{Admin: &yes}), 200)
	tag := func(name string) {
		want[contract.Changed](w.call("POST", "/v1/projects/"+w.shop.ID+"/tags", contract.NewTag{Tag: name, Version: "1"}), 201)
	}
	own := map[string]string{}
	for _, name := range []string{"sam", "mia", "vera"} {
		own[name] = want[contract.Changed](w.asUser(name).call("POST", "/v1/projects?name=own", hello), 201).ID
	}
	since := w.picture.Revision()
	streams := map[string]*live{
		"sam": w.asUser("sam").stream("", since), "mia": w.asUser("mia").stream("", since), "vera": w.asUser("vera").stream("", since),
		"sam for olga": w.asUser("sam").streamAt("/v1/users/olga/events", since),
	}
	tag("seen")
	for _, l := range streams {
		defer l.close()
		l.until("project.updated")
	}
	want[contract.Changed](w.asUser("ada").call("DELETE", "/v1/projects/"+w.shop.ID+"/users/vera", nil), 200)
	want[contract.Changed](w.asUser("olga").call("DELETE", "/v1/organizations/acme/members/mia", nil), 200)
	want[contract.Changed](w.call("PUT", "/v1/users/sam", contract.UserChange{Admin: &no}), 200)
	tag("hidden")
	for name, id := range own {
		want[contract.Changed](w.call("PUT", "/v1/projects/"+id+"/metadata/n", "1", "Content-Type", "text/plain"), 200)
		for {
			e, _ := streams[name].next()
			if contains(e.data.Reason, "hidden") || (e.data.Project != id && e.data.Project != "" && contains(e.data.Reason, "tag")) {
				t.Fatalf("%s still hears of %+v", name, e)
			}
			if e.data.Project == id {
				break
			}
		}
	}
	if before, _ := streams["sam for olga"].until("error"); len(before) > 0 && contains(before[len(before)-1].data.Reason, "hidden") {
		t.Errorf("a former admin who acted for a user still receives %+v", before)
	}
}

// A followed log ends when the reader loses the role.
func TestAFollowedLogEndsWithTheRole(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner, func(s *settings) { s.heartbeat = 100 * time.Millisecond })
	node := h.join("n1")
	c := h.create("shop", "services:\n  web: {compute_type: process, command: [talk]}\n")
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "vera"}), 201)
	vera := h.as(h.mint(contract.NewToken{Name: "first", User: "vera"}))
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/users/vera", contract.MemberChange{Role: "viewer"}), 200)
	var id string
	h.until("the instance to run", func() bool {
		for _, i := range want[contract.Instances](h.call("GET", "/v1/instances?state=running", nil), 200).Instances {
			id = i.ID
		}
		return id != ""
	})
	want[contract.Changed](h.call("DELETE", "/v1/projects/"+c.ID+"/users/vera", nil), 200)
	vera.call("GET", "/v1/instances/"+id+"/logs?follow=true", nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/users/vera", contract.MemberChange{Role: "viewer"}), 200)
	r := vera.begin("/v1/instances/" + id + "/logs?follow=true&tail=16")
	defer r.Body.Close()
	log := bufio.NewReader(r.Body)
	node.speak <- "good morning"
	if line, err := log.ReadString('\n'); err != nil || line != "good morning\n" {
		t.Errorf("the first line is %q, %v", line, err)
	}
	want[contract.Changed](h.call("DELETE", "/v1/projects/"+c.ID+"/users/vera", nil), 200)
	node.speak <- "this is not for vera"
	if rest, err := io.ReadAll(log); err == nil || len(rest) > 0 {
		t.Errorf("after the role was removed, the log contained %q, %v", rest, err)
	}
	<-node.ended

	want[contract.Changed](h.call("PUT", "/v1/projects/shop/users/vera", contract.MemberChange{Role: "viewer"}), 200)
	silent := vera.begin("/v1/instances/" + id + "/logs?follow=true&tail=15")
	defer silent.Body.Close()
	want[contract.Changed](h.call("DELETE", "/v1/projects/"+c.ID+"/users/vera", nil), 200)
	if rest, err := io.ReadAll(silent.Body); err == nil || len(rest) > 0 { // although nothing is written
		t.Errorf("after the role was removed, the silent log contained %q, %v", rest, err)
	}
	<-node.ended
}

// Rights are checked again after a slow body was received.
func TestWhatASlowBodyMayIsDecidedAtItsEnd(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	disabled := true
	for name, c := range map[string]struct {
		user, method, path, body string
		meanwhile                func()
		codes                    []int
	}{
		"the role is taken away": {"dora", "PUT", "/v1/projects/" + w.shop.ID + "/manifest?force=true", teamsManifest + "# slow\n", func() {
			want[contract.Changed](w.asUser("olga").call("DELETE", "/v1/projects/"+w.shop.ID+"/users/dora", nil), 200)
		}, []int{404}},
		"the role becomes less": {"oleg", "PUT", "/v1/projects/" + w.shop.ID + "/metadata?force=true", "mode: slow\n", func() {
			want[contract.Changed](w.asUser("olga").call("PUT", "/v1/projects/"+w.shop.ID+"/users/oleg", contract.MemberChange{Role: "viewer"}), 200)
		}, []int{403}},
		"the token is revoked": {"ada", "PUT", "/v1/projects/" + w.shop.ID + "/metadata/mode", "slow", func() {
			want[contract.Changed](w.call("DELETE", "/v1/users/ada/tokens/slow", nil), 200)
		}, []int{401}},
		"the user is disabled": {"mia", "POST", "/v1/organizations", `{"name":"slow"}`, func() {
			want[contract.Changed](w.call("PUT", "/v1/users/mia", contract.UserChange{Disabled: &disabled}), 200)
		}, []int{401}},
		"the project has another name, and another project its name": {"olga", "PUT", "/v1/projects/shop/manifest?organization=acme&force=true", teamsManifest + "# slow\n", func() {
			want[contract.Changed](w.call("PUT", "/v1/projects/"+w.shop.ID, contract.ProjectChange{Name: "former"}), 200)
		}, []int{404}},
	} {
		secret := w.mint(contract.NewToken{Name: "slow", User: c.user})
		id := mariposa.TokenID(mariposa.HashToken(secret))
		body, rest := io.Pipe()
		req := must(http.NewRequestWithContext(w.ctx, c.method, w.url+c.path, body))(t)
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Content-Type", "application/json")
		if c.method == "PUT" {
			req.Header.Set("Content-Type", "application/yaml")
		}
		answered := make(chan reply, 1)
		go func() {
			res, err := w.http.Do(req)
			if err != nil {
				answered <- reply{t: t}
				return
			}
			defer res.Body.Close()
			text, _ := io.ReadAll(res.Body)
			answered <- reply{t: t, status: res.StatusCode, body: text}
		}()
		fmt.Fprint(rest, c.body[:1])
		w.until("the request to be let in", func() bool {
			r := w.picture.Tokens.Get(id)
			return r.Status() != nil
		})
		c.meanwhile()
		before := w.picture.Projects.Get(w.shop.ID).SpecRevision
		fmt.Fprint(rest, c.body[1:])
		rest.Close()
		if r := <-answered; !slices.Contains(c.codes, r.status) {
			t.Errorf("%s, and still it is answered %d %s", name, r.status, r.body)
		}
		if w.picture.Projects.Get(w.shop.ID).SpecRevision != before {
			t.Errorf("%s, and still something changed", name)
		}
	}
}

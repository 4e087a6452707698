package api_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/api"
	"mariposa/contract"
	"mariposa/listener"
)

// withLimits sets the limits of users.
func withLimits(l api.Limits) option { return func(s *settings) { s.limits = l } }

// trusting lets the API trust proxies.
func trusting(proxies ...string) option {
	return func(s *settings) {
		var err error
		if s.proxies, err = listener.ParseProxies(proxies); err != nil {
			panic(err)
		}
	}
}

// refusedCommand requests a command and returns only the response.
func (h *testServer) refusedCommand(id string) reply {
	return h.call("GET", "/v1/instances/"+id+"/exec?command=cat", nil, "Upgrade", upgrade, "Connection", "Upgrade",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
}

func TestOneUsersCommandsDoNotLockOutOthers(t *testing.T) {
	t.Parallel()
	w, _, id := newShellServer(t, withLimits(api.Limits{Commands: 3, RequestRate: 1 << 20}))
	oleg := w.asUser("oleg")
	first := oleg.dial(t, id, "command=cat")
	for range 2 {
		oleg.dial(t, id, "command=cat")
	}
	r := oleg.refusedCommand(id)
	r.wantError(429, mariposa.Throttled, "3 commands", "oleg", "end some")
	if r.header.Get("Retry-After") == "" {
		t.Error("it does not say when to try again")
	}
	want[contract.Whoami](oleg.call("GET", "/v1/user", nil), 200)
	c := w.asUser("ada").dial(t, id, "command=cat")
	c.say(contract.ExecStdin, "")
	if _, _, end := c.readAnswer(); end["exit_code"] != 0.0 {
		t.Errorf("ada's command ended with %v", end)
	}
	first.say(contract.ExecStdin, "")
	first.readAnswer()
	_ = first.conn.CloseNow()
	w.until("oleg has a place again", func() bool { // the server frees it a moment after it has said goodbye
		conn := w.raw(t)
		defer conn.Close()
		fmt.Fprintf(conn, "GET /v1/instances/%s/exec?command=cat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", id, oleg.token)
		line, _ := bufio.NewReader(conn).ReadString('\n')
		return strings.Contains(line, " 101 ")
	})
}

func TestOneUsersStreamsDoNotLockOutOthers(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t, withLimits(api.Limits{Streams: 2}))
	oleg := w.asUser("oleg")
	oleg.stream("", 0)
	oleg.stream("", 0)
	oleg.call("GET", "/v1/events", nil, "Accept", "text/event-stream").wantError(429, mariposa.Throttled, "2 streams", "oleg")
	w.asUser("ada").stream("", 0)
	for range 3 {
		w.stream("", 0) // who runs the installation looks at it in trouble too
	}
}

func TestOneUsersRequestsAreBoundedAndNobodyElses(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now), withLimits(api.Limits{RequestRate: 2}))
	oleg := w.asUser("oleg")
	refused := reply{}
	for range 200 { // the clock goes on meanwhile
		if refused = oleg.call("GET", "/v1/user", nil); refused.status != 200 {
			break
		}
	}
	refused.wantError(429, mariposa.Throttled, "oleg", "2 requests per second")
	if refused.header.Get("Retry-After") == "" {
		t.Error("it does not say when to try again")
	}
	want[contract.Whoami](w.asUser("ada").call("GET", "/v1/user", nil), 200)
	for range 50 {
		want[contract.Whoami](w.call("GET", "/v1/user", nil), 200)
	}
	now.turn(time.Minute)
	want[contract.Whoami](oleg.call("GET", "/v1/user", nil), 200)
}

func TestOneUsersUnfinishedRequestsAreBounded(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t, withLimits(api.Limits{Requests: 4, RequestRate: 1 << 20}))
	oleg := w.asUser("oleg")
	deadline := time.Now().Add(time.Minute)
	for oleg.call("GET", "/v1/user", nil).status != 429 { // until four of his requests wait for their bodies
		if time.Now().After(deadline) {
			t.Fatal("his requests are not bounded")
		}
		fmt.Fprintf(w.raw(t), "PUT /v1/projects/%s/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{", w.shop.ID, oleg.token)
	}
	oleg.call("GET", "/v1/user", nil).wantError(429, mariposa.Throttled, "4 requests", "oleg")
	want[contract.Whoami](w.asUser("ada").call("GET", "/v1/user", nil), 200)
}

// raw opens a connection without sending anything.
func (h *testServer) raw(t *testing.T) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// The server does not wait for the body of a request without a token.
func TestAnUnfinishedBodyWithoutATokenIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	for _, head := range []string{
		"POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
		"POST /v1/projects HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
		"PUT /v1/projects/x/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 100\r\n\r\n",
		"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		"GET /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		"GET /v1/agent HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 100\r\n\r\n",
	} {
		conn := h.raw(t)
		began := time.Now()
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(began.Add(20 * time.Second)) // below the 30 s that a body may take
		said, err := io.ReadAll(conn)
		if err != nil || !bytes.HasPrefix(said, []byte("HTTP/1.1 ")) {
			t.Errorf("after %s: %q, %v", time.Since(began), head, err)
		}
	}
}

// A client that reads only after it has sent everything gets the response, too.
func TestARefusedBodyIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	const size = 24 << 20 // more than the buffers of both ends
	for path, status := range map[string]int{"/v1/projects/shop/manifest": 413, "/v1/projects/shop/metadata/key": 413, "/v1/projects/nosuch/manifest": 404} {
		conn := h.raw(t)
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", path, h.token, size)
		if n, err := io.Copy(conn, io.LimitReader(zeroes{}, size)); err != nil {
			t.Errorf("%s: sending ended after %d bytes: %v", path, n, err)
			continue
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != status {
			t.Errorf("%s: answered %+v, %v", path, res, err)
		}
	}
}

// A client that asks before it sends the body gets the answer at once.
func TestARefusalDoesNotWaitForABodyThatIsNotSent(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	for _, c := range []struct {
		path         string
		size, status int
	}{{"/v1/projects/nosuch/manifest", 1000, 404}, {"/v1/projects/shop/manifest", 900_000_000, 413}, {"/v1/projects/shop/metadata/key", 900_000_000, 413}} {
		conn := h.raw(t)
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // below the 30 s that a body may take
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: text/plain\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", c.path, h.token, c.size)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != c.status {
			t.Errorf("%s: answered %+v, %v", c.path, res, err)
		}
	}
}

type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// A stream can last longer than the request timeout, even with a request body.
func TestAStreamOutlastsTheDeadlinesOfItsRequest(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, func(s *settings) { s.requestTimeout, s.heartbeat = time.Second, 700*time.Millisecond })
	conn := h.raw(t)
	fmt.Fprintf(conn, "GET /v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}", h.token)
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	lines := bufio.NewScanner(conn)
	for beats := 0; beats < 3; {
		if !lines.Scan() {
			t.Fatalf("the stream ended after %d heartbeats: %v", beats, lines.Err())
		}
		if lines.Text() == ": heartbeat" {
			beats++
		}
	}
}

func TestRecordsOfDeniedRequestsAreBounded(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now))
	oleg := w.asUser("oleg")
	const tries = 400
	for range tries {
		if r := oleg.call("PUT", "/v1/organizations/umbra/quota", map[string]any{"instances": 1}); r.status != 403 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	count := func() (n int) {
		for _, a := range w.audit("?outcome=denied&action=quota.put&limit=1000") {
			if a.ActorName == "oleg" {
				n++
			}
		}
		return n
	}
	if n := count(); n < 50 || n > tries/2 {
		t.Errorf("%d denied changes left %d records", tries, n)
	}
	now.turn(time.Minute)
	before := count()
	oleg.call("PUT", "/v1/organizations/umbra/quota", map[string]any{"instances": 1}).wantError(403, mariposa.Forbidden)
	all := w.audit("?outcome=denied&action=quota.put&limit=1000")
	if count() != before+1 || !strings.Contains(all[0].Reason, "more requests like it") {
		t.Errorf("the next record does not count the omitted ones: %+v", all[0])
	}
}

func TestTheClientsAddressIsTakenFromTrustedProxiesAlone(t *testing.T) {
	t.Parallel()
	failed := func(h *testServer, headers ...string) string {
		h.as("wrong").call("GET", "/v1/user", nil, headers...).wantError(401, mariposa.Unauthorized)
		all := h.audit("?action=login&limit=1")
		if len(all) != 1 {
			t.Fatalf("audit: %+v", all)
		}
		return all[0].From
	}
	plain, behind := newTestServer(t), newTestServer(t, trusting("127.0.0.0/8"))
	if from := failed(plain, "X-Forwarded-For", "203.0.113.9"); from != "127.0.0.1" {
		t.Errorf("an untrusted client can claim to be %s", from)
	}
	if from := failed(behind, "X-Forwarded-For", "1.2.3.4, 203.0.113.9"); from != "203.0.113.9" {
		t.Errorf("behind a proxy it comes from %s", from)
	}
	if from := failed(behind, "Forwarded", `for="[2001:db8::7]"`); from != "2001:db8::7" {
		t.Errorf("behind a proxy it comes from %s", from)
	}
	// Guessing tokens behind a proxy throttles only that client.
	last := reply{}
	for range 100 {
		if last = behind.as("wrong").call("GET", "/v1/user", nil, "X-Forwarded-For", "203.0.113.66"); last.status == 429 {
			break
		}
	}
	last.wantError(429, mariposa.Throttled, "203.0.113.66")
	behind.as("wrong").call("GET", "/v1/user", nil, "X-Forwarded-For", "203.0.113.67").wantError(401, mariposa.Unauthorized)
	if !strings.Contains(behind.logs.String(), "from=203.0.113.66") {
		t.Error("the log does not name the client")
	}
}

func TestKeysAreMatchedExactly(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	post := func(method, path, body string) reply {
		return w.call(method, path, []byte(body))
	}
	for _, c := range []struct{ method, path, body, key, hint string }{
		{"POST", "/v1/users", `{"Name": "eve"}`, "Name", "did you mean name?"},
		{"POST", "/v1/tokens", `{"name": "t", "ROLE": "viewer"}`, "ROLE", "did you mean role?"},
		{"POST", "/v1/users", `{"name": "eve", "colour": "red"}`, "colour", "remove it"},
		{"POST", "/v1/users", `{"name": "eve", "name": "mallory"}`, "name", "more than once"},
		{"PUT", "/v1/projects/shop/state?organization=acme", `{"Action": "stop"}`, "Action", "did you mean action?"},
		{"PUT", "/v1/projects/shop/state?organization=acme", `{"action": "reprovision", "Action": "stop"}`, "Action", "did you mean action?"},
		{"PUT", "/v1/projects/shop/state?organization=acme", `{"action": "reprovision", "filters": {"Service": "web"}}`, "filters.Service", "did you mean service?"},
		{"POST", "/v1/projects", `{"name": "x", "Manifest": {}, "manifest": {"services": {}}}`, "Manifest", "did you mean manifest?"},
		{"POST", "/v1/projects", `{"name": "x", "name": "y", "manifest": {"services": {}}}`, "name", "more than once"},
		{"PUT", "/v1/projects/shop/metadata/mode?organization=acme", `{"Value": "x"}`, "Value", "did you mean value?"},
		{"PUT", "/v1/organizations/acme/quota", `{"projects": 1, "projects": 100}`, "projects", "more than once"},
		{"PUT", "/v1/settings", `{"quota": {"projects": 1, "projects": 100}}`, "projects", "more than once"},
		{"POST", "/v1/instances?organization=acme", `{"project": "shop", "project": "other", "name": "x", "compute_type": "dummy"}`, "project", "more than once"},
		{"POST", "/v1/projects/shop/services?organization=acme", `{"name": "x", "name": "y", "compute_type": "dummy"}`, "name", "more than once"},
	} {
		f := post(c.method, c.path, c.body).wantError(400, mariposa.InvalidArgument, c.key, c.hint)
		if len(f.Errors) == 0 || f.Errors[0].Field != c.key {
			t.Errorf("%s: the fault is about %+v", c.body, f.Errors)
		}
	}
	for _, who := range want[contract.Users](w.call("GET", "/v1/users", nil), http.StatusOK).Users {
		if who.Name == "eve" || who.Name == "mallory" {
			t.Errorf("%s was made", who.Name)
		}
	}
}

// Pipelined requests cost the sender nothing. Once one of them is rejected, the others
// are not read.
func TestWhatIsSentBehindARefusedRequestIsNotRead(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t, withLimits(api.Limits{RequestRate: 1}))
	for name, token := range map[string]string{"too many": w.asUser("vera").token, "without a token": "wrong"} {
		conn := w.raw(t)
		one := "GET /v1/user HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n\r\n"
		go func() { _, _ = io.WriteString(conn, strings.Repeat(one, 50)) }() // it may be cut off
		codes, from := map[int]int{}, bufio.NewReader(conn)
		for range 50 {
			resp, err := http.ReadResponse(from, nil)
			if err != nil {
				break
			}
			codes[resp.StatusCode]++
			_, _ = io.Copy(io.Discard, resp.Body) // it may be cut off
			_ = resp.Body.Close()
		}
		if refused := codes[429] + codes[401]; refused > 1 {
			t.Errorf("%s: %d requests on one connection were refused", name, refused)
		}
	}
}

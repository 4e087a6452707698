package health_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/health"
	"mariposa/listener/porttest"
)

// targetOf returns the target of a server, and its port.
func targetOf(t *testing.T, address string) (health.Target, int) {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return health.Target{Instance: "i", Service: "s", Address: at.IP.String()}, at.Port
}

func probe(t *testing.T, at health.Target, c mariposa.HealthCheck) error {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), c.Timeout)
	defer cancel()
	return health.ProbeNetwork(ctx, at, &c)
}

func TestAnHTTPCheckComparesTheAnswer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Ok", "yes")
		switch r.URL.Path {
		case "/down":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/created":
			w.WriteHeader(http.StatusCreated)
		case "/long":
			fmt.Fprint(w, strings.Repeat("x", 1<<20), "ready")
		}
		fmt.Fprintf(w, "state: ready, query: %s", r.URL.RawQuery)
	}))
	t.Cleanup(server.Close)
	at, port := targetOf(t, server.Listener.Addr().String())
	ok := []mariposa.StatusRange{{From: 200, To: 200}}
	for name, c := range map[string]struct {
		mariposa.HealthCheck
		want string // part of the error; empty: it passes
	}{
		"the expected status":         {mariposa.HealthCheck{Path: "/", ExpectStatus: ok}, ""},
		"another status":              {mariposa.HealthCheck{Path: "/down", ExpectStatus: ok}, "answered 503"},
		"a status within a range":     {mariposa.HealthCheck{Path: "/created", ExpectStatus: []mariposa.StatusRange{{From: 100, To: 199}, {From: 200, To: 299}}}, ""},
		"a query":                     {mariposa.HealthCheck{Path: "/?a=b", ExpectStatus: ok, ExpectBody: "query: a=b"}, ""},
		"a header":                    {mariposa.HealthCheck{Path: "/", ExpectStatus: ok, ExpectHeaders: []mariposa.Variable{{Name: "x-ok", Value: "yes"}}}, ""},
		"a missing header":            {mariposa.HealthCheck{Path: "/", ExpectStatus: ok, ExpectHeaders: []mariposa.Variable{{Name: "X-No", Value: "yes"}}}, "answered without the header X-No"},
		"a header with another value": {mariposa.HealthCheck{Path: "/", ExpectStatus: ok, ExpectHeaders: []mariposa.Variable{{Name: "X-Ok", Value: "no"}}}, "answered with X-Ok: yes instead of no"},
		"a text in the body":          {mariposa.HealthCheck{Path: "/", ExpectStatus: ok, ExpectBody: "ready"}, ""},
		"another text":                {mariposa.HealthCheck{Path: "/", ExpectStatus: ok, ExpectBody: "steady"}, `answered with a body that does not match "steady"`},
		"a regular expression":        {mariposa.HealthCheck{Path: "/", ExpectStatus: ok, ExpectBody: "/state: (ready|up)/"}, ""},
		"an expression without match": {mariposa.HealthCheck{Path: "/", ExpectStatus: ok, ExpectBody: "/^ready/"}, "does not match"},
		"a text far behind the limit": {mariposa.HealthCheck{Path: "/long", ExpectStatus: ok, ExpectBody: "ready"}, "does not match"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Type, c.Port = mariposa.CheckHTTP, port
			check(t, probe(t, at, c.HealthCheck), c.want)
		})
	}
}

func check(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("it fails: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestAnHTTPSCheckVerifiesTheCertificateUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	at, port := targetOf(t, server.Listener.Addr().String())
	c := mariposa.HealthCheck{Type: mariposa.CheckHTTPS, Port: port, Path: "/", ExpectStatus: []mariposa.StatusRange{{From: 200, To: 200}}}
	check(t, probe(t, at, c), "certificate")
	c.Insecure = true
	check(t, probe(t, at, c), "")
}

func TestATCPCheckPassesIfSomethingListens(t *testing.T) {
	t.Parallel()
	l := porttest.Listen(t)
	at, port := targetOf(t, l.Addr().String())
	c := mariposa.HealthCheck{Type: mariposa.CheckTCP, Port: port}
	check(t, probe(t, at, c), "")
	l.Close()
	check(t, probe(t, at, c), "refused the connection")
}

func TestWhatAnswersIsNamed(t *testing.T) {
	t.Parallel()
	serve := func(answer string) (health.Target, int) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				if answer == "" { // it stays open without an answer until the test ends
					t.Cleanup(func() { conn.Close() })
					continue
				}
				buf := make([]byte, 1024)
				_, _ = conn.Read(buf)
				_, _ = conn.Write([]byte(answer))
				conn.Close()
			}
		}()
		return targetOf(t, l.Addr().String())
	}
	for name, c := range map[string]struct{ answer, want string }{
		"something else than HTTP": {"220 mail.example.org ESMTP\r\n", "did not answer in HTTP"},
		"half a head":              {"HTTP/1.1 200 OK\r\nA: b\r\n", "without a complete answer"},
		"a head without end":       {"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 1<<15), "answered with headers of more than 64 KiB"},
		"a length that is none":    {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "did not answer in valid HTTP: bad Content-Length"},
		"an unknown encoding":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: foo\r\n\r\n", "did not answer in valid HTTP: unsupported transfer encoding"},
		"a chunk that is none":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", "did not answer in valid HTTP: invalid byte in chunk length"},
		"early hints, then 503":    {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 503 X\r\n\r\n", "answered 503"},
		"early hints without end":  {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 1<<15), "answered with headers of more than 64 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, port := serve(c.answer)
			err := probe(t, at, mariposa.HealthCheck{Type: mariposa.CheckHTTP, Port: port, Path: "/", ExpectStatus: []mariposa.StatusRange{{From: 200, To: 200}}, ExpectBody: "up"})
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	at, port := serve("HTTP/1.1 200 OK\r\nX-State: a\r\nX-State: up\r\n\r\n")
	if err := probe(t, at, mariposa.HealthCheck{Type: mariposa.CheckHTTP, Port: port, Path: "/", ExpectStatus: []mariposa.StatusRange{{From: 200, To: 200}}, ExpectHeaders: []mariposa.Variable{{Name: "x-state", Value: "up"}}}); err != nil {
		t.Errorf("one of two values matches: %v", err)
	}
	at, port = serve("")
	err := probe(t, at, mariposa.HealthCheck{Type: mariposa.CheckHTTP, Port: port, Path: "/", Timeout: 100 * time.Millisecond})
	if err == nil || err.Error() != "did not answer within 0.1 s" {
		t.Errorf("got %v", err)
	}
}

func TestACheckUsesTheAddressOfItsPortOrNetwork(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port := targetOf(t, l.Addr().String())
	at := health.Target{Address: "127.0.0.2", Ports: map[int]string{8080: l.Addr().String()}, Networks: map[string]string{"back": "127.0.0.1"}}
	check(t, probe(t, at, mariposa.HealthCheck{Type: mariposa.CheckTCP, Port: 8080}), "")
	check(t, probe(t, at, mariposa.HealthCheck{Type: mariposa.CheckTCP, Port: port, Network: "back"}), "")
	err = probe(t, at, mariposa.HealthCheck{Type: mariposa.CheckTCP, Port: port, Network: "front"})
	var unclear *health.Inconclusive
	if !errors.As(err, &unclear) || !strings.Contains(err.Error(), "no address in network front") {
		t.Errorf("got %v", err)
	}
}

func TestContainerPilotSaysWhichJobsFail(t *testing.T) {
	t.Parallel()
	page := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, page)
	}))
	t.Cleanup(server.Close)
	at, port := targetOf(t, server.Listener.Addr().String())
	for _, c := range []struct{ page, want string }{
		{`{"Version":"3.8.0","Services":[{"Name":"nginx","Address":"10.0.0.2","Port":80,"Status":"healthy"}],"Watches":["backend"]}`, ""},
		{`{"Version":"3.8.0","Services":[]}`, ""},
		{`{"Services":[{"Name":"nginx","Status":"unhealthy"},{"Name":"job","Status":"completed"}]}`, "says that nginx is unhealthy"},
		{`{"Services":[{"Name":"nginx","Status":"maintenance"}]}`, "says that nginx is maintenance"},
		{`<html>`, "something that ContainerPilot does not write"},
	} {
		page = c.page
		check(t, probe(t, at, mariposa.HealthCheck{Type: mariposa.CheckPilot, Port: port}), c.want)
	}
}

func TestAnAbortedCheckEndsBeforeItsTimeout(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx, abort := context.WithTimeout(t.Context(), time.Hour)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1)) // the request is here
		abort()
		<-t.Context().Done()
	}()
	at, port := targetOf(t, l.Addr().String())
	if err := health.ProbeNetwork(ctx, at, &mariposa.HealthCheck{Type: mariposa.CheckHTTP, Port: port, Path: "/", Timeout: time.Hour}); err == nil {
		t.Error("it passes")
	}
}

func TestHalfAnAnswerInTimeIsNoAnswer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("HTTP/1.1 2"))
		<-t.Context().Done()
	}()
	at, port := targetOf(t, l.Addr().String())
	err = probe(t, at, mariposa.HealthCheck{Type: mariposa.CheckHTTP, Port: port, Path: "/", Timeout: time.Second})
	if err == nil || err.Error() != "did not answer within 1 s" {
		t.Errorf("got %v", err)
	}
}

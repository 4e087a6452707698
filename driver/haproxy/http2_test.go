package haproxy_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver/drivertest"
	"mariposa/listener/porttest"
)

// speaking starts a member that says which protocol it was asked with. It speaks HTTP/1.1 and HTTP/2
// without TLS.
func speaking(t *testing.T) mariposa.Member {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return mariposa.Member{Backend: "web.80", Instance: "a", Address: strings.TrimPrefix(s.URL, "http://"), Weight: 100, State: mariposa.MemberUp}
}

// Clients of a balancer in the mode http may use HTTP/2. In the mode tcp, HTTP/2 goes through to the
// members, as gRPC needs it.
func TestClientsUseHTTP2(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		balancer     mariposa.Balancer
		scheme, want string // the protocols of the response and of the request that the member got
	}{
		"http":          {mariposa.Balancer{}, "http", "HTTP/2.0 HTTP/1.1"},
		"http with TLS": {mariposa.Balancer{TLS: true}, "https", "HTTP/2.0 HTTP/1.1"},
		"tcp":           {mariposa.Balancer{Mode: "tcp"}, "http", "HTTP/2.0 HTTP/2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.balancer.Listen = []int{porttest.Reserve(t)}
			i := instance(drivertest.NewID(), c.balancer)
			i.Members = []mariposa.Member{speaking(t)}
			if c.balancer.TLS {
				i.Mdata.Values = append(i.Mdata.Values, mariposa.Variable{Name: mariposa.CertificateValue, Value: goodPair(t, "two")})
			}
			run(t, i)
			transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Protocols: new(http.Protocols)} //nolint:gosec // the certificate is our own
			transport.Protocols.SetHTTP2(true)
			transport.Protocols.SetUnencryptedHTTP2(true)
			defer transport.CloseIdleConnections()
			client := &http.Client{Timeout: time.Minute, Transport: transport}
			eventually(t, c.want, func() string {
				r, err := client.Get(c.scheme + "://127.0.0.1:" + strconv.Itoa(c.balancer.Listen[0]))
				if err != nil {
					return err.Error()
				}
				defer r.Body.Close()
				b, err := io.ReadAll(r.Body)
				if err != nil {
					return err.Error()
				}
				return fmt.Sprintf("%s %s", r.Proto, b)
			})
		})
	}
}

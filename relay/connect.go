package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"
)

// connect opens a connection to another replica, and checks that it is that one. It also
// returns the status of the answer, if there was one.
func (l *Links) connect(ctx context.Context, to Replica) (_ *websocket.Conn, status int, err error) {
	u, err := url.Parse(to.URL)
	if err != nil {
		return nil, 0, err
	}
	transport := &http.Transport{TLSClientConfig: trust(to.Pin, u.Hostname()), DisableKeepAlives: true} // no proxy
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("it redirects to another address: advertise the address of the replica itself")
	}}
	credentials, nonce := l.newProof(to.Name)
	conn, resp, err := websocket.Dial(ctx, strings.Replace(strings.TrimSuffix(to.URL, "/"), "http", "ws", 1)+Path, &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: http.Header{"Authorization": {Scheme + " " + credentials}},
	})
	if resp != nil {
		status = resp.StatusCode
		if resp.Body != nil {
			_ = resp.Body.Close()
		}
	}
	switch {
	case err != nil && status == http.StatusUnauthorized:
		return nil, status, errors.New("it refuses this replica: both need the same --key-file, and the address must be its own")
	case err != nil:
		return nil, status, err
	case !l.verifyAnswer(resp.Header.Get(AnswerHeader), to.Name, nonce):
		_ = conn.CloseNow() // whoever that is
		return nil, status, errors.New("what answers there is not that replica")
	}
	return conn, status, nil
}

// trust returns how the certificate of a replica is verified: by the pin that it has
// published, or else as usual, because a proxy in front of it may have another one.
func trust(pin, host string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if pin == "" {
		return c
	}
	c.InsecureSkipVerify = true // verified below
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if Pin(state.PeerCertificates[0].Raw) == pin {
			return nil
		}
		chain := x509.NewCertPool()
		for _, cert := range state.PeerCertificates[1:] {
			chain.AddCert(cert)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: host, Intermediates: chain})
		if err != nil {
			return errors.New("its certificate is not the one that it has published: " + err.Error())
		}
		return nil
	}
	return c
}

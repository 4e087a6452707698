// Package wiretest connects both ends of the wire over loopback. It owns the connection;
// the tests own what is sent over it.
package wiretest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"mariposa/wire"
)

// Pair opens a WebSocket over loopback and returns both ends.
func Pair(t *testing.T) (near, far *websocket.Conn) {
	t.Helper()
	got := make(chan *websocket.Conn, 1)
	end := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		got <- c
		<-end
	}))
	client := &http.Client{Transport: &http.Transport{}}
	far, _, err := websocket.Dial(t.Context(), strings.Replace(srv.URL, "http", "ws", 1), &websocket.DialOptions{HTTPClient: client}) //nolint:bodyclose // an accepted connection has none
	if err != nil {
		t.Fatal(err)
	}
	near = <-got
	t.Cleanup(func() {
		_ = far.CloseNow()
		_ = near.CloseNow()
		close(end)
		srv.Close()
		client.CloseIdleConnections()
	})
	return near, far
}

// Drain reads frames until the connection ends, which its streams depend on. Each frame
// is passed to each, if that is not nil.
func Drain(ctx context.Context, p *wire.Pipe, each func(wire.Frame)) error {
	for {
		f, err := p.Read(ctx)
		if err != nil {
			return err
		}
		if each != nil {
			each(f)
		}
	}
}

// Streams returns the control plane's end of a connection whose other end serves
// streams, until the test ends or cut is called.
func Streams(t *testing.T, serve func(*wire.Stream)) (p *wire.Pipe, cut func()) {
	t.Helper()
	a, b := Pair(t)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	near, far := wire.NewPipe(ctx, a), wire.NewPipe(ctx, b)
	far.Accept(serve)
	for _, p := range []*wire.Pipe{near, far} {
		go func() { // ends with the connection
			defer p.Close()
			_ = Drain(ctx, p, nil) // it ends as the test wants
		}()
	}
	return near, func() { _ = b.CloseNow() }
}

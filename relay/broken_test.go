package relay

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"mariposa/wire"
)

// A write that fails ends the streams of a link, and a request that is repeated for that may come
// before the link's reader has noticed.
func TestABrokenLinkIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, err := websocket.Accept(w, r, nil); err == nil {
			_, _, _ = conn.Read(r.Context())
			_ = conn.CloseNow()
		}
	}))
	defer srv.Close()
	conn, resp, err := websocket.Dial(t.Context(), srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if resp.Body != nil {
		defer resp.Body.Close()
	}
	k := &link{ready: make(chan struct{}), pipe: wire.NewPipe(t.Context(), conn)}
	close(k.ready)
	if !k.take() {
		t.Error("a link that works is not used")
	}
	k.pipe.Abort()
	if k.take() {
		t.Error("a link whose connection has ended is used again")
	}
}

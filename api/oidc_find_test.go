package api

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa/clock/clocktest"
)

// A provider that hangs is asked once, not once for everybody who wants to sign in.
func TestPeopleDoNotQueueForAProviderThatHangs(t *testing.T) {
	t.Parallel()
	clk := clocktest.New()
	var asked atomic.Int32
	timeout := make(chan struct{})
	hung := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		<-timeout
		http.Error(w, "timeout", http.StatusGatewayTimeout)
	}))
	defer hung.Close()
	p := newProvider(&OIDC{Name: "Example", Issuer: hung.URL})

	var people sync.WaitGroup
	signIn := func() {
		if _, err := p.find(clk); err == nil {
			t.Error("found a provider that hangs")
		}
	}
	people.Go(signIn)
	for asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	clk.Pass(providerRetry + time.Second) // they ask while the first still waits
	for range 20 {
		people.Go(signIn)
	}
	close(timeout)
	people.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("the provider was asked %d times", n)
	}

	clk.Pass(providerRetry)
	if _, err := p.find(clk); err == nil {
		t.Error("found a provider that fails")
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("some time later the provider was asked %d times in all, not 2", n)
	}
}

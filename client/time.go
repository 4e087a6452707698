package client

import (
	"context"
	"net/http"
	"sync"
	"time"

	"mariposa/contract"
)

// serverClock knows how far the clock of the servers is ahead of the one of this machine.
type serverClock struct {
	mu    sync.Mutex
	known bool
	ahead time.Duration
}

// note compares the clocks by a response. Differences that the time of the round trip
// explains do not count.
func (s *serverClock) note(res *http.Response, sent, received time.Time) {
	at, err := time.Parse(time.RFC3339Nano, res.Header.Get(contract.TimeHeader))
	if err != nil {
		return // a server of an earlier release
	}
	half := received.Sub(sent) / 2
	ahead := at.Sub(sent.Add(half))
	if ahead.Abs() <= half {
		ahead = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.ahead = true, ahead
}

func (s *serverClock) get() (ahead time.Duration, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ahead, s.known
}

// Ahead returns how far the clock of the servers is ahead of the one of this machine, as of
// the last response; zero if that is not known.
func (c *Client) Ahead() time.Duration {
	ahead, _ := c.clock.get()
	return ahead
}

// AskAhead is Ahead, and asks the server if there was no response yet. If it does not
// answer, that is for the next request to say.
func (c *Client) AskAhead(ctx context.Context) time.Duration {
	if _, known := c.clock.get(); !known {
		_, _ = c.Health(ctx)
	}
	return c.Ahead()
}

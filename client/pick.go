package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"time"

	"mariposa"
	"mariposa/contract"
)

// watch limits an attempt to the time that its server is alive, if there are others: a
// request may take long, but a server that does not even say that it is alive is hung or
// cut off.
func (c *Client) watch(ctx context.Context, at *endpoint) (attempt context.Context, stop func()) {
	if c.servers.isAlone() {
		return ctx, func() {}
	}
	attempt, cancel := context.WithCancelCause(ctx)
	go func() { // ends with the attempt
		again := time.NewTicker(patience)
		defer again.Stop()
		for {
			select {
			case <-attempt.Done():
				return
			case <-again.C:
			}
			if err := c.probe(attempt, at, func(*http.Response) error { return nil }); err != nil {
				cancel(errSilent)
				return
			}
		}
	}()
	return attempt, func() { cancel(nil) }
}

// probe asks a server, without the token, whether it is alive.
func (c *Client) probe(ctx context.Context, at *endpoint, read func(*http.Response) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errSilent)
	defer cancel()
	u := at.base
	u.User = nil
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String()+"/healthz", http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", c.agent)
	res, err := at.probe.Do(req)
	if err != nil {
		return &lostError{causeOf(ctx, err)}
	}
	defer res.Body.Close()
	return read(res)
}

// finding is what a server says about itself.
type finding struct {
	at           *endpoint
	installation string
	err          error
}

// find asks a server which installation it belongs to.
func (c *Client) find(ctx context.Context, at *endpoint) finding {
	f := finding{at: at}
	f.err = c.probe(ctx, at, func(res *http.Response) error {
		var h contract.Health
		if json.NewDecoder(io.LimitReader(res.Body, maxError)).Decode(&h) != nil || h.Installation == "" {
			return &foreignError{}
		}
		f.installation = h.Installation
		return nil
	})
	return f
}

// pick returns the server to send a request to: the current one if it answered last,
// otherwise the first one that answers now and belongs to the installation. It returns
// nil if there is none left.
func (c *Client) pick(ctx context.Context, t *try) (*endpoint, error) {
	s := &c.servers
	if !s.isSeveral() {
		if at := s.inUse(); !t.hasFailed(at) {
			return at, nil
		}
		return nil, nil
	}
	s.picking.Lock()
	defer s.picking.Unlock()
	left := slices.DeleteFunc(s.list(), t.hasFailed)
	if len(left) == 0 {
		left = t.slowServers()
	}
	if len(left) == 0 {
		return nil, nil
	}
	s.mu.Lock()
	current, answers, known := s.current, left[0].answers, s.installation
	s.mu.Unlock()
	if left[0] == current && answers {
		return current, nil
	}
	var found *endpoint
	if known == "" {
		var err error
		if found, err = c.compare(ctx, t, left); err != nil {
			return nil, err
		}
	} else {
		found = c.race(ctx, t, left, known)
	}
	if found == nil && ctx.Err() != nil {
		return nil, unreachable(ctx, left[0], ctx.Err())
	}
	return found, nil
}

func (t *try) hasFailed(at *endpoint) bool {
	return slices.ContainsFunc(t.failed, func(f failedTry) bool { return f.at == at })
}

// slowServers returns those that were not waited for.
func (t *try) slowServers() (all []*endpoint) {
	for _, f := range t.failed {
		if f.wasSlow {
			all = append(all, f.at)
		}
	}
	return all
}

// fail records that a server cannot be used.
func (t *try) fail(f finding) {
	t.note(failedTry{at: f.at, err: f.err})
	t.c.servers.note(f.at, false)
}

// note records why a server did not carry out the request, instead of what was known before.
func (t *try) note(f failedTry) {
	if n := slices.IndexFunc(t.failed, func(known failedTry) bool { return known.at == f.at }); n >= 0 {
		t.failed[n] = f
		return
	}
	t.failed = append(t.failed, f)
}

// race asks servers one after another, the next as soon as one fails or hesitates, and
// returns the first one that answers.
func (c *Client) race(ctx context.Context, t *try, left []*endpoint, installation string) *endpoint {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan finding, len(left))
	next := time.NewTimer(0)
	defer next.Stop()
	for asked, done := 0, 0; done < len(left); {
		select {
		case <-next.C:
			if asked < len(left) {
				at := left[asked]
				go func() { results <- c.find(ctx, at) }() // ends with the probe
				asked++
				next.Reset(c.servers.stagger)
			}
		case f := <-results:
			done++
			if f.err == nil && f.installation != installation {
				f.err = &foreignError{f.installation, installation}
			}
			if f.err == nil {
				return f.at
			}
			if ctx.Err() != nil {
				return nil
			}
			t.fail(f)
			next.Reset(0)
		}
	}
	return nil
}

// compare asks all servers at once, because it is not known yet which installation is
// meant, and returns the first in the list that answers. If servers of several
// installations answer, none of them gets a request.
func (c *Client) compare(ctx context.Context, t *try, left []*endpoint) (*endpoint, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan finding, len(left))
	for _, at := range left {
		go func() { results <- c.find(ctx, at) }() // ends with the probe
	}
	var enough <-chan time.Time
	var found []finding
collect:
	for len(found) < len(left) {
		select {
		case f := <-results:
			found = append(found, f)
			if f.err == nil && enough == nil {
				enough = time.After(c.servers.compareTime)
			}
		case <-enough:
			break collect
		}
	}
	if err := differ(found); err != nil {
		return nil, err
	}
	s := &c.servers
	s.mu.Lock()
	s.installation = installationOf(found)
	s.mu.Unlock()
	for _, at := range left {
		n := slices.IndexFunc(found, func(f finding) bool { return f.at == at })
		switch {
		case n < 0:
			t.note(failedTry{at, &lostError{errSilent}, true})
			s.note(at, false)
		case found[n].err != nil:
			t.fail(found[n])
		default:
			return at, nil
		}
	}
	return nil, nil
}

// installationOf returns the installation of the first server that answered.
func installationOf(found []finding) string {
	for _, f := range found {
		if f.err == nil {
			return f.installation
		}
	}
	return ""
}

// differ returns an error if servers belong to different installations.
func differ(found []finding) error {
	var first *finding
	for n := range found {
		f := &found[n]
		switch {
		case f.err != nil:
		case first == nil:
			first = f
		case f.installation != first.installation:
			return mariposa.Errorf(mariposa.InvalidArgument, "%s and %s belong to different installations (%s and %s), so nothing was sent: give only URLs of replicas of one installation",
				first.at.name(), f.at.name(), first.installation, f.installation)
		}
	}
	return nil
}

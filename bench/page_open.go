package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
)

// pagesReady is what OpenPages prints when all pages are loaded.
const pagesReady = "ready\n"

// pageKinds are the kinds of events that the page asks for; see web/src/world.ts.
const pageKinds = "instance.failed,instance.unhealthy,network,node,organization,package,project,service,settings,task,token,user,version,volume"

// PagesOptions say which pages to open.
type PagesOptions struct {
	URL, Token string
	Pages      int
	Details    int    // of them, pages of a project
	Project    string // its id
}

// OpenPages opens pages, as far as the server can tell: each sends the requests of the page in
// a browser, with connections of its own, and follows its stream. It prints that they are loaded,
// keeps them open until its input ends, and prints how many bytes they have read.
func OpenPages(ctx context.Context, o PagesOptions, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in) // its end is the signal
		cancel()
	}()
	var loaded, streamed atomic.Int64
	pages := make([]*openPage, o.Pages)
	err := forEach(ctx, o.Pages, 4, func(ctx context.Context, i int) error {
		p := &openPage{base: o.URL, token: o.Token, http: &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: 64 << 10}}}
		if i < o.Details {
			p.project = o.Project
		}
		pages[i] = p
		n, err := p.load(ctx)
		loaded.Add(n)
		return err
	})
	if err != nil {
		return err
	}
	opened := make(chan struct{}, o.Pages)
	follow := make([]func(context.Context) error, 0, o.Pages+1)
	for _, p := range pages {
		follow = append(follow, func(ctx context.Context) error {
			n, err := p.follow(ctx, func() { opened <- struct{}{} })
			streamed.Add(n)
			return err
		})
	}
	follow = append(follow, func(ctx context.Context) error {
		for range pages {
			select {
			case <-opened:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		_, err := io.WriteString(out, pagesReady)
		return err
	})
	if err := runAll(ctx, follow...); err != nil && ctx.Err() == nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d %d\n", loaded.Load(), streamed.Load())
	return err
}

// openPage does what a page in a browser does.
type openPage struct {
	base, token string
	http        *http.Client
	project     string // whose page is open; empty: the overview
	revision    int64
}

// load sends the requests of a page that is opened, and returns how much it has read.
func (p *openPage) load(ctx context.Context) (read int64, err error) {
	paths := []string{"/", "/v1/user", "/v1/state", "/v1/projects", "/v1/queue", "/v1/events?limit=100&kinds=" + pageKinds}
	if p.project != "" {
		paths = append(paths, "/v1/instances?limit=1000&project="+p.project, "/v1/events?limit=50&project="+p.project)
	}
	for _, path := range paths {
		res, err := p.get(ctx, path, "application/json")
		if err != nil {
			return read, err
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close() // it was read
		if err != nil {
			return read, err
		}
		read += int64(len(body))
		if path == "/v1/state" {
			var state struct {
				Revision int64 `json:"revision"`
			}
			if err := json.Unmarshal(body, &state); err != nil {
				return read, err
			}
			p.revision = state.Revision
		}
	}
	return read, nil
}

// follow reads the stream of the page until the context ends, and returns how much it has read.
func (p *openPage) follow(ctx context.Context, opened func()) (read int64, err error) {
	query := url.Values{"since": {strconv.FormatInt(p.revision, 10)}, "states": {"true"}, "kinds": {pageKinds}}
	if p.project != "" {
		query.Set("detail", p.project)
	}
	res, err := p.get(ctx, "/v1/events?"+query.Encode(), "text/event-stream")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	opened()
	read, err = io.Copy(io.Discard, res.Body)
	if ctx.Err() != nil {
		return read, nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return read, fmt.Errorf("the stream of a page ended: %w", err)
}

func (p *openPage) get(ctx context.Context, path, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	req.Header.Set("Accept", accept)
	res, err := p.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close() // its error does not matter
		return nil, fmt.Errorf("GET %s: unexpected status %s", path, res.Status)
	}
	return res, nil
}

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"mariposa/contract"
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
// a browser, with connections of its own, follows its stream, and reads what it shows. It prints
// that they are loaded, and keeps them open until its input ends. A number in its input is how many
// instances of the project run: when all pages show as many, it prints when the last one did, and
// the CPU time of the pages since they were loaded. At the end it prints how many bytes they have
// read.
func OpenPages(ctx context.Context, o PagesOptions, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pages := make([]*openPage, o.Pages)
	err := forEach(ctx, o.Pages, 4, func(ctx context.Context, i int) error {
		p := &openPage{base: o.URL, token: o.Token, project: o.Project, http: &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: 64 << 10}}, shown: newShown(i < o.Details)}
		pages[i] = p
		return p.load(ctx)
	})
	if err != nil {
		return err
	}
	opened := make(chan struct{}, o.Pages)
	parts := make([]func(context.Context) error, 0, o.Pages+1)
	for _, p := range pages {
		parts = append(parts, func(ctx context.Context) error { return p.follow(ctx, func() { opened <- struct{}{} }) })
	}
	parts = append(parts, func(ctx context.Context) error {
		for range pages {
			select {
			case <-opened:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return answer(ctx, pages, readNumbers(in, cancel), out)
	})
	if err := runAll(ctx, parts...); err != nil && ctx.Err() == nil {
		return err
	}
	var loaded, streamed int64
	for _, p := range pages {
		loaded, streamed = loaded+p.loaded, streamed+p.streamed
	}
	_, err = fmt.Fprintf(out, "%d %d\n", loaded, streamed)
	return err
}

// readNumbers reads numbers, one in a line, and calls a function when there are no more.
func readNumbers(in io.Reader, end func()) <-chan int {
	numbers := make(chan int)
	go func() {
		defer end()
		for input := bufio.NewScanner(in); input.Scan(); {
			n, err := strconv.Atoi(input.Text())
			if err != nil {
				return
			}
			numbers <- n // the sender waits for the answer
		}
	}()
	return numbers
}

// answer says that the pages are loaded, and then when they show as many running instances as it
// is asked for.
func answer(ctx context.Context, pages []*openPage, asked <-chan int, out io.Writer) error {
	before := cpu()
	if _, err := io.WriteString(out, pagesReady); err != nil {
		return err
	}
	for {
		var n int
		select {
		case <-ctx.Done():
			return ctx.Err()
		case n = <-asked:
		}
		var last time.Time
		for i, p := range pages {
			at, err := p.shown.await(ctx, n)
			if err != nil {
				return fmt.Errorf("page %d shows %w", i+1, err)
			}
			if at.After(last) {
				last = at
			}
		}
		if _, err := fmt.Fprintf(out, "%d %d\n", last.UnixNano(), cpu()-before); err != nil {
			return err
		}
	}
}

// openPage does what a page in a browser does.
type openPage struct {
	base, token string
	http        *http.Client
	project     string // that converges
	revision    int64
	shown       *shown
	loaded      int64 // bytes read to open the page
	streamed    int64 // and since
}

// load sends the requests of a page that is opened.
func (p *openPage) load(ctx context.Context) error {
	paths := []string{"/", "/v1/user", "/v1/state", "/v1/projects", "/v1/queue", "/v1/events?limit=100&kinds=" + pageKinds}
	if p.shown.hasInstances {
		paths = append(paths, "/v1/instances?limit=1000&project="+p.project, "/v1/events?limit=50&project="+p.project)
	}
	for _, path := range paths {
		res, err := p.get(ctx, path, "application/json")
		if err != nil {
			return err
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close() // it was read
		if err != nil {
			return err
		}
		p.loaded += int64(len(body))
		if path == "/v1/state" {
			var state struct {
				Revision int64 `json:"revision"`
			}
			if err := json.Unmarshal(body, &state); err != nil {
				return err
			}
			p.revision = state.Revision
		}
	}
	return nil
}

// follow reads the stream of the page until the context ends.
func (p *openPage) follow(ctx context.Context, opened func()) error {
	query := url.Values{"since": {strconv.FormatInt(p.revision, 10)}, "states": {"true"}, "kinds": {pageKinds}}
	if p.shown.hasInstances {
		query.Set("detail", p.project)
		query.Set("instances", p.project)
	}
	res, err := p.get(ctx, "/v1/events?"+query.Encode(), "text/event-stream")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	opened()
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	for kind := ""; ; {
		line, err := lines.ReadBytes('\n')
		p.streamed += int64(len(line))
		if err == nil {
			kind, err = p.read(kind, line)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("the stream of a page ended: %w", err)
		}
	}
}

// read reads a line of the stream, in an event of a kind.
func (p *openPage) read(kind string, line []byte) (string, error) {
	if name, ok := bytes.CutPrefix(line, []byte("event: ")); ok {
		return string(bytes.TrimSpace(name)), nil
	}
	data, ok := bytes.CutPrefix(line, []byte("data: "))
	if !ok {
		return kind, nil
	}
	switch kind {
	case "state":
		var doc contract.ProjectState
		if err := json.Unmarshal(data, &doc); err != nil {
			return "", err
		}
		if doc.ID == p.project {
			p.shown.setState(doc)
		}
	case "instances":
		var doc contract.ChangedInstances
		if err := json.Unmarshal(data, &doc); err != nil {
			return "", err
		}
		p.shown.setInstances(doc)
	default:
		var doc contract.Event
		if err := json.Unmarshal(data, &doc); err != nil {
			return "", err
		}
	}
	return "", nil
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

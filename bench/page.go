package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"time"

	"mariposa/client"
)

// PageOptions configure the benchmark of the web page.
type PageOptions struct {
	Environment
	Instances int           // in the system, at rest
	Nodes     int           //
	Projects  int           // that the instances are divided among
	Pages     int           // open pages
	Details   int           // of them, pages of the project that converges; the others show the overview
	Changes   int           // single instances killed per measurement
	Interval  time.Duration // between two kills
	Started   int           // instances that a project starts in a round
	Rounds    int           // of each kind
	// Viewers returns the command that keeps pages open; see OpenPages.
	Viewers func(args ...string) *exec.Cmd
}

// PageResult contains the measurements.
type PageResult struct {
	Instances int    `json:"instances"`
	Nodes     int    `json:"nodes"`
	Projects  int    `json:"projects"`
	Pages     int    `json:"pages"`
	Details   int    `json:"project_pages"`
	Store     string `json:"store"`

	// What a change costs the server for one open overview more: the killing of an
	// instance and everything that follows from it, until its replacement runs. With one
	// page, and for each of many.
	Changes  int     `json:"changes"`
	OneMS    float64 `json:"cpu_ms_per_change_one_page"`
	EachMS   float64 `json:"cpu_ms_per_change_per_page"`
	Alone    float64 `json:"cpu_ms_per_change_without_pages"`
	LoadMS   float64 `json:"cpu_ms_to_open_a_page"`
	PageKB   float64 `json:"kb_to_open_a_page"`
	ChangeKB float64 `json:"kb_per_change_per_page"`

	// A project that starts instances, and stops them, alternately without and with the open
	// pages. The CPU time is that of the server, its nodes and the benchmark, for both, beyond
	// what they take at rest, and without that of the pages.
	Started     int       `json:"started"`
	WithoutS    []float64 `json:"start_s_without_pages"`
	WithS       []float64 `json:"start_s_with_pages"`
	SlowdownPct float64   `json:"slowdown_pct"` // of the medians
	CPUWithoutS []float64 `json:"start_cpu_s_without_pages"`
	CPUWithS    []float64 `json:"start_cpu_s_with_pages"`
	MoreCPUPct  float64   `json:"more_cpu_pct"`  // of the medians
	LateMS      []float64 `json:"pages_late_ms"` // from the start of the last instance until the last page shows it
	PagesCPUS   []float64 `json:"pages_cpu_s"`   // of the pages, which a person's computer would do
	StartKB     float64   `json:"kb_per_start_per_page"`
	RSSMB       float64   `json:"rss_mb"`
}

// pageRun is one running benchmark of the page.
type pageRun struct {
	PageOptions
	*system
	feed *follower
	ids  []string // of the projects at rest
	busy string   // id of the project that converges
	rest float64  // CPU time per second that the system takes at rest
	res  PageResult
}

// Page fills a system, opens pages in another process, and measures what they cost the server
// and how much they slow down a project that starts.
func Page(ctx context.Context, o PageOptions) (PageResult, error) {
	r := &pageRun{PageOptions: o, res: PageResult{
		Instances: o.Instances, Nodes: o.Nodes, Projects: o.Projects, Pages: o.Pages, Details: o.Details, Store: o.StoreName, Changes: o.Changes, Started: o.Started,
	}}
	var err error
	if r.system, err = begin(ctx, o.Environment, o.Nodes); err != nil {
		return r.res, err
	}
	defer r.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.feed = follow(ctx, r.store)
	for _, p := range []phase{
		{"filling the system", r.fill},
		{"killing single instances", func(ctx context.Context) error { return r.profiled(ctx, "cpu-changes", r.measureChanges) }},
		{"starting a project", func(ctx context.Context) error { return r.profiled(ctx, "cpu-start", r.measureStarts) }},
		{"cleaning up", r.cleanUp},
	} {
		if err := r.run(ctx, p); err != nil {
			return r.res, err
		}
	}
	return r.res, nil
}

func (r *pageRun) fill(ctx context.Context) error {
	r.progress("starting %d instances in %d projects", r.Instances, r.Projects)
	if _, err := r.client.SetSettings(ctx, client.SettingsChange{Quota: client.QuotaChange{Lift: []string{"projects", "instances"}}}); err != nil {
		return err // the load may be larger than the default quota
	}
	each := max(1, r.Instances/r.Projects)
	for i := range r.Projects {
		c, err := r.client.CreateProject(ctx, fmt.Sprintf("bench-%d", i+1), body(each, 16), "")
		if err != nil {
			return err
		}
		r.ids = append(r.ids, c.ID)
	}
	c, err := r.client.CreateProject(ctx, "bench-busy", body(0, 16), "")
	if err != nil {
		return err
	}
	r.busy = c.ID
	err = r.feed.until(ctx, func() bool {
		return !slices.ContainsFunc(r.ids, func(id string) bool { return r.feed.running[id] < each })
	})
	if err != nil {
		return err
	}
	if err := r.awaitIdle(ctx); err != nil {
		return err
	}
	r.res.RSSMB = rss()
	runtime.GC()
	if err := pause(ctx, 3*time.Second); err != nil { // the server tidies up
		return err
	}
	before, began := cpu(), time.Now()
	err = pause(ctx, 3*time.Second)
	r.rest = (cpu() - before).Seconds() / time.Since(began).Seconds()
	return err
}

// measureChanges kills instances without a page, with one, and with many, in turn. What the
// server does besides differs from time to time, so the medians are compared.
func (r *pageRun) measureChanges(ctx context.Context) error {
	var cost [3][]float64
	var counts pageCounts
	for range 3 {
		for i, n := range []int{0, 1, r.Pages} {
			before := cpu()
			p, err := r.openPages(ctx, n, 0)
			if err != nil {
				return err
			}
			if n > 1 {
				r.res.LoadMS = ms((cpu() - before) / time.Duration(n))
			}
			before = cpu()
			if err := r.killSlowly(ctx); err != nil {
				return err
			}
			cost[i] = append(cost[i], ms((cpu()-before)/time.Duration(r.Changes)))
			got, err := p.close()
			if err != nil {
				return err
			}
			if n > 1 {
				counts = got
			}
			r.progress("a change costs %.2f ms with %d open pages", cost[i][len(cost[i])-1], n)
		}
	}
	r.res.Alone = median(cost[0])
	r.res.OneMS, r.res.EachMS = round(median(cost[1])-r.res.Alone), round((median(cost[2])-r.res.Alone)/float64(r.Pages))
	r.res.PageKB = round(float64(counts.loaded) / float64(r.Pages) / 1024)
	r.res.ChangeKB = round(float64(counts.streamed) / float64(r.Pages) / float64(r.Changes) / 1024)
	r.result("a change costs %.2f ms more with one page, and %.2f ms more for each of %d; opening a page costs %.1f ms", r.res.OneMS, r.res.EachMS, r.Pages, r.res.LoadMS)
	return nil
}

// killSlowly kills instances, so slowly that each kill is shown before the next one.
func (r *pageRun) killSlowly(ctx context.Context) error {
	victims := r.feed.originals(r.ids[0], r.Changes)
	if len(victims) < r.Changes {
		return fmt.Errorf("there are only %d instances to kill: use more --instances or fewer --changes", len(victims))
	}
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	for id, name := range victims {
		if _, err := r.client.ActOnInstance(ctx, id, "crash"); err != nil {
			return err
		}
		if err := r.feed.until(ctx, func() bool { return r.feed.repaired[name] }); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// measureStarts starts instances, alternately without and with open pages.
func (r *pageRun) measureStarts(ctx context.Context) error {
	for range r.Rounds {
		for _, n := range []int{0, r.Pages} {
			if err := r.measureStart(ctx, n); err != nil {
				return err
			}
		}
	}
	r.res.SlowdownPct = more(r.res.WithS, r.res.WithoutS)
	r.res.MoreCPUPct = more(r.res.CPUWithS, r.res.CPUWithoutS)
	r.result("%d pages slow it down by %.1f %%: %.2f s instead of %.2f s; the server takes %.1f %% more CPU time; the last page shows the last instance %.0f ms after it runs (medians)",
		r.Pages, r.res.SlowdownPct, median(r.res.WithS), median(r.res.WithoutS), r.res.MoreCPUPct, median(r.res.LateMS))
	return nil
}

// more returns by how many percent the median of one measurement is above that of another; 0 if
// that is too small.
func more(of, than []float64) float64 {
	base := median(than)
	if base <= 0 {
		return 0
	}
	return round(100 * (median(of)/base - 1))
}

// measureStart starts instances with a number of open pages.
func (r *pageRun) measureStart(ctx context.Context, n int) error {
	p, err := r.openPages(ctx, n, min(n, r.Details))
	if err != nil {
		return err
	}
	before, began := cpu(), time.Now()
	took, late, err := r.startAndStop(ctx, p)
	used := max(0, (cpu()-before).Seconds()-r.rest*time.Since(began).Seconds())
	if err != nil {
		return errors.Join(err, p.abandon())
	}
	pages := p.used.Seconds()
	counts, err := p.close()
	if err != nil {
		return err
	}
	if n == 0 {
		r.progress("%d instances started in %.2f s; %.2f s of CPU with the stop", r.Started, took.Seconds(), used)
		r.res.WithoutS, r.res.CPUWithoutS = append(r.res.WithoutS, round(took.Seconds())), append(r.res.CPUWithoutS, round(used))
		return nil
	}
	r.progress("%d instances started in %.2f s with %d open pages, which show it %.0f ms later; %.2f s of CPU with the stop, and %.2f s for the pages", r.Started, took.Seconds(), n, ms(late), used, pages)
	r.res.WithS, r.res.CPUWithS = append(r.res.WithS, round(took.Seconds())), append(r.res.CPUWithS, round(used))
	r.res.LateMS, r.res.PagesCPUS = append(r.res.LateMS, ms(late)), append(r.res.PagesCPUS, round(pages))
	r.res.StartKB = round(float64(counts.streamed) / float64(n) / 1024)
	return nil
}

// startAndStop starts instances and returns how long that takes, and how much later the last page
// shows it; then it stops them.
func (r *pageRun) startAndStop(ctx context.Context, p *openedPages) (took, late time.Duration, err error) {
	began := time.Now()
	if _, err := r.client.Scale(ctx, r.busy, map[string]string{"load": strconv.Itoa(r.Started)}); err != nil {
		return 0, 0, err
	}
	if err := r.feed.until(ctx, func() bool { return r.feed.running[r.busy] >= r.Started }); err != nil {
		return 0, 0, err
	}
	ended := time.Now()
	shown, err := p.await(r.Started)
	if err != nil {
		return 0, 0, err
	}
	if err := r.awaitIdle(ctx); err != nil {
		return 0, 0, err
	}
	if _, err := r.client.Scale(ctx, r.busy, map[string]string{"load": "0"}); err != nil {
		return 0, 0, err
	}
	if err := r.feed.until(ctx, func() bool { return r.feed.running[r.busy] == 0 }); err != nil {
		return 0, 0, err
	}
	if _, err := p.await(0); err != nil {
		return 0, 0, err
	}
	return ended.Sub(began), max(0, shown.Sub(ended)), r.awaitIdle(ctx)
}

func (r *pageRun) cleanUp(ctx context.Context) error {
	for _, id := range append(slices.Clone(r.ids), r.busy) {
		if _, err := r.client.DeleteProject(ctx, id, true); err != nil {
			return err
		}
	}
	if err := r.awaitDeleted(ctx); err != nil {
		return err
	}
	return r.emptyStore(ctx)
}

// openedPages are pages that another process keeps open.
type openedPages struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	used time.Duration // CPU time since they were loaded, when await was called last
	stop func() bool   // what the end of the benchmark would do
}

// pageCounts are bytes that the pages have read.
type pageCounts struct{ loaded, streamed int64 }

// openPages opens pages and waits until they are loaded.
func (r *pageRun) openPages(ctx context.Context, n, details int) (*openedPages, error) {
	if n == 0 {
		return &openedPages{}, pause(ctx, time.Second)
	}
	cmd := r.Viewers(r.control.URL, strconv.Itoa(n), strconv.Itoa(details), r.busy)
	cmd.Env, cmd.Stderr = append(os.Environ(), "MARIPOSA_TOKEN="+r.token), r.system.Progress
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &openedPages{cmd: cmd, in: in, out: bufio.NewReader(out)}
	p.stop = context.AfterFunc(ctx, func() { _ = in.Close() }) // it ends then
	if line, err := p.out.ReadString('\n'); err != nil || line != pagesReady {
		return nil, fmt.Errorf("the pages did not open: %w", cmp.Or(p.abandon(), err))
	}
	return p, pause(ctx, time.Second)
}

// await waits until all pages show that a number of instances run, and returns since when.
func (p *openedPages) await(running int) (at time.Time, err error) {
	if p.cmd == nil {
		return at, nil
	}
	if _, err := fmt.Fprintln(p.in, running); err != nil {
		return at, fmt.Errorf("the pages are closed: %w", err)
	}
	var nanoseconds int64
	if _, err := fmt.Fscanf(p.out, "%d %d\n", &nanoseconds, &p.used); err != nil {
		return at, fmt.Errorf("the pages do not show %d running instances: %w", running, err)
	}
	return time.Unix(0, nanoseconds), nil
}

// abandon closes pages that may be broken, and returns why.
func (p *openedPages) abandon() error {
	if p.cmd == nil {
		return nil
	}
	p.stop()
	_ = p.in.Close() // it ends then
	return p.cmd.Wait()
}

// close closes the pages and returns what they have read.
func (p *openedPages) close() (c pageCounts, err error) {
	if p.cmd == nil {
		return c, nil
	}
	p.stop()
	_ = p.in.Close() // it ends then
	_, err = fmt.Fscanf(p.out, "%d %d\n", &c.loaded, &c.streamed)
	return c, errors.Join(err, p.cmd.Wait())
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	if len(sorted) == 0 {
		return 0
	}
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}

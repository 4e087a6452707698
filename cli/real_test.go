package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/agent"
	"mariposa/api"
	"mariposa/assembly"
	"mariposa/auth"
	"mariposa/client"
	"mariposa/clock"
	"mariposa/contract"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/seal"
	"mariposa/store/memory"
)

// steady is the clock of the tests. The machine's clock may be set back while they run.
var steady = clock.NewSteady()

// realServer is the whole system in this process, with simulated nodes. A proxy in front
// of it replaces values that differ between runs (ids, times, hashes, ports) by stable
// names of the same width, and translates them back in requests. Which name an id gets
// depends on what the test asked for first: numberInOrder makes outputs comparable.
type realServer struct {
	t     *testing.T
	url   string // the server's own URL; commands use the proxy's
	token string
	begun time.Time
	ahead time.Duration // how far its clock is ahead of those of clients
	*client.Client
	stop map[string]func() // ends the agent of a node

	mu       sync.Mutex
	stable   map[string]string // by what the server says
	original map[string]string // by what was made of it
	counts   map[int]int       // how many names there are of a width
}

// newRealServer starts the system with nodes, and stops it after the test. The nodes
// join one after the other, so their ids grow as their names do. One whose name ends in
// a plus runs an instance of another installation.
func newRealServer(t *testing.T, nodes ...string) *realServer {
	t.Helper()
	// Under the race detector, an eighth of the tests is enough, always the same ones: they
	// take several times as long there, and the server's own tests run there too.
	if testing.Short() && crc32.ChecksumIEEE([]byte(t.Name()))%8 > 0 {
		t.Skip("the run without the race detector has it")
	}
	s := &realServer{t: t, token: assembly.Secret(), begun: time.Now(), stable: map[string]string{}, original: map[string]string{}, counts: map[int]int{}, stop: map[string]func(){}}
	ctx, cancel := context.WithCancel(context.Background())
	st, join := memory.New(steady), assembly.Secret()
	must(t, auth.EnsureToken(ctx, st, s.token, mariposa.TokenSpec{Use: mariposa.TokenAdmin, Name: "test", User: mariposa.FirstUser, Created: time.Now()}, "for a test"))
	control, err := assembly.Start(ctx, assembly.Config{
		Store: st, Ring: seal.NewRing(), Listen: "127.0.0.1:0", JoinToken: join, Version: "1.2.3", Replica: "replica", NewID: growingIDs(),
		Limits: api.Limits{RequestRate: 1 << 20, Requests: 1 << 20},
	})
	must(t, err)
	var agents sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		agents.Wait()
		control.Stop()
	})
	s.url = control.URL
	s.Client, err = client.New(client.Options{URL: s.url, Token: s.token})
	must(t, err)
	for i, name := range nodes {
		name, inherits := strings.CutSuffix(name, "+")
		cfg := assembly.NodeConfig{Dir: filepath.Join(t.TempDir(), name), Name: name, Rack: fmt.Sprintf("r%d", i+1), DC: "d1", Dummy: true, InMemory: !inherits}
		if inherits {
			inherit(t, cfg.Dir)
		}
		life, end := context.WithCancel(ctx)
		ended := make(chan struct{})
		s.stop[name] = func() { end(); <-ended }
		agents.Go(func() {
			defer close(ended)
			if err := assembly.RunNode(life, agent.Link{Servers: []string{control.URL}, Token: join}, cfg); err != nil && life.Err() == nil {
				t.Errorf("node %s: %v", name, err)
			}
		})
		s.await(name+" joins", func() bool {
			all, err := s.Nodes(ctx)
			return err == nil && len(all.Nodes) == i+1
		})
	}
	return s
}

// inherit leaves an instance on a node, as if the node had belonged to another
// installation.
func inherit(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	w, err := dummy.OpenWorld(filepath.Join(dir, "dummies"), 1)
	must(t, err)
	d := dummy.New(w, steady)
	_, err = d.Start(t.Context(), driver.Instance{ID: "x1", Name: "web.3-0000f1", Project: "shop", Service: "web", Workload: &mariposa.Workload{Dummy: &mariposa.Dummy{NameLen: 8}}})
	must(t, err)
	must(t, d.Close())
	must(t, w.Close())
}

// growingIDs generates stable names, in the order in which they are generated: real ids
// of one millisecond have no order, and commands sort by them.
func growingIDs() func() string {
	var n atomic.Int64
	return func() string { return fmt.Sprintf("0198c000-0000-7000-8000-%012d", n.Add(1)) }
}

// await waits for something that must come true.
func (s *realServer) await(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited a minute in vain: %s", what)
		}
	}
}

// atRest waits until all tasks have ended and a project has a status.
func (s *realServer) atRest(project string, status mariposa.Status) {
	s.t.Helper()
	s.await(project+" is "+string(status), func() bool {
		st, err := s.State(s.t.Context(), project, "")
		if err != nil || len(st.Projects) != 1 || st.Projects[0].Status != status {
			return false
		}
		q, err := s.Queue(s.t.Context(), client.TaskFilter{Project: project})
		return err == nil && !slices.ContainsFunc(q.Tasks, func(t contract.Task) bool { return !t.State.Ended() })
	})
}

func (s *realServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	target := s.url + s.restore(r.URL.RequestURI())
	req, err := http.NewRequestWithContext(r.Context(), r.Method, target, strings.NewReader(s.restore(string(body))))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	req.Header = r.Header.Clone()
	req.Header.Del("Accept-Encoding")
	if r.Header.Get("Authorization") == "Bearer "+secret || r.Header.Get("Authorization") == "" { // else the test sends a token on purpose
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.Header().Del("Content-Length")
	w.Header().Set(contract.TimeHeader, noon.Add(10*time.Minute+s.ahead).Format(time.RFC3339)) // all times are those of the test
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		s.relay(w, resp)
		return
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, bytes.NewReader(s.steady(answer)))
}

// relay passes a stream on, line by line, until either side ends it.
func (s *realServer) relay(w http.ResponseWriter, resp *http.Response) {
	w.WriteHeader(resp.StatusCode)
	w.(http.Flusher).Flush()
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadBytes('\n')
		_, _ = w.Write(s.steady(line))
		w.(http.Flusher).Flush()
		if err != nil {
			return
		}
	}
}

var (
	anID      = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[57][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	aName     = regexp.MustCompile(`(\.\d+-)([0-9a-f]{6})\b`)
	aHash     = regexp.MustCompile(`\b[0-9a-f]{40}\b`)
	aKey      = regexp.MustCompile(`SHA256:[A-Za-z0-9+/]{43}`)
	aTime     = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	anHour    = regexp.MustCompile(`\b(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d( UTC)?\b`) // of today, or after midnight with its date
	aRingKey  = regexp.MustCompile(`"key": ?"[0-9a-f]{16}"`)
	aUsage    = regexp.MustCompile(`"usage": ?\{[^{}]*\}`) // reported now and then
	aSecret   = regexp.MustCompile(`\bmr[pj]_[A-Za-z0-9_-]+`)
	aCAS      = regexp.MustCompile(`"cas": ?"\d+"`) // a revision
	anAddress = regexp.MustCompile(`\b127\.\d+\.\d+\.\d+(:\d+)?\b`)
	aDummy    = regexp.MustCompile(`\b[0-9a-z]{32}\b`)                       // the physical id of a dummy
	aSize     = regexp.MustCompile(`("(?:stored": ?\{"used|events)": ?)\d+`) // in bytes, which depend on the digits of times
)

// steady replaces the values that differ between runs.
func (s *realServer) steady(answer []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := aTime.ReplaceAllStringFunc(string(answer), s.at)
	text = anHour.ReplaceAllString(text, "12:00:00$1")
	text = aSecret.ReplaceAllString(text, "mrp_TOPSECRET")
	text = aRingKey.ReplaceAllString(text, `"key":"00000000000000k1"`)
	text = aCAS.ReplaceAllStringFunc(text, func(cas string) string {
		number := cas[strings.LastIndexByte(cas[:len(cas)-1], '"')+1 : len(cas)-1]
		return `"cas":"` + s.called(number, func(n int) string { return fmt.Sprint(900000 + n) }) + `"`
	})
	text = aUsage.ReplaceAllString(text, `"usage":{}`)
	text = aSize.ReplaceAllString(text, "${1}24576")
	text = anAddress.ReplaceAllStringFunc(text, func(a string) string {
		if strings.Contains(a, ":") {
			return "127.0.0.1:34567"
		}
		return "127.0.0.1"
	})
	text = aDummy.ReplaceAllStringFunc(text, func(id string) string {
		return s.called(id, func(n int) string { return fmt.Sprintf("%032d", n) })
	})
	text = anID.ReplaceAllStringFunc(text, func(id string) string {
		return s.called(id, func(n int) string { return fmt.Sprintf("0198c000-0000-7000-8000-1%011d", n) })
	})
	text = aHash.ReplaceAllStringFunc(text, func(h string) string {
		return s.called(h, func(n int) string { return fmt.Sprintf("c0de%03d", n) + strings.Repeat("a", 33) })
	})
	text = aKey.ReplaceAllStringFunc(text, func(k string) string {
		return s.called(k, func(n int) string { return fmt.Sprintf("SHA256:%043d", n) })
	})
	text = aName.ReplaceAllStringFunc(text, func(name string) string {
		at := strings.LastIndexByte(name, '-') + 1
		return name[:at] + s.called(name[at:], func(n int) string { return fmt.Sprintf("f00%03d", n) })
	})
	return []byte(text)
}

// at is noon for all that happens during a test, and as much later for what is set to
// happen after it.
func (s *realServer) at(when string) string {
	t, err := time.Parse(time.RFC3339Nano, when)
	if err != nil || t.Year() == noon.Year() && t.Equal(noon) {
		return when
	}
	later := max(0, t.Sub(s.begun)).Truncate(time.Hour)
	return noon.Add(later).Format(time.RFC3339)
}

// called is the stable name of something, a new one if it is seen for the first time.
// What is stable already stays.
func (s *realServer) called(real string, name func(n int) string) string {
	if _, known := s.original[real]; known || strings.HasPrefix(real, "0198c000-0000-7000-8000-") {
		return real
	}
	if _, known := s.stable[real]; !known {
		kind := len(name(0)) // each has numbers of its own
		s.counts[kind]++
		n := name(s.counts[kind])
		s.stable[real], s.original[n] = n, real
	}
	return s.stable[real]
}

// stableNames finds what called returns: ids, version hashes (also shortened ones), names
// of instances, revisions of metadata, public keys, and physical ids.
var stableNames = []*regexp.Regexp{
	regexp.MustCompile(`(0198c000-0000-7000-8000-)(\d{12})\b`), regexp.MustCompile(`\b(c0de)(\d{3})`), regexp.MustCompile(`\b(f00)(\d{3})\b`),
	regexp.MustCompile(`\b(90)(\d{4})\b`), regexp.MustCompile(`(SHA256:)(\d{43})\b`), regexp.MustCompile(`\b()(\d{32})\b`),
}

// numberInOrder numbers the stable names of each kind in the order in which a text has them.
// So the text does not depend on what else the server made, or the test asked for,
// before.
func numberInOrder(text string) string {
	for _, kind := range stableNames {
		numbers := map[string]int{}
		text = kind.ReplaceAllStringFunc(text, func(name string) string {
			m := kind.FindStringSubmatch(name)
			if numbers[m[2]] == 0 {
				numbers[m[2]] = len(numbers) + 1
			}
			return m[1] + fmt.Sprintf("%0*d", len(m[2]), numbers[m[2]])
		})
	}
	return text
}

// restore replaces stable names in a request by the original values.
func (s *realServer) restore(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pairs []string
	for _, name := range slices.SortedFunc(maps.Keys(s.original), func(a, b string) int { return len(b) - len(a) }) {
		pairs = append(pairs, name, s.original[name])
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// The two versions of the project that a real server has.
const (
	helloManifest = `services:
  backend: {compute_type: dummy, networks: [inner]}
  web: {compute_type: dummy, depends_on: [backend], reschedule: {never: true}, update: {min_healthy: 0}}
networks: {inner: {}}
`
	louderManifest = `services:
  backend: {compute_type: dummy, networks: [inner]}
  web: {compute_type: dummy, depends_on: [backend], environment: {BACKEND: "{{ .services.backend.id }}", GREETING: HELLO}, reschedule: {never: true}, update: {min_healthy: 0}}
networks: {inner: {}}
`
)

// realWorld is a server with a project of two versions, whose second node is lost.
func realWorld(t *testing.T) *realServer {
	t.Helper()
	s := newRealServer(t, "node1", "node2")
	ctx := t.Context()
	_, err := s.CreateProject(ctx, "hello", []byte(helloManifest), "")
	must(t, err)
	s.atRest("hello", mariposa.StatusConverged)
	_, err = s.UpdateManifest(ctx, "hello", []byte(louderManifest), client.Update{Force: true, Message: "greet louder"})
	must(t, err)
	s.atRest("hello", mariposa.StatusConverged)
	_, err = s.Scale(ctx, "hello", map[string]string{"web": "2"}) // one at a time, so that the order of steps is fixed
	must(t, err)
	s.atRest("hello", mariposa.StatusConverged)
	_, err = s.ActOnNode(ctx, "node2", contract.NodeAction{Action: "lose"})
	must(t, err)
	s.await("node2 is lost", func() bool {
		n, err := s.Node(ctx, "node2")
		return err == nil && n.Status == mariposa.NodeUnknown
	})
	s.atRest("hello", mariposa.StatusConverging)
	return s
}

// lastTask returns the stable name of the newest task.
func (s *realServer) lastTask() string {
	s.t.Helper()
	q, err := s.Queue(s.t.Context(), client.TaskFilter{All: true, Limit: 1})
	must(s.t, err)
	return s.nameOf(q.Tasks[0].ID)
}

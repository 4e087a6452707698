package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// A script is command lines for one real server, run one after the other. Before each
// line, all that earlier lines began has ended.
//
// A word that is the name of a file stands for its path, and a word like $task0 for the
// first id in the list of tasks. A line that begins with "!" prepares the next: it must
// succeed and is not part of the golden file. "~ PATH PATTERN" waits until a document
// matches, "~ PATH !PATTERN" until it does not. "- NODE" ends the agent of a node.
type script struct {
	files map[string]string
	// stuck tasks do not end by themselves: lines wait only for what they name.
	stuck   bool
	prepare func(t *testing.T, s *realServer) // what commands cannot
	lines   []string
}

// newTeamServer is a real server with two nodes, the users ann and bob, and the organization
// acme of both. Commands are ann's.
func newTeamServer(t *testing.T) *realServer {
	t.Helper()
	return newTeamServerWith(t, "node1", "node2")
}

func newTeamServerWith(t *testing.T, nodes ...string) *realServer {
	t.Helper()
	s := newRealServer(t, nodes...)
	ctx := t.Context()
	_, err := s.CreateUser(ctx, contract.NewUser{Name: "ann", Email: "ann@example.com", Admin: true})
	must(t, err)
	_, err = s.CreateUser(ctx, contract.NewUser{Name: "bob"})
	must(t, err)
	laptop, err := s.CreateToken(ctx, contract.NewToken{Name: "laptop", User: "ann"})
	must(t, err)
	s.use(laptop.Secret)
	_, err = s.CreateOrganization(ctx, contract.NewOrganization{Name: "acme", BaseRole: mariposa.RoleViewer})
	must(t, err)
	_, err = s.PutMember(ctx, "acme", "bob", mariposa.OrgMember)
	must(t, err)
	return s
}

// use makes commands and the test's own client speak with a token.
func (s *realServer) use(token string) {
	s.t.Helper()
	c, err := client.New(client.Options{URL: s.url, Token: token})
	must(s.t, err)
	s.t.Cleanup(c.Close)
	s.token, s.Client = token, c
}

// story runs a script and returns what it printed and asked.
func (sc script) story(t *testing.T, s *realServer) string {
	t.Helper()
	var all strings.Builder
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("so far:\n" + all.String())
		}
	})
	home := t.TempDir()
	if sc.prepare != nil {
		sc.prepare(t, s)
	}
	for name, text := range sc.files {
		keep(t, home, name, text)
	}
	for _, line := range sc.lines {
		if wait, ok := strings.CutPrefix(line, "~ "); ok {
			path, pattern, _ := strings.Cut(wait, " ")
			s.awaitDocument(path, pattern)
			continue
		}
		if node, ok := strings.CutPrefix(line, "- "); ok {
			s.stop[node]()
			continue
		}
		if !sc.stuck {
			s.quiet()
		}
		line, silent := strings.CutPrefix(line, "! ")
		words := s.words(line)
		r := &run{f: s.proxy(t), home: home}
		r.do(t, sc.paths(home, words)...)
		r.args = words
		switch {
		case silent && r.code != exitOK:
			t.Fatalf("to prepare:\n%s", r.story())
		case !silent:
			asked := strings.ReplaceAll(r.f.requests(), home, "HOME")
			all.WriteString(r.story() + "== asked\n" + asked + "\n\n")
		}
	}
	return all.String()
}

// paths puts the paths of files where their names are.
func (sc script) paths(home string, words []string) []string {
	words = slices.Clone(words)
	for i, word := range words {
		if _, ok := sc.files[word]; ok {
			words[i] = home + "/" + word
		}
	}
	return words
}

// quiet waits until every task has ended, has nothing left to do, or waits for something
// that only a person does.
func (s *realServer) quiet() {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			q, err := s.Queue(context.Background(), client.TaskFilter{})
			b, _ := json.Marshal(q)
			s.t.Logf("open tasks: %s %v", b, err)
		}
	}()
	s.await("all tasks end", func() bool {
		st, err := s.State(s.t.Context(), "", "")
		if err != nil {
			return false
		}
		waits := map[string]bool{}
		for _, p := range st.Projects {
			waits[p.ID] = p.Status == mariposa.StatusBlocked
		}
		q, err := s.Queue(s.t.Context(), client.TaskFilter{Limit: 1000})
		return err == nil && !slices.ContainsFunc(q.Tasks, func(t contract.Task) bool {
			frozen := t.Task == mariposa.TaskFreeze && t.State == mariposa.TaskActive && t.Progress.Done == t.Progress.Total
			return !t.State.Ended() && !frozen && len(t.WaitsFor) == 0 && !(waits[t.Project] && t.State != mariposa.TaskQueued)
		})
	})
}

// document is what the server answers to ann, with stable names.
func (s *realServer) document(path string) (int, string) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return w.Code, w.Body.String()
}

// raw is what the server answers, with the values that differ between runs.
func (s *realServer) raw(path string) string {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

func (s *realServer) awaitDocument(path, pattern string) {
	s.t.Helper()
	var last string
	pattern, without := strings.CutPrefix(pattern, "!")
	wanted, deadline := regexp.MustCompile(pattern), time.Now().Add(time.Minute)
	for {
		if last = s.raw(path); wanted.MatchString(last) != without {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s never matches %s: %s", path, pattern, last)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

var (
	aVariable = regexp.MustCompile(`^\$([a-z]+)(\d+)$`)
	idIn      = regexp.MustCompile(`"(?:id|cas)": ?"([^"]+)"`)
	lists     = map[string]string{
		"task": "/v1/queue?all=true", "volume": "/v1/volumes", "network": "/v1/networks", "token": "/v1/tokens", "instance": "/v1/instances",
		"cas": "/v1/projects/hello/metadata/mode",
	}
)

// words splits a line and puts ids where variables are.
func (s *realServer) words(line string) []string {
	s.t.Helper()
	words := strings.Fields(line)
	for i, word := range words {
		v := aVariable.FindStringSubmatch(word)
		if v == nil {
			continue
		}
		_, list := s.document(lists[v[1]])
		ids := idIn.FindAllStringSubmatch(list, -1)
		n := int(v[2][0] - '0')
		if n >= len(ids) {
			s.t.Fatalf("%s: there are %d: %s", word, len(ids), list)
		}
		words[i] = ids[n][1]
	}
	return words
}

// newHello is a house with the project hello, of one manifest after the other.
func newHello(t *testing.T, manifests ...string) *realServer {
	t.Helper()
	s := newTeamServer(t)
	s.again(t, manifests...)
	return s
}

// again makes the project hello anew, of one manifest after the other.
func (s *realServer) again(t *testing.T, manifests ...string) {
	t.Helper()
	s.t = t
	ctx := t.Context()
	if old, err := s.Project(ctx, "hello"); err == nil {
		_, err := s.DeleteProject(ctx, "hello", true)
		must(t, err)
		s.await("hello is gone", func() bool { _, err := s.Project(ctx, old.ID); return err != nil }) // its name is free before
	}
	for i, manifest := range manifests {
		var err error
		if i == 0 {
			_, err = s.CreateProject(ctx, "hello", []byte(manifest), "")
		} else {
			_, err = s.UpdateManifest(ctx, "hello", []byte(manifest), client.Update{Force: true})
		}
		must(t, err)
		s.quiet()
	}
}

// helloID is the stable name of the project hello.
func (s *realServer) helloID() string {
	s.t.Helper()
	p, err := s.Project(s.t.Context(), "hello")
	must(s.t, err)
	return s.nameOf(p.ID)
}

// version is the stable name of a version of hello.
func (s *realServer) version(number string) string {
	s.t.Helper()
	v, err := s.Client.Version(s.t.Context(), "hello", number)
	must(s.t, err)
	return s.nameOf(v.Version)
}

// nameOf is the stable name of an id or a hash.
func (s *realServer) nameOf(real string) string { return string(s.steady([]byte(real))) }

// project makes another project of web alone, in an organization.
func (s *realServer) project(org, name string) {
	s.t.Helper()
	manifest, err := json.Marshal(oneWeb)
	must(s.t, err)
	_, err = s.NewProject(s.t.Context(), contract.NewProject{Name: name, Organization: org, Manifest: manifest})
	must(s.t, err)
	s.quiet()
}

// clientBy is the client of a token that another client creates.
func (s *realServer) clientBy(by *client.Client, token contract.NewToken) *client.Client {
	s.t.Helper()
	made, err := by.CreateToken(s.t.Context(), token)
	must(s.t, err)
	c, err := client.New(client.Options{URL: s.url, Token: made.Secret})
	must(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

// clientOf is another user's, who works on what is ann's.
func (s *realServer) clientOf(user string) *client.Client {
	s.t.Helper()
	token, err := s.CreateToken(s.t.Context(), contract.NewToken{Name: user + "s", User: user})
	must(s.t, err)
	c, err := client.New(client.Options{URL: s.url, Token: token.Secret, Organization: "ann"})
	must(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

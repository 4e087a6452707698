package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"mariposa/listener/porttest"
)

// The test binary runs as the program itself if an environment variable says so. Tests
// can then start and kill the real program without building it.
func TestMain(m *testing.M) {
	if os.Getenv("HELLO_TEST_PLAY") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestTheBackendGreetsAndSaysWhoItIs(t *testing.T) {
	t.Parallel()
	address := start(t, backend(identity{Name: "backend.1", Instance: "0199", PID: 42}))

	var got map[string]any
	if status := getJSON(t, address, &got); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	if got["greeting"] == "" || got["name"] != "backend.1" || got["instance"] != "0199" || got["pid"] != 42.0 {
		t.Fatalf("got %v", got)
	}
}

func TestTheWebShowsItsWordAndWhatTheBackendSays(t *testing.T) {
	t.Parallel()
	behind := start(t, backend(identity{Name: "backend.1", PID: 42}))
	address := start(t, web(identity{Name: "web.2", PID: 7}, "bonjour", behind))

	var got page
	if status := getJSON(t, address, &got); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	if got.Greeting != "bonjour" || got.Web.Name != "web.2" || got.Web.PID != 7 || got.Message != "" {
		t.Errorf("got %+v", got)
	}
	if got.Backend == nil || got.Backend.Name != "backend.1" || got.Backend.PID != 42 || got.Backend.Greeting == "" {
		t.Errorf("the backend's part: %+v", got.Backend)
	}
	status, html := get(t, address, "/", "text/html")
	for _, part := range []string{"<h1>bonjour</h1>", "backend.1 (pid 42)", "web.2 (pid 7)"} {
		if status != http.StatusOK || !strings.Contains(html, part) {
			t.Errorf("status %d, and the page lacks %q:\n%s", status, part, html)
		}
	}
}

func TestTheWebSaysWhenTheBackendIsAway(t *testing.T) {
	t.Parallel()
	nobody := porttest.Address(t)
	nonsense := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "?") }))
	failing := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))

	for name, c := range map[string]struct{ behind, want string }{
		"nobody listens":   {nobody, "refused"},
		"nonsense":         {nonsense, "invalid answer"},
		"the wrong status": {failing, "500"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := start(t, web(identity{Name: "web.1"}, "hello", c.behind))
			var got page
			if status := getJSON(t, address, &got); status != http.StatusServiceUnavailable {
				t.Errorf("status %d, want 503", status)
			}
			if !strings.HasPrefix(got.Message, "The backend at "+c.behind+" is away: ") || !strings.Contains(got.Message, c.want) {
				t.Errorf("message %q", got.Message)
			}
			if status, html := get(t, address, "/", "text/html"); status != http.StatusServiceUnavailable || !strings.Contains(html, "is away") {
				t.Errorf("status %d, page:\n%s", status, html)
			}
			if status, _ := get(t, address, "/health", ""); status != http.StatusOK {
				t.Errorf("the front itself is well, yet /health answers %d", status)
			}
		})
	}
}

func TestTheAppCountsVisitsInTheStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for n, want := range []string{"you are visitor 1", "you are visitor 2"} { // another store continues
		s, err := openStore(identity{Name: "store.1"}, dir)
		if err != nil {
			t.Fatal(err)
		}
		address := start(t, web(identity{Name: "web.1"}, "hello", start(t, app(identity{Name: "app.1"}, start(t, s)))))
		var got page
		if status := getJSON(t, address, &got); status != http.StatusOK || got.Backend == nil || got.Backend.Name != "app.1" || got.Backend.Greeting != want {
			t.Fatalf("status %d, and it says %+v", status, got)
		}
		if s := got.Backend.Store; s == nil || s.Visits != n+1 || s.Name != "store.1" {
			t.Errorf("the store's part: %+v", s)
		}
	}
	if status, text := get(t, start(t, app(identity{}, porttest.Address(t))), "/", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "is away") {
		t.Errorf("without a store: status %d, %s", status, text)
	}
	if err := os.WriteFile(dir+"/visits", []byte("many"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(identity{}, dir); err == nil {
		t.Error("it counts from a number that it cannot read")
	}
}

func TestWrongUseIsExplained(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"no part":      {nil, nil, "mode is missing"},
		"unknown part": {[]string{"sing"}, nil, `unknown mode "sing"`},
		"no port":      {[]string{"backend"}, nil, "PORT is not set"},
		"no backend":   {[]string{"web"}, map[string]string{"PORT": "1"}, "BACKEND is not set"},
		"no store":     {[]string{"app"}, map[string]string{"PORT": "1"}, "STORE is not set"},
		"no such port": {[]string{"backend"}, map[string]string{"PORT": "x"}, "listen"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(t.Context(), c.args, func(key string) string { return c.env[key] })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want a word of %q", err, c.want)
			}
		})
	}
}

func TestTheProgramLeavesPolitelyAndSurvivesBeingKilled(t *testing.T) {
	t.Parallel()
	address := porttest.Address(t)

	first := play(t, address)
	var before, after greeting
	getJSON(t, address, &before)
	if before.PID != first.Process.Pid {
		t.Errorf("pid %d answered, want %d", before.PID, first.Process.Pid)
	}
	first.Process.Signal(syscall.SIGKILL)
	first.Wait()

	second := play(t, address) // the same port, immediately
	getJSON(t, address, &after)
	if after.PID != second.Process.Pid {
		t.Errorf("pid %d answered, want %d", after.PID, second.Process.Pid)
	}
	second.Process.Signal(syscall.SIGTERM)
	if err := second.Wait(); err != nil {
		t.Errorf("SIGTERM: %v, want exit 0", err)
	}
}

// play starts the program as a separate process and waits until it listens.
func play(t *testing.T, address string) *exec.Cmd {
	t.Helper()
	_, port, _ := net.SplitHostPort(address)
	program := exec.Command(os.Args[0], "backend")
	program.Env = append(os.Environ(), "HELLO_TEST_PLAY=1", "PORT="+port, "MARIPOSA_NAME=backend.1")
	program.Stderr = os.Stderr
	output, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Process.Kill() })
	lines := bufio.NewScanner(output)
	if !lines.Scan() || !strings.Contains(lines.Text(), "listens on "+address) {
		t.Fatalf("its first line is %q", lines.Text())
	}
	return program
}

// start serves a handler like the program does, until the test ends.
func start(t *testing.T, handler http.Handler) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- serve(ctx, listener, handler, log.New(io.Discard, "", 0)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve ended with %v", err)
		}
	})
	return listener.Addr().String()
}

func getJSON(t *testing.T, address string, into any) (status int) {
	t.Helper()
	status, body := get(t, address, "/", "application/json")
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return status
}

func get(t *testing.T, address, path, accept string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	request.Header.Set("Accept", accept)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

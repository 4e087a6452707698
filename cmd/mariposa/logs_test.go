package main_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// micros is the time format of logs.
const micros = "2006-01-02T15:04:05.000000Z"

// stampsOf parses printed log lines into names, times and texts.
func stampsOf(t *testing.T, out string) (names, texts []string, times []time.Time) {
	t.Helper()
	for line := range strings.Lines(out) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " | ")
		stamp, text, _ := strings.Cut(rest, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			t.Errorf("no time in %q", line)
		}
		names, texts, times = append(names, name), append(texts, text), append(times, at)
	}
	return names, texts, times
}

// Two instances print in turn. Their lines are printed in the order in which they were
// written.
func TestLogsAreSortedByTime(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	before := time.Now().Truncate(time.Microsecond)
	h.ok("project", "create", "shop", "-m", fileOf(t, `
services:
  ping: {compute_type: process, command: [sh, -c, 'cd $MARIPOSA_NETWORK_TABLE; for n in 1 3 5 7; do until [ -e go$n ]; do sleep 0.01; done; echo say $n; done; exec sleep 100000'], networks: [table], update: {min_healthy: 0}}
  pong: {compute_type: process, command: [sh, -c, 'cd $MARIPOSA_NETWORK_TABLE; for n in 2 4 6; do until [ -e go$n ]; do sleep 0.01; done; echo say $n; done; until [ -e go8 ]; do sleep 0.01; done; printf "not finished"; exec sleep 100000'], networks: [table], update: {min_healthy: 0}}
networks: {table: {}}
`), "--wait")
	ping, pid := h.the("shop", "ping")
	pong, _ := h.the("shop", "pong")
	folder := environ(t, pid)["MARIPOSA_NETWORK_TABLE"]
	want := []string{"say 1", "say 2", "say 3", "say 4", "say 5", "say 6", "say 7", "not finished"}
	for n, text := range want { // one prints after it has seen the other's line
		must(t, os.WriteFile(filepath.Join(folder, "go"+itoa(n+1)), nil, 0o644))
		h.await(text, func() bool {
			_, log := h.answer("GET", "/v1/instances/"+[]string{ping.ID, pong.ID}[n%2]+"/logs", "", nil)
			return strings.Contains(log, text)
		})
	}
	names, texts, times := stampsOf(t, h.ok("logs", "--timestamps"))
	if !slices.Equal(texts, want) || !slices.IsSortedFunc(times, time.Time.Compare) || times[0].Before(before.Add(-time.Second)) || times[7].After(time.Now().Add(time.Second)) { // the machine's clock may be set back a little
		t.Fatalf("%q at %v", texts, times)
	}
	if !strings.HasPrefix(names[0], "ping.1") || !strings.HasPrefix(names[1], "pong.1") {
		t.Errorf("they are of %v", names)
	}
	// All lines since the time of the fourth, sorted, without times.
	out := h.ok("logs", "--since", times[3].Format(time.RFC3339Nano))
	if got := strings.Count(out, "\n"); got != 5 || !strings.Contains(out, "| say 4") || strings.Contains(out, "say 3") || strings.Contains(out, "Z say") ||
		strings.Index(out, "say 6") > strings.Index(out, "say 7") {
		t.Errorf("since %v:\n%s", times[3], out)
	}
	if out := h.ok("logs", "--since", "1h", "--tail", "1"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "say 7") {
		t.Errorf("the last of the last hour:\n%s", out)
	}
	if out := h.ok("logs", "--since", "2100-01-01"); out != "" {
		t.Errorf("since a time to come:\n%s", out)
	}
	h.wants(2, "--since must be a time such as", "logs", "--since", "yesterday")

	// The same for one service and for one instance.
	if _, texts, _ := stampsOf(t, h.ok("service", "logs", "ping", "-t", "--tail", "2")); !slices.Equal(texts, []string{"say 5", "say 7"}) {
		t.Errorf("service logs: %q", texts)
	}
	if out := h.ok("instance", "logs", names[0], "-t", "--since", times[4].Format(time.RFC3339Nano)); out != times[4].Format(micros)+" say 5\n"+times[6].Format(micros)+" say 7\n" {
		t.Errorf("instance logs:\n%s", out)
	}

	// Over HTTP, including invalid requests.
	get := func(query string) (int, string) {
		return h.answer("GET", "/v1/instances/"+names[1]+"/logs?"+query, "", nil)
	}
	if code, text := get("since=24h&timestamps=true&tail=1"); code != 200 || text != times[7].Format(micros)+" not finished" {
		t.Errorf("GET: %d %q", code, text)
	}
	for _, bad := range []string{"since=soon", "since=-1h", "since=1", "timestamps=maybe"} {
		if code, text := get(bad); code != 400 || !strings.Contains(text, "InvalidArgument") {
			t.Errorf("%s: %d %s", bad, code, text)
		}
	}

	// With -f, existing lines are sorted too, and new lines have their time.
	var seen lockedBuffer
	cmd := launch(t, program(context.Background(), h.dir, []string{"MARIPOSA_DATA=" + h.dir, "MARIPOSA_PROJECT=shop"}, "logs", "-f", "-t", "--since", times[1].Format(time.RFC3339Nano)), &seen)
	defer end(cmd)
	h.await("it follows", func() bool { return strings.Contains(seen.String(), "say 7") })
	if _, texts, _ := stampsOf(t, seen.String()); !slices.Equal(texts, want[1:7]) {
		t.Errorf("followed: %q", texts)
	}
	h.ok("instance", "restart", names[0])
	h.await("it says more", func() bool { return strings.Count(seen.String(), "say 1") == 1 })
	must(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v\n%s", err, seen.String())
	}
}

// The supervisor of a process records when a line is written, even if the server was
// killed. A secret of two lines is masked although each line starts with a time.
func TestTimesOfLinesSurviveTheServer(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	h.ok("project", "create", "shop", "-m", fileOf(t, `
services:
  web:
    compute_type: process
    command: [sh, -c, 'cd $MARIPOSA_NETWORK_TABLE; echo "$KEY"; printf part; until [ -e go ]; do sleep 0.01; done; echo ial; echo late; exec sleep 100000']
    environment: {KEY: "{{ .meta.key }}"}
    networks: [table]
    update: {min_healthy: 0}
networks: {table: {}}
metadata: {key: {secret: true, required: true}}
`))
	h.fed("ab\ncd", "meta", "set", "key", "-")
	web, pid := h.the("shop", "web")
	folder := environ(t, pid)["MARIPOSA_NETWORK_TABLE"]
	h.await("it prints", func() bool { return strings.HasSuffix(h.ok("instance", "logs", web.ID), "part") })
	shown, err := h.Instance(t.Context(), web.ID)
	must(t, err)
	log := filepath.Join(shown.Details["directory"], "log")
	h.kill()
	down := time.Now().Truncate(time.Microsecond)
	must(t, os.WriteFile(filepath.Join(folder, "go"), nil, 0o666))
	h.await("it goes on", func() bool { return strings.Contains(string(read(t, log)), "late") })
	back := time.Now()
	h.start()
	h.await("the node is back", func() bool { return h.ok("logs", "web") != "" })
	_, texts, times := stampsOf(t, h.ok("logs", "web", "-t"))
	if !slices.Equal(texts, []string{"••••", "partial", "late"}) {
		t.Fatalf("printed %q", texts)
	}
	if !times[1].Before(down) || times[2].Before(down) || times[2].After(back) {
		t.Errorf("killed at %v, back at %v, printed at %v", down, back, times)
	}
	if out := h.ok("logs", "web", "--since", down.UTC().Format(time.RFC3339Nano)); !strings.HasSuffix(out, "| late\n") || strings.Count(out, "\n") != 1 {
		t.Errorf("since the kill:\n%s", out)
	}
}

package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// These tests cover what an instance sees: its environment, its command, its files and
// live values.

// environ returns the environment that a process really has, or nothing if it has ended.
func environ(t *testing.T, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "environ"))
	if err != nil {
		t.Log(err)
	}
	out := map[string]string{}
	for _, v := range strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00") {
		name, value, _ := strings.Cut(v, "=")
		out[name] = value
	}
	return out
}

// one returns the only running instance of a project and its process.
func (h *devServer) one(project string) (contract.Instance, int) {
	h.t.Helper()
	return h.only(project, "one instance of "+project+" runs", func(i contract.Instance) bool { return i.State == mariposa.StateRunning })
}

// only returns the only instance of a project that fits, and its process.
func (h *devServer) only(project, what string, fits func(contract.Instance) bool) (found contract.Instance, pid int) {
	h.t.Helper()
	h.await(what, func() bool {
		n := 0
		for _, i := range h.instances(project) {
			if fits(i) {
				found, n = i, n+1
			}
		}
		pid = atoi(found.Details["pid"])
		return n == 1 && pid != 0
	})
	return found, pid
}

// set sets a metadata key.
func (h *devServer) set(project, key, value string) *contract.Changed {
	h.t.Helper()
	text, err := json.Marshal(value)
	must(h.t, err)
	c, err := h.SetMetadata(h.t.Context(), project, key, contract.MetadataValue{Value: text}, client.KeyChange{})
	must(h.t, err)
	return c
}

// endpoint sends an HTTP request to an instance or a server. Without an answer, status is
// 0 and body is the error.
func endpoint(t *testing.T, url, token string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

// valuesIn reads an instance's values from a file.
func valuesIn(path string) map[string]string {
	b, _ := os.ReadFile(path)
	return values(string(b))
}

// values parses an instance's values.
func values(text string) map[string]string {
	var out map[string]string
	_ = json.Unmarshal([]byte(text), &out) // invalid JSON has no values
	return out
}

// reader is a service whose instance prints the values that it reads.
const reader = `services:
  reader:
    compute_type: process
    command: [sh, -c, 'while :; do cp "$MARIPOSA_MDATA_FILE" seen.new; mv -f seen.new seen; sleep 0.02; done']
    mdata: {motd: "{{ .meta.motd }}", late: "{{ .meta.late }}", who: "{{ .instance.name }} of {{ .project.name }}"}
metadata:
  motd: {default: good morning}
  late: {secret: true}
`

func TestValuesChangeInsideARunningInstance(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("live", reader)
	h.converged("live", "reader", 1)
	i, pid := h.one("live")
	env := environ(t, pid)
	url, token := env["MARIPOSA_MDATA_URL"], env["MARIPOSA_MDATA_TOKEN"]
	seen := filepath.Join(i.Details["directory"], "work", "seen")
	expect := func(what string, want map[string]string) time.Duration {
		t.Helper()
		began := time.Now()
		h.await(what, func() bool {
			_, body := endpoint(t, url, token)
			file, http := valuesIn(seen), values(body)
			for k, v := range want {
				if file[k] != v || http[k] != v {
					return false
				}
			}
			return len(file) == len(want) && len(http) == len(want)
		})
		return time.Since(began)
	}
	who := i.Name + " of live"
	expect("it reads the default", map[string]string{"motd": "good morning", "who": who})

	h.ok("-j", "live", "meta", "set", "motd", "good evening")
	expect("a change shows inside", map[string]string{"motd": "good evening", "who": who})
	h.set("live", "late", "better than never")
	expect("a key that gets its first value shows inside", map[string]string{"motd": "good evening", "who": who, "late": "better than never"})
	h.must(h.DeleteMetadata(t.Context(), "live", "late", ""))
	expect("a key that is unset is gone inside", map[string]string{"motd": "good evening", "who": who})

	if status, body := endpoint(t, url+"/motd", token); status != http.StatusOK || body != "good evening" {
		t.Errorf("one value: %d %q", status, body)
	}
	for name, wrong := range map[string]string{"no token": "", "another token": strings.Repeat("0", len(token)), "the admin's token": h.admin} {
		if status, body := endpoint(t, url, wrong); status != http.StatusUnauthorized || strings.Contains(body, "good evening") {
			t.Errorf("with %s: %d %s", name, status, body)
		}
	}
	if p := h.pids("live")[i.Name]; p != pid {
		t.Errorf("it was restarted: pid %d, then %d", pid, p)
	}
	for _, s := range h.state("live").Services {
		if s.Outdated != 0 || s.Status != mariposa.StatusConverged {
			t.Errorf("mdata alone made it outdated: %+v", s)
		}
	}

	h.kill()
	if status, _ := endpoint(t, url, token); status != 0 {
		t.Errorf("a dead agent answers %d", status)
	}
	h.start()
	expect("the address and the token hold after kill -9", map[string]string{"motd": "good evening", "who": who})
	h.set("live", "motd", "good night")
	expect("and changes still arrive", map[string]string{"motd": "good night", "who": who})
	// Changes arrive within a second, but a busy machine may take longer occasionally.
	for try := 1; ; try++ {
		h.set("live", "motd", fmt.Sprintf("hello %d", try))
		took := expect("one more change shows", map[string]string{"motd": fmt.Sprintf("hello %d", try), "who": who})
		if took <= time.Second {
			break
		}
		if try == 20 {
			t.Fatalf("none of %d changes showed within a second, the last after %s", try, took)
		}
	}
	if p := h.pids("live")[i.Name]; p != pid {
		t.Errorf("it was restarted: pid %d, then %d", pid, p)
	}
}

func TestNamesAndScaleChangeInsideARunningInstance(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.must(h.CreateOrganization(t.Context(), contract.NewOrganization{Name: "red"}))
	h.create("live", `services:
  web:
    compute_type: process
    command: [sleep, "1000"]
    mdata: {scale: "{{ .scale }}", name: "{{ .project.name }}", cns: "{{ .cns.svc.web }}"}
`)
	h.converged("live", "web", 1)
	i, pid := h.one("live")
	file := environ(t, pid)["MARIPOSA_MDATA_FILE"]
	reads := func(scale, name, cns string) {
		t.Helper()
		h.await(scale+" of "+name+" at "+cns, func() bool {
			v := valuesIn(file)
			return v["scale"] == scale && v["name"] == name && v["cns"] == cns
		})
	}
	reads("1", "live", "web.svc.live.admin.mariposa.internal")
	h.must(h.Scale(t.Context(), "live", map[string]string{"web": "2"}))
	reads("2", "live", "web.svc.live.admin.mariposa.internal")
	if status, text := h.answer(http.MethodPut, "/v1/projects/live", `{"name": "alive"}`, http.Header{"Content-Type": {"application/json"}}); status != http.StatusOK {
		t.Fatalf("renaming: %d %s", status, text)
	}
	reads("2", "alive", "web.svc.alive.admin.mariposa.internal")
	h.ok("project", "move", "alive", "red", "--yes")
	reads("2", "alive", "web.svc.alive.red.mariposa.internal")
	h.ok("org", "rename", "red", "crimson")
	reads("2", "alive", "web.svc.alive.crimson.mariposa.internal")
	if now, err := h.Instance(t.Context(), i.ID); err != nil || now.Details["pid"] != itoa(pid) {
		t.Errorf("it was restarted: %+v, %v", now, err)
	}
}

func TestValuesThatChangeWhileTheAgentIsAwayArriveWithIt(t *testing.T) {
	t.Parallel()
	h := newSplitSystem(t)
	agent := h.agent()
	h.create("live", reader)
	h.converged("live", "reader", 1)
	i, pid := h.one("live")
	env := environ(t, pid)
	end(agent) // kill -9
	for n := range 10 {
		h.set("live", "motd", "number "+itoa(n))
	}
	if v := valuesIn(env["MARIPOSA_MDATA_FILE"]); v["motd"] != "good morning" {
		t.Errorf("without its agent it has %v", v)
	}
	h.agent()
	h.await("the last value is the one that counts", func() bool {
		_, body := endpoint(t, env["MARIPOSA_MDATA_URL"], env["MARIPOSA_MDATA_TOKEN"])
		return valuesIn(env["MARIPOSA_MDATA_FILE"])["motd"] == "number 9" && values(body)["motd"] == "number 9"
	})
	if p := h.pids("live")[i.Name]; p != pid {
		t.Errorf("it was restarted: pid %d, then %d", pid, p)
	}
}

const furnished = `services:
  desk:
    compute_type: process
    command: [sh, -c, 'sleep 1000; :', "{{ .project.name }}", "{{ .meta.word }}", "{{ .meta.word }}{{ .instance.name }}"]
    package: small
    scale: 2
    environment:
      PROJECT: "{{ .project.name }} {{ .project.uuid }} {{ .project.version }}"
      SERVICE: "{{ .service.name }} {{ .service.uuid }} {{ .service.version }}"
      PACKAGE: "{{ .package.name }} {{ .package.family }} {{ .package.ram }} {{ .package.cpu }} {{ .package.disk }}"
      SCALE: "{{ .scale }}"
      INSTANCE: "{{ .instance.name }} {{ .instance.uuid }}"
      PLACEMENT: "{{ .placement.instance.name }} {{ .placement.instance.uuid }} {{ .placement.cn.uuid }} {{ .placement.rack.uuid }} {{ .placement.dc.name }}"
      META: "{{ .meta.word }}, {{ .meta.secret }}"
      CNS: "{{ .cns.svc.desk }} {{ .cns.inst.desk-1 }}"
    files:
      /run/secrets/password: "{{ .meta.secret }}"
      /etc/desk.conf: |
        name = {{ .instance.name }}
        motto = {{ .meta.word }}
metadata:
  word: {default: "carpe {{ .meta.secret }}"}
  secret: {secret: true, required: true}
`

func TestEnvironmentCommandAndFilesHoldWhatTheyReferTo(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.must(h.PutPackage(t.Context(), contract.Package{Name: "small", Family: "tiny", Memory: 64 << 20, CPU: 0.25, Disk: 1 << 30}))
	h.create("house", furnished)
	h.await("it waits for its secret", func() bool {
		s := h.state("house")
		return s.Status == mariposa.StatusBlocked && strings.Contains(s.Reason, "secret")
	})
	const secret = "it's \"quoted\"\nand $HOME {{ .meta.word }}"
	h.set("house", "secret", secret)
	h.converged("house", "desk", 2)
	p, err := h.Project(t.Context(), "house")
	must(t, err)
	services := h.state("house").Services
	var folders []string
	for name, i := range h.instances("house") {
		pid := atoi(i.Details["pid"])
		env := environ(t, pid)
		const word = "carpe {{ .meta.secret }}" // a value is never interpolated again
		for key, want := range map[string]string{
			"PROJECT":   fmt.Sprint("house ", p.ID, " ", p.Version),
			"SERVICE":   fmt.Sprint("desk ", services[0].ID, " ", p.Version),
			"PACKAGE":   "small tiny 64 0.25 1024",
			"SCALE":     "2",
			"INSTANCE":  name + " " + i.ID,
			"PLACEMENT": fmt.Sprint(name, " ", i.ID, " ", i.Node, "  "),
			"META":      word + ", " + secret,
			"CNS":       "desk.svc.house.admin.mariposa.internal desk-1.inst.house.admin.mariposa.internal",
		} {
			if env[key] != want {
				t.Errorf("%s of %s is %q, want %q", key, name, env[key], want)
			}
		}
		want := []string{"sh", "-c", "sleep 1000; :", "house", word, word + name}
		cmdline, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "cmdline"))
		if err != nil || string(cmdline) != strings.Join(want, "\x00")+"\x00" {
			t.Errorf("the command of %s is %q, %v", name, cmdline, err)
		}
		if !slices.Equal(i.Command, want) {
			t.Errorf("the command of %s is shown as %q", name, i.Command)
		}
		files := env["MARIPOSA_FILES"]
		checkFile(t, filepath.Join(files, "run/secrets/password"), i.Details["uid"], secret)
		checkFile(t, filepath.Join(files, "etc/desk.conf"), i.Details["uid"], "name = "+name+"\nmotto = "+word+"\n")
		folders = append(folders, files)
	}
	h.must(h.DeleteProject(t.Context(), "house", true))
	h.await("the files go with the instances", func() bool {
		return len(h.processes()) == 0 && !slices.ContainsFunc(folders, func(dir string) bool { _, err := os.Stat(dir); return err == nil })
	})
}

// checkFile checks a file of an instance: only its owner can read it, and it is only in
// memory.
func checkFile(t *testing.T, path, owner, want string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Error(err)
		return
	}
	if info.Mode().Perm() != 0o400 || strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Uid)) != owner {
		t.Errorf("%s has mode %v and belongs to %d, want %s", path, info.Mode(), info.Sys().(*syscall.Stat_t).Uid, owner)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("%s holds %q, %v; want %q", path, b, err, want)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("%s does not lie in memory (type %x, %v)", path, fs.Type, err)
	}
}

func TestAChangeOfMetadataMarksWhoUsesItOrRollsThem(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("words", `services:
  holds: {compute_type: process, command: [sleep, "1000"], environment: {WORD: "{{ .meta.word }}"}}
  rolls: {compute_type: process, command: [sleep, "1000"], environment: {WORD: "{{ .meta.word }}"}, update: {on_metadata: reprovision, min_healthy: 0}}
  other: {compute_type: process, command: [sleep, "1000"]}
metadata: {word: {default: one}}
`)
	h.converged("words", "rolls", 1)
	before := h.pids("words")
	h.set("words", "word", "two")
	word := func(service string) string {
		for _, i := range h.instances("words") {
			if i.ServiceName == service && i.State == mariposa.StateRunning {
				return environ(t, atoi(i.Details["pid"]))["WORD"]
			}
		}
		return ""
	}
	h.await("who wants to be is rolled", func() bool { return word("rolls") == "two" })
	h.converged("words", "rolls", 1)
	if w := word("holds"); w != "one" {
		t.Errorf("who holds has %q", w)
	}
	kept := 0
	for name, pid := range h.pids("words") {
		if before[name] == pid {
			kept++
		}
	}
	if kept != 2 {
		t.Errorf("%d of the other two were left alone", kept)
	}
	for _, s := range h.state("words").Services {
		if want := s.Name == "holds"; (s.Outdated == 1) != want || (want && !strings.Contains(s.Reason, "word")) {
			t.Errorf("%s: outdated %d, %q", s.Name, s.Outdated, s.Reason)
		}
	}
	h.must(h.Act(t.Context(), "words", contract.Action{Action: "reprovision", Services: []string{"holds"}}))
	h.await("who is told to takes it up", func() bool { return word("holds") == "two" })
	q, err := h.Queue(t.Context(), client.TaskFilter{All: true})
	if err != nil || len(q.Tasks) < 3 {
		t.Errorf("%+v, %v", q, err)
	}
}

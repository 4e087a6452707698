package process_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

const planted = "hunter2-planted-secret"

func vars(pairs ...string) (list []mariposa.Variable) {
	for n := 0; n < len(pairs); n += 2 {
		list = append(list, mariposa.Variable{Name: pairs[n], Value: pairs[n+1]})
	}
	return list
}

// kept runs a test where private directories are in memory, and where they are beside
// their instances.
func kept(t *testing.T, test func(t *testing.T, open func(root string) *agent)) {
	t.Helper()
	for name, beside := range map[string]bool{"kept in memory": false, "kept beside the instance": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(root string) *agent {
				a := open(t, process.Options{Root: root})
				if beside {
					a.KeepBeside()
				}
				return a
			})
		})
	}
}

// checkMode looks at a file or directory without following it.
func checkMode(t *testing.T, path string, owner int, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != want {
		t.Errorf("%s: %v (%v), want %v", path, info.Mode(), err, want)
		return
	}
	if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != owner {
		t.Errorf("%s belongs to %d, want %d", path, uid, owner)
	}
}

// ownerOf returns the uid of an instance.
func ownerOf(t *testing.T, o driver.Observed) int {
	t.Helper()
	var st syscall.Stat_t
	must(t, syscall.Stat("/proc/"+o.Details["pid"], &st))
	return int(st.Uid)
}

func TestFilesAreForTheInstanceAlone(t *testing.T) {
	t.Parallel()
	kept(t, func(t *testing.T, open func(string) *agent) {
		root, id := newRoot(t), drivertest.NewID()
		a := open(root)
		i := sh(id, `cat "$MARIPOSA_FILES/run/secrets/db" "$MARIPOSA_FILES/etc/web.conf"; echo end; exec sleep 1000`)
		i.Workload.Files = vars("/run/secrets/db", planted+"\n", "/etc//web.conf", "a=1\n", "/run/empty", "")
		owner := ownerOf(t, a.start(t, i))
		if got := awaitLog(t, a, id, "end"); !slices.Equal(got, []string{planted, "a=1"}) {
			t.Errorf("it read %q", got)
		}
		private := a.Private(id)
		for _, dir := range []string{"", "files", "files/run", "files/run/secrets", "files/etc"} {
			checkMode(t, filepath.Join(private, dir), owner, fs.ModeDir|0o700)
		}
		for _, file := range []string{"files/run/secrets/db", "files/etc/web.conf", "files/run/empty", "mdata.json"} {
			checkMode(t, filepath.Join(private, file), owner, 0o400)
		}
		if _, err := os.Lstat("/run/empty"); err == nil {
			t.Error("a file was made in the machine's own /run")
		}
		a.remove(t, id)
		if _, err := os.Lstat(private); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("its directory is left: %v", err)
		}
		checkNothing(t, root)
	})
}

func TestFilesAreMadeAgainWithEveryStartAndByNothingElse(t *testing.T) {
	t.Parallel()
	kept(t, func(t *testing.T, open func(string) *agent) {
		root, id := newRoot(t), drivertest.NewID()
		a := open(root)
		i := instance(id, "sleep", "1000")
		i.Workload.Files = vars("/a", "one")
		a.start(t, i)
		private := a.Private(id)
		path := filepath.Join(private, "files", "a")
		before, err := os.Stat(path)
		must(t, err)
		_ = a.Close()
		a = open(root)
		if a.Private(id) != private {
			t.Errorf("its directory is now %s, was %s", a.Private(id), private)
		}
		if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("taking it over touched its file: %v", err)
		}
		a.stop(t, id, 0)
		must(t, os.Remove(path))
		i.Workload.Files = vars("/b", "two")
		a.start(t, i)
		if b, err := os.ReadFile(filepath.Join(private, "files", "b")); string(b) != "two" {
			t.Errorf("started again it has %q (%v)", b, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("a file of the earlier start is still there")
		}
	})
}

func TestFilesThatCannotBeMade(t *testing.T) {
	t.Parallel()
	a, root, _ := newAgent(t)
	for name, files := range map[string][]mariposa.Variable{
		"a relative path":       vars("run/a", planted),
		"a way out":             vars("/../../etc/a", planted),
		"no name":               vars("/", planted),
		"a NUL":                 vars("/a\x00b", planted),
		"a file as a directory": vars("/a", planted, "/a/b", planted),
		"a directory as a file": vars("/a/b", planted, "/a", planted),
		"the same twice":        vars("/a", planted, "/./a", planted),
	} {
		t.Run(name, func(t *testing.T) {
			i := instance(drivertest.NewID(), "sleep", "1000")
			i.Workload.Files = files
			o, err := a.tryStart(t, i)
			if name == "a way out" { // it stays inside, as in a root directory
				if err != nil {
					t.Errorf("got %v", err)
				}
				if b, _ := os.ReadFile(filepath.Join(a.Private(i.ID), "files/etc/a")); string(b) != planted {
					t.Errorf("its file has %q", b)
				}
				a.remove(t, i.ID)
				return
			}
			if err == nil || o.Running || !strings.Contains(err.Error(), "cannot create its file") || strings.Contains(err.Error(), planted) {
				t.Errorf("Start answered %+v, %v", o, err)
			}
		})
	}
	checkNothing(t, root)
}

func TestTheSameInstanceOnTwoNodesOfOneMachine(t *testing.T) {
	t.Parallel()
	id := drivertest.NewID()
	a, b := open(t, process.Options{Root: newRoot(t)}), open(t, process.Options{Root: newRoot(t)})
	i, j := instance(id, "sleep", "1000"), instance(id, "sleep", "1000")
	i.Workload.Files, j.Workload.Files = vars("/a", "one"), vars("/a", "two")
	a.start(t, i)
	b.start(t, j)
	b.remove(t, id)
	if text, err := os.ReadFile(filepath.Join(a.Private(id), "files/a")); string(text) != "one" {
		t.Errorf("it has %q (%v)", text, err)
	}
}

// grep searches for a text in every file below a directory, and in the file names.
func grep(t *testing.T, dir, text string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, f fs.DirEntry, err error) error {
		if err != nil || strings.Contains(path, text) {
			t.Errorf("%s (%v)", path, err)
		}
		if f == nil || !f.Type().IsRegular() {
			return nil
		}
		files++
		if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte(text)) {
			t.Errorf("%s holds the secret (%v)", path, err)
		}
		return nil
	})
	if err != nil || files == 0 {
		t.Errorf("%d files were looked at (%v)", files, err)
	}
}

// TestSecretsAreNotInTheNodesFolder takes an instance through everything that can happen
// to it and searches for the contents of its command and environment.
func TestSecretsAreNotInTheNodesFolder(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	i := sh(id, `[ "$SECRET" = "`+planted+`" ] && echo up; exec sleep 1000`)
	i.Workload.Environment, i.Workload.Files, i.Mdata.Values = vars("SECRET", planted), vars("/a", planted), vars("k", planted)
	i.Mdata.URL, i.Mdata.Token = "http://127.0.0.1:1", "token-"+planted
	a := open(t, process.Options{Root: root})
	o := a.start(t, i)
	awaitLog(t, a, id, "up")
	grep(t, root, planted)

	_, shims, _ := process.Labelled(root)
	for _, file := range []string{"cmdline", "environ"} {
		if b, err := os.ReadFile("/proc/" + strconv.Itoa(shims[0]) + "/" + file); err != nil || bytes.Contains(b, []byte(planted)) {
			t.Errorf("the supervisor's %s is %q (%v)", file, b, err)
		}
	}
	kill(t, pidOf(t, o), syscall.SIGKILL)
	a.awaitEnd(t)
	grep(t, root, planted)
	a.start(t, i)
	grep(t, root, planted)

	_ = a.Close()
	a = open(t, process.Options{Root: root})
	grep(t, root, planted)
	a.stop(t, id, 0)
	broken := i
	workload := *i.Workload
	broken.Workload, workload.Command = &workload, []string{"helo", planted}
	if _, err := a.tryStart(t, broken); err == nil || strings.Contains(err.Error(), planted) {
		t.Errorf("a start that cannot be: %v", err)
	}
	grep(t, root, planted)
	a.start(t, i)
	_, shims, _ = process.Labelled(root)
	kill(t, shims[0], syscall.SIGKILL)
	a.awaitEnd(t)
	grep(t, root, planted)
}

func TestACommandThatCannotRunIsNotNamedOnTheDisk(t *testing.T) {
	t.Parallel()
	a, root, _ := newAgent(t)
	for name, command := range map[string]string{"a path": "/no/such/%s", "a path of its own": "no/such/%s", "a name": "no-such-%s", "one that is quoted": "/no/\"such\"/%s"} {
		id, secret := drivertest.NewID(), rand.Text()
		a.start(t, sh(id, "exit 0"))
		a.awaitEnd(t)
		_, err := a.tryStart(t, instance(id, fmt.Sprintf(command, secret)))
		if o, _ := a.find(t, id); err == nil || !strings.Contains(err.Error(), secret) || !strings.Contains(o.Reason, secret) {
			t.Errorf("%s: Start returned %v, List shows %q", name, err, o.Reason)
		}
		b, err := os.ReadFile(filepath.Join(root, id, "exit.json"))
		if err != nil || strings.Contains(string(b), secret) || !strings.Contains(string(b), "cannot run its command: no such file") {
			t.Errorf("%s: on the disk stands %s, %v", name, b, err)
		}
	}
}

func TestCommandsAndVariablesThatNoMachineTakes(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t)})
	big := strings.Repeat(planted, 20_000)
	for want, change := range map[string]func(w *mariposa.Workload){
		"the value of variable A cannot contain a NUL": func(w *mariposa.Workload) { w.Environment = vars("A", planted+"\x00") },
		`invalid name of a variable: "A=B"`:            func(w *mariposa.Workload) { w.Environment = vars("A=B", planted) },
		`invalid name of a variable: ""`:               func(w *mariposa.Workload) { w.Environment = vars("", planted) },
		"the command cannot contain a NUL":             func(w *mariposa.Workload) { w.Command = append(w.Command, planted+"\x00") },
		"too large for this machine":                   func(w *mariposa.Workload) { w.Environment = vars("A", big) },
		"move large values into files":                 func(w *mariposa.Workload) { w.Command = append(w.Command, big) },
	} {
		i := instance(drivertest.NewID(), "sleep", "1000")
		change(i.Workload)
		_, err := a.tryStart(t, i)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), planted) {
			t.Errorf("want %q, got %.300v", want, err)
		}
	}
}

func TestFoldersOfInstancesThatAreNoMoreAreCleared(t *testing.T) {
	t.Parallel()
	root, id, gone := newRoot(t), drivertest.NewID(), drivertest.NewID()
	a := open(t, process.Options{Root: root})
	a.start(t, instance(id, "sleep", "1000"))
	memory := filepath.Dir(a.Private(id))
	_ = a.Close()
	left := filepath.Join(memory, gone, "files")
	half := filepath.Join(memory, ".new-"+id)
	for _, dir := range []string{left, half} {
		must(t, os.MkdirAll(dir, 0o700))
	}
	a = open(t, process.Options{Root: root})
	for _, dir := range []string{filepath.Dir(left), half} {
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	}
	if _, err := os.Lstat(filepath.Join(memory, id, "mdata.json")); err != nil {
		t.Errorf("what runs has lost its values: %v", err)
	}
	// If the directory is gone, its secrets are removed with the instance.
	must(t, os.RemoveAll(filepath.Join(root, id)))
	a.remove(t, id)
	if _, err := os.Lstat(filepath.Join(memory, id)); err == nil {
		t.Error("its private directory is still there")
	}
}

func TestTheMemoryBeingClearedAwayIsNoEnd(t *testing.T) {
	t.Parallel()
	root, id, other := newRoot(t), drivertest.NewID(), drivertest.NewID()
	a := open(t, process.Options{Root: root})
	a.start(t, instance(id, "sleep", "1000"))
	must(t, os.RemoveAll(filepath.Dir(a.Private(id))))
	i := instance(other, "sleep", "1000")
	i.Workload.Files = vars("/a", "one")
	a.start(t, i)
	if b, err := os.ReadFile(filepath.Join(a.Private(other), "files/a")); string(b) != "one" {
		t.Errorf("a new one has %q (%v)", b, err)
	}
	a.publish(t, id, "k", "v")
	if got, err := a.PublishedValues(t.Context(), id); err != nil || !slices.Equal(got, vars("k", "v")) {
		t.Errorf("the old one has %v (%v)", got, err)
	}
}

func (a *agent) publish(t *testing.T, id string, pairs ...string) {
	t.Helper()
	if err := a.PublishValues(within(t), id, vars(pairs...)); err != nil {
		t.Errorf("Tell: %v", err)
	}
}

func TestValuesThatAreNoNewsLeaveTheFileAlone(t *testing.T) {
	t.Parallel()
	a, id := open(t, process.Options{Root: newRoot(t)}), drivertest.NewID()
	i := instance(id, "sleep", "1000")
	i.Mdata.Values = vars("b", "<2>", "a", "1")
	owner := ownerOf(t, a.start(t, i))
	path := filepath.Join(a.Private(id), "mdata.json")
	if b, err := os.ReadFile(path); string(b) != `{"a":"1","b":"<2>"}`+"\n" {
		t.Errorf("its values are %q (%v)", b, err)
	}
	before, _ := os.Stat(path)
	a.publish(t, id, "a", "1", "b", "<2>")
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same values again made a new file: %v", err)
	}
	a.publish(t, id, "a", "2")
	if after, err := os.Stat(path); err != nil || os.SameFile(before, after) {
		t.Errorf("new values were written into the old file: %v", err)
	}
	checkMode(t, path, owner, 0o400)
}

package seal

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"mariposa/leaktest"
)

// Run again with one of these set to a path, the test binary plays another
// process that uses the key file there.
const (
	openVariable   = "MARIPOSA_TEST_OPEN_RING"
	changeVariable = "MARIPOSA_TEST_CHANGE_RING"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(openVariable) != "":
		r, err := OpenRing(os.Getenv(openVariable))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		primary, _ := r.Names()
		fmt.Println(primary)
	case os.Getenv(changeVariable) != "":
		fmt.Println(changeForever(os.Getenv(changeVariable)))
		os.Exit(1)
	default:
		leaktest.Main(m)
	}
}

// changeForever gives a file one new primary key after the other, and prints
// each once it is there.
func changeForever(path string) error {
	r, err := OpenRing(path)
	for err == nil {
		if err = r.addKey(); err != nil {
			break
		}
		primary, _ := r.Names()
		fmt.Println(primary)
		_, err = r.dropOthers(primary)
	}
	return err
}

func again(variable, path string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), variable+"="+path)
	return c
}

func keyFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "keys")
}

func mustOpen(t *testing.T, path string) *Ring {
	t.Helper()
	r, err := OpenRing(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// onlyFile fails if there is anything else in the folder of a file.
func onlyFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Fatalf("beside the key file: %v, %v", entries, err)
	}
}

func TestTheFirstOpeningMakesTheFileAndTheNextReadsIt(t *testing.T) {
	t.Parallel()
	path := keyFile(t)
	first, names := mustOpen(t, path).Names()
	if len(first) != 16 || !slices.Equal(names, []string{first}) {
		t.Fatal(first, names)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
	onlyFile(t, path)
	if second, _ := mustOpen(t, path).Names(); second != first {
		t.Fatalf("%s became %s", first, second)
	}
	if other, _ := mustOpen(t, keyFile(t)).Names(); other == first {
		t.Fatal("two files have the same key")
	}
}

func TestAFileThatOthersMayUseIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []os.FileMode{0o644, 0o640, 0o604, 0o620, 0o601, 0o777} {
		path := keyFile(t)
		mustOpen(t, path)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenRing(path); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	path := keyFile(t)
	mustOpen(t, path)
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, path)
}

func TestADamagedFileIsRefusedAndNotShown(t *testing.T) {
	t.Parallel()
	edit := func(f func(*document)) func([]byte) []byte {
		return func(b []byte) []byte {
			var d document
			if err := json.Unmarshal(b, &d); err != nil {
				t.Fatal(err)
			}
			f(&d)
			b, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	for _, c := range []struct {
		name   string
		damage func([]byte) []byte
		want   string
	}{
		{"empty", func([]byte) []byte { return nil }, "not valid JSON"},
		{"cut off", func(b []byte) []byte { return b[:len(b)-10] }, "not valid JSON"},
		{"doubled", func(b []byte) []byte { return append(b, b...) }, "not valid JSON"},
		{"something else", func([]byte) []byte { return []byte("secret-in-the-wrong-file\n") }, "not valid JSON"},
		{"no keys", edit(func(d *document) { d.Keys = nil }), "primary key is not among"},
		{"another primary key", edit(func(d *document) { d.Primary = "0123456789abcdef" }), "primary key is not among"},
		{"a short key", edit(func(d *document) { d.Keys[0].Key = d.Keys[0].Key[1:] }), "key 1 of 1 has the wrong length"},
		{"a flipped bit", edit(func(d *document) { d.Keys[0].Key[7] ^= 1 }), "key 1 of 1 does not match its name"},
		{"a newer format", edit(func(d *document) { d.Format = 2 }), "format 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := keyFile(t)
			key := mustOpen(t, path).keys()[0].key
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damaged := c.damage(b)
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = OpenRing(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Fatalf("%v, want it to say %q", err, c.want)
			}
			for _, part := range []string{base64.StdEncoding.EncodeToString(key)[4:20], "wrong-file"} {
				if strings.Contains(err.Error(), part) {
					t.Errorf("the error shows what is in the file: %v", err)
				}
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != string(damaged) {
				t.Errorf("the file was touched: %v", err)
			}
		})
	}
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		folder:                                   "not a regular file",
		pipe:                                     "not a regular file",
		filepath.Join(folder, "missing", "keys"): "create key file",
	} {
		if _, err := OpenRing(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAllWhoMakeTheFileAtOnceGetOneKey(t *testing.T) {
	t.Parallel()
	path := keyFile(t)
	const processes, routines = 4, 16
	got := make([]string, processes+routines)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			if i < processes {
				out, err := again(openVariable, path).Output()
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
				got[i] = strings.TrimSpace(string(out))
				return
			}
			r, err := OpenRing(path)
			if err != nil {
				t.Error(err)
				return
			}
			got[i], _ = r.Names()
		})
	}
	all.Wait()
	for _, name := range got {
		if name == "" || name != got[0] {
			t.Fatalf("different keys: %q", got)
		}
	}
	onlyFile(t, path)
}

func TestNothingThatSeveralPutIntoTheFileIsLost(t *testing.T) {
	t.Parallel()
	path := keyFile(t)
	primary, _ := mustOpen(t, path).Names()
	want := []string{primary}
	var all sync.WaitGroup
	for range 16 {
		r, key := mustOpen(t, path), newOuter()
		want = append(want, key.name)
		all.Go(func() {
			if err := r.restore(keySet{key}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	now, names := mustOpen(t, path).Names()
	slices.Sort(want)
	slices.Sort(names)
	if now != primary || !slices.Equal(names, want) {
		t.Fatalf("primary %s, %q; want %s, %q", now, names, primary, want)
	}
	onlyFile(t, path)
}

func TestTheFileIsWholeWheneverItsWriterIsKilled(t *testing.T) {
	t.Parallel()
	path := keyFile(t)
	for round := range 8 {
		c := again(changeVariable, path)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		last := ""
		for range 1 + round*3 {
			if lines.Scan() {
				last = lines.Text()
			}
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it wrote before it died
			last = lines.Text()
		}
		c.Wait()
		// A key is only dropped after the name of a newer one was reported.
		if _, names := mustOpen(t, path).Names(); !slices.Contains(names, last) {
			t.Fatalf("round %d: %q was told of, there are %q", round, last, names)
		}
	}
	r := mustOpen(t, path)
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), ".keys.new-123"), []byte("left behind"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.restore(keySet{newOuter()}); err != nil {
		t.Fatal(err)
	}
	onlyFile(t, path)
}

func TestAChangeKeepsOwnerAndModeOfTheFile(t *testing.T) {
	t.Parallel()
	path := keyFile(t)
	r := mustOpen(t, path)
	uid := os.Geteuid()
	if uid == 0 {
		uid = 12345 // root may give it away, and must not take it back
	}
	if err := os.Chown(path, uid, -1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := r.addKey(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := int(info.Sys().(*syscall.Stat_t).Uid); got != uid || info.Mode() != 0o400 {
		t.Fatalf("owner %d, mode %v; want %d", got, info.Mode(), uid)
	}
}

func TestAChangeGoesThroughALink(t *testing.T) {
	t.Parallel()
	path := keyFile(t)
	r := mustOpen(t, path)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	linked := mustOpen(t, link)
	if err := linked.addKey(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Fatalf("the link is gone: %v, %v", info, err)
	}
	want, _ := linked.Names()
	if _, err := r.reload(); err != nil {
		t.Fatal(err)
	}
	if got, _ := r.Names(); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

func TestAFileThatCannotBeWrittenStaysAsItIs(t *testing.T) {
	t.Parallel()
	path := keyFile(t)
	r := mustOpen(t, path)
	before, _ := r.Names()
	// Nobody, not even root, can make a file whose name is this long.
	long := filepath.Join(filepath.Dir(path), strings.Repeat("k", 250))
	if err := os.Rename(path, long); err != nil {
		t.Fatal(err)
	}
	r = mustOpen(t, long)
	if err := r.addKey(); err == nil || !strings.Contains(err.Error(), "write key file "+long) {
		t.Fatal(err)
	}
	if now, names := r.Names(); now != before || len(names) != 1 {
		t.Fatal(now, names)
	}
	if now, names := mustOpen(t, long).Names(); now != before || len(names) != 1 {
		t.Fatal(now, names)
	}
	onlyFile(t, long)
}

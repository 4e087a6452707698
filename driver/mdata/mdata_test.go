package mdata_test

import (
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"mariposa/driver/mdata"
	"mariposa/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type values struct {
	mu  sync.Mutex
	all map[string]string
}

func (v *values) Keys() ([]string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Keys(v.all)), nil
}

func (v *values) Get(key string) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	value, ok := v.all[key]
	if !ok {
		return "", mdata.ErrNotFound
	}
	return value, nil
}

func (v *values) Put(key, value string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if strings.HasPrefix(key, "sdc:") {
		return errors.New("keys that begin with sdc: cannot be set")
	}
	v.all[key] = value
	return nil
}

func (v *values) Delete(key string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, key)
	return nil
}

// pair returns both ends of a connection.
func pair(t testing.TB) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	open := func(fd int) net.Conn {
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close() // the connection has its own copy
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return open(fds[0]), open(fds[1])
}

// serve serves values and returns the other end.
func serve(t testing.TB, v mdata.Values) net.Conn {
	t.Helper()
	ours, theirs := pair(t)
	var done sync.WaitGroup
	done.Go(func() {
		defer theirs.Close()
		_ = mdata.Serve(theirs, v) // ends with the connection
	})
	t.Cleanup(func() {
		_ = ours.Close()
		done.Wait()
	})
	return ours
}

func TestAGuestReadsAndSetsValues(t *testing.T) {
	t.Parallel()
	v := &values{all: map[string]string{"sdc:uuid": "u", "b": "two\nlines"}}
	c, err := mdata.Connect(serve(t, v))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Put("a ü", "1"); err != nil {
		t.Error(err)
	}
	if keys, err := c.Keys(); err != nil || !slices.Equal(keys, []string{"a ü", "b", "sdc:uuid"}) {
		t.Errorf("the keys are %q, %v", keys, err)
	}
	for key, want := range map[string]string{"a ü": "1", "b": "two\nlines", "sdc:uuid": "u"} {
		if got, err := c.Get(key); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", key, got, err, want)
		}
	}
	if err := c.Put("sdc:uuid", "other"); err == nil || err.Error() != "keys that begin with sdc: cannot be set" {
		t.Errorf("a refused key: %v", err)
	}
	if err := c.Delete("b"); err != nil {
		t.Error(err)
	}
	if _, err := c.Get("b"); !errors.Is(err, mdata.ErrNotFound) {
		t.Errorf("a deleted key: %v", err)
	}
}

// The frames of the protocol's description are understood byte for byte.
func TestFramesAreThoseOfTheProtocol(t *testing.T) {
	t.Parallel()
	conn := serve(t, &values{all: map[string]string{"sdc:nics": "[]"}})
	for _, exchange := range [][2]string{
		{"NEGOTIATE V2\n", "V2_OK\n"},
		{"\n", "invalid command\n"},
		{"GET sdc:nics\n", "invalid command\n"}, // version 1
		{"V2 25 cad51e5d dc4fae17 GET c2RjOm5pY3M=\n", "V2 21 265ae1d8 dc4fae17 SUCCESS W10=\n"},
	} {
		if _, err := io.WriteString(conn, exchange[0]); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, len(exchange[1]))
		if _, err := io.ReadFull(conn, buffer); err != nil || string(buffer) != exchange[1] {
			t.Errorf("%q got %q, %v, want %q", exchange[0], buffer, err, exchange[1])
		}
	}
}

// Whatever a guest sends, the next valid request is answered.
func TestNoiseDoesNotHarmTheNextRequest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		noise := rapid.SliceOfN(rapid.StringMatching(`(V2 [0-9]{1,3} [0-9a-f]{1,8} )?[ -~]{0,40}`), 0, 8).Draw(r, "noise")
		key, value := rapid.String().Draw(r, "key"), rapid.String().Draw(r, "value")
		v := &values{all: map[string]string{}}
		ours, theirs := pair(t)
		served := make(chan struct{})
		go func() {
			defer close(served)
			defer theirs.Close()
			_ = mdata.Serve(theirs, v) // ends with the connection
		}()
		defer func() {
			_ = ours.Close()
			<-served
		}()
		for _, line := range noise {
			if _, err := io.WriteString(ours, line+"\r\n"); err != nil {
				r.Fatal(err)
			}
		}
		c, err := mdata.Connect(ours)
		if err != nil {
			r.Fatal(err)
		}
		if strings.HasPrefix(key, "sdc:") {
			key = "x" + key
		}
		if err := c.Put(key, value); err != nil {
			r.Fatal(err)
		}
		if got, err := c.Get(key); err != nil || got != value {
			r.Fatalf("%q is %q, %v, want %q", key, got, err, value)
		}
	})
}

func TestValuesOfAnInstanceAndOfItsGuest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &mdata.Files{Published: filepath.Join(dir, "mdata.json"), Own: filepath.Join(dir, "guest.json"), Fixed: map[string]string{"sdc:uuid": "u", "user-script": "#!/bin/sh"}}
	publish := func(text string) {
		t.Helper()
		if err := os.WriteFile(f.Published, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(all map[string]string) {
		t.Helper()
		keys, err := f.Keys()
		slices.Sort(keys)
		if err != nil || !slices.Equal(keys, slices.Sorted(maps.Keys(all))) {
			t.Errorf("the keys are %q, %v", keys, err)
		}
		for key, value := range all {
			if got, err := f.Get(key); err != nil || got != value {
				t.Errorf("%s is %q, %v, want %q", key, got, err, value)
			}
		}
	}
	want(map[string]string{"user-script": "#!/bin/sh"})
	publish(`{"a":"1"}`)
	for key, ok := range map[string]bool{"own": true, "a": false, "sdc:uuid": false, "user-script": false, "": false, "big": false} {
		value := "x"
		if key == "big" {
			value = strings.Repeat("x", mdata.MaxOwn+1)
		}
		if err := f.Put(key, value); (err == nil) != ok {
			t.Errorf("PUT %q: %v", key, err)
		}
	}
	want(map[string]string{"a": "1", "own": "x", "user-script": "#!/bin/sh"})
	if got, err := f.Get("sdc:uuid"); err != nil || got != "u" {
		t.Errorf("sdc:uuid is %q, %v", got, err)
	}
	publish(`{"own":"the project's"}`) // it takes precedence
	want(map[string]string{"own": "the project's", "user-script": "#!/bin/sh"})
	publish(`{}`)
	want(map[string]string{"own": "x", "user-script": "#!/bin/sh"})
	for _, key := range []string{"own", "own", "never"} {
		if err := f.Delete(key); err != nil {
			t.Errorf("DELETE %s: %v", key, err)
		}
	}
	if err := f.Delete("sdc:uuid"); err == nil {
		t.Error("a fixed key was deleted")
	}
	want(map[string]string{"user-script": "#!/bin/sh"})
	publish(`{`)
	if _, err := f.Get("a"); err == nil || errors.Is(err, mdata.ErrNotFound) {
		t.Errorf("of values that cannot be read: %v", err)
	}
}

// A line without an end costs a guest that line, not its metadata.
func TestALineThatIsTooLongIsSkipped(t *testing.T) {
	t.Parallel()
	conn := serve(t, &values{all: map[string]string{"a": "1"}})
	if _, err := conn.Write([]byte(strings.Repeat("x", 3*mdata.MaxLine))); err != nil {
		t.Fatal(err)
	}
	c, err := mdata.Connect(conn)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Get("a"); err != nil || got != "1" {
		t.Errorf("a is %q, %v", got, err)
	}
}

// What a guest sets is what it reads, or it is refused.
func TestValuesOfAGuestAreNotChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &mdata.Files{Published: filepath.Join(dir, "mdata.json"), Own: filepath.Join(dir, "guest.json")}
	for _, c := range []struct {
		key, value string
		ok         bool
	}{
		{"zero", "a\x00b", true},
		{"lines", "<a>\r\n\u2028", true},
		{"binary", "\xff\xfe", false},
		{"k\xff", "v", false},
		{"two\nlines", "v", false},
	} {
		err := f.Put(c.key, c.value)
		if (err == nil) != c.ok {
			t.Errorf("PUT %q: %v", c.key, err)
		}
		if got, _ := f.Get(c.key); c.ok && got != c.value {
			t.Errorf("%s is %q, want %q", c.key, got, c.value)
		}
	}
	if keys, err := f.Keys(); err != nil || len(keys) != 2 {
		t.Errorf("the keys are %q, %v", keys, err)
	}
}

// A guest that asks all the time is slowed down; one that boots is not.
func TestAFloodOfRequestsIsSlowedDown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &mdata.Files{Published: filepath.Join(dir, "mdata.json"), Own: filepath.Join(dir, "guest.json"), Fixed: map[string]string{"sdc:uuid": "u"}}
	took := func(times int, request func() error) time.Duration {
		begun := time.Now() // virtual
		for range times {
			if err := request(); err != nil {
				t.Fatal(err)
			}
		}
		return time.Since(begun)
	}
	get := func() error { _, err := f.Get("sdc:uuid"); return err }
	put := func() error { return f.Put("a", "b") }
	synctest.Test(t, func(*testing.T) {
		if d := took(300, get) + took(10, put); d != 0 {
			t.Errorf("a boot is slowed down by %s", d)
		}
		if d := took(2000, get); d < 15*time.Second {
			t.Errorf("2000 requests took %s", d)
		}
		if d := took(200, put); d < 15*time.Second {
			t.Errorf("200 changes took %s", d)
		}
		time.Sleep(time.Minute)
		if d := took(300, get); d != 0 {
			t.Errorf("after a pause it is slowed down by %s", d)
		}
	})
}

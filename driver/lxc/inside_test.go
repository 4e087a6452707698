package lxc

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa/driver/bridge"
	"mariposa/driver/roster"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// No configuration that we write lacks a network namespace, whatever the workload contains.
func TestEveryConfigurationHasItsOwnNetwork(t *testing.T) {
	t.Parallel()
	address := netip.MustParsePrefix("10.1.0.2/22")
	links := []bridge.Link{{Bridge: "mplx-1", Address: address, Gateway: address.Masked().Addr().Next()}, {Network: "n", Bridge: "mplx-2", Address: address}}
	evil := "x\nlxc.net.0.type = none"
	for name, c := range map[string]container{
		"no interface":      {},
		"one":               {Links: links[:1], Pairs: []string{"a"}},
		"two":               {Links: links, Pairs: []string{"a", "b"}},
		"an init":           {HasInit: true, IDs: firstIDs, Links: links[:1], Pairs: []string{"a"}},
		"a variable":        {Variables: []string{"A=" + evil}},
		"a name":            {Hostname: evil},
		"a directory":       {Dir: evil},
		"a file":            {Mounts: []mountEntry{{Source: "/s", Target: "/" + evil, Options: "bind"}}},
		"a bridge":          {Links: []bridge.Link{{Bridge: evil, Address: address}}, Pairs: []string{"a"}},
		"a carriage return": {Variables: []string{"A=x\rlxc.net.0.type = none"}},
	} {
		text, err := c.config()
		if err != nil {
			continue // it is refused
		}
		own := 0
		for line := range strings.Lines(text) {
			if key, value, _ := strings.Cut(line, " = "); strings.HasPrefix(key, "lxc.net.") && strings.HasSuffix(key, ".type") {
				own++
				if value = strings.TrimSpace(value); value != "veth" && value != "empty" {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
		if own != max(1, len(c.Links)) {
			t.Errorf("%s: %d network types in %s", name, own, text)
		}
	}
}

// A supervisor refuses every configuration with which a container could change the network of
// the machine, also one that someone else has written.
func TestAConfigurationWithoutItsOwnNetworkIsRefused(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"lxc.net.0.type = veth\n":  true,
		"lxc.net.0.type = empty\n": true,
		"":                         false,
		"lxc.uts.name = a\n":       false,
		"lxc.net.0.type = none\n":  false,
		"lxc.net.0.type=none\n":    false,
		"lxc.net.0.type = \n":      false,
		"lxc.net.0.type = veth\nlxc.net.1.type = none\n":                   false,
		"lxc.net.0.type = veth\nlxc.net.1.type = phys\n":                   false,
		"lxc.net.0.type = veth\n  lxc.net.0.type = none\n":                 false,
		"lxc.net.0.type = veth\nlxc.net = \n":                              false,
		"lxc.net.0.type = veth\nlxc.namespace.keep = net\n":                false,
		"lxc.net.0.type = veth\nlxc.namespace.share.net = 1\n":             false,
		"lxc.net.0.type = veth\nlxc.namespace.clone = pid\n":               false,
		"lxc.net.0.type = veth\nlxc.include = /etc/lxc/other\n":            false,
		"lxc.net.0.type = veth\nlxc.network.type = none\n":                 false,
		"lxc.net.0.type = veth\nlxc.hook.start-host = /bin/true\n":         false,
		"#lxc.net.0.type = veth\n":                                         false,
		"lxc.net.0.type = veth\nlxc.environment = lxc.net.0.type = none\n": true,
	} {
		if err := checkPrivateNetwork(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func archive(t *testing.T, headers ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := "text"
		if h.Typeflag != tar.TypeReg {
			content = ""
		}
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// Nothing is written outside of the root file system.
func TestExtractionStaysInside(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]tar.Header{
		"a path":               {{Name: "../out", Typeflag: tar.TypeReg, Mode: 0o644}},
		"a path in the middle": {{Name: "a/../../out", Typeflag: tar.TypeReg, Mode: 0o644}},
		"a link to a directory": {
			{Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "up/out", Typeflag: tar.TypeReg, Mode: 0o644},
		},
		"an absolute link to a directory": {
			{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "up/out", Typeflag: tar.TypeReg, Mode: 0o644},
		},
		"a hard link":                    {{Name: "out", Typeflag: tar.TypeLink, Linkname: "../secret"}},
		"a hard link through a link":     {{Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "out", Typeflag: tar.TypeLink, Linkname: "up/secret"}},
		"an owner that cannot be mapped": {{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644, Uid: 70000}},
	} {
		outside := t.TempDir()
		if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(outside, "root")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := extract(t.Context(), archive(t, headers...), dir, 0); err == nil {
			t.Errorf("%s: it was extracted", name)
		}
		list, err := os.ReadDir(outside)
		if err != nil || len(list) != 2 {
			t.Errorf("%s: outside are %v, %v", name, list, err)
		}
	}
}

// Files keep their kinds, modes and owners; devices are left out, and a later file replaces an
// earlier one.
func TestExtraction(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := extract(t.Context(), archive(
		t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o711},
		tar.Header{Name: "/deep/er/file", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 5, Gid: 6},
		tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "deep/er/file"},
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd", Uid: 7},
		tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8},
		tar.Header{Name: "memory", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1},
		tar.Header{Name: "twice", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"},
		tar.Header{Name: "twice", Typeflag: tar.TypeReg, Mode: 0o600},
	), dir, 1000)
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(dir)
	var names []string
	for _, f := range list {
		names = append(names, f.Name())
	}
	if err != nil || !slices.Equal(names, []string{"deep", "hard", "link", "twice"}) {
		t.Errorf("there are %v, %v", names, err)
	}
	for name, want := range map[string]owner{".": {1000, 1000}, "deep/er": {1000, 1000}, "deep/er/file": {1005, 1006}, "hard": {1005, 1006}, "link": {1007, 1000}} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := ownerOf(info); got != want {
			t.Errorf("%s belongs to %v, want %v", name, got, want)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "deep/er/file")); err != nil || info.Mode() != 0o755|os.ModeSetuid {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the mode of the root is %v, %v", info.Mode(), err)
	}
	if err := extract(t.Context(), strings.NewReader("not an archive"), t.TempDir(), 0); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("what is no archive: %v", err)
	}
}

// The end of a container is read from the log of lxc-start.
func TestHowAContainerEnded(t *testing.T) {
	t.Parallel()
	const prefix = "lxc-start a 20261117200640.850 INFO     error - ../src/lxc/error.c:lxc_error_set_and_log:31 - "
	for log, want := range map[string]string{
		prefix + "Child <18943> ended on error (3)\n":                                                "exited with code 3",
		prefix + "Child <18943> ended on signal Killed(9)\n":                                         "killed by signal 9 (SIGKILL)",
		prefix + "Child <18943> ended on signal (15)\n":                                              "killed by signal 15 (SIGTERM)",
		prefix + "Child <18943> ended on signal Interrupt(2)\n":                                      "was shut down",
		prefix + "something else\n":                                                                  "exited with code 0",
		prefix + "Child <1> ended on signal Hangup(1)\n" + prefix + "Child <2> ended on error (7)\n": "exited with code 7",
		"": "ended; how is unknown, because the log of lxc-start is gone",
	} {
		if _, got := howEnded(log, false, 0); got != want {
			t.Errorf("%q: %q, want %q", log, got, want)
		}
	}
	if code, got := howEnded(prefix+"Child <1> ended on signal Killed(9)\n", true, 0); *code != 137 || got != "ran out of memory and was killed" {
		t.Errorf("%q, %d", got, *code)
	}
	if code, got := howEnded(prefix+"something else\n", false, syscall.WaitStatus(unix.SIGKILL)); code != nil || !strings.Contains(got, "lxc-start was killed by signal 9") {
		t.Errorf("%q, %v", got, code)
	}
	if code, got := howEnded(prefix+"Child <1> ended on error (1)\n", true, 0); *code != 1 || got != "exited with code 1" {
		t.Errorf("%q, %d", got, *code)
	}
}

func TestLineEndsThatATerminalAdds(t *testing.T) {
	t.Parallel()
	if got := string(withoutAdded([]byte("a\r\r\nb\n\r\nc\rd"))); got != "a\r\nb\n\nc\rd" {
		t.Errorf("%q", got)
	}
}

// A container can nest directories deeper than the agent has file descriptors.
func TestADeepTreeIsRemoved(t *testing.T) {
	t.Parallel()
	top := filepath.Join(t.TempDir(), "deep")
	if err := os.Mkdir(top, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for n := 0; n < 3000 && err == nil; n++ {
		below := -1
		if err = unix.Mkdirat(dir, "d", 0o700); err == nil {
			below, err = unix.Openat(dir, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(dir)
		dir = below
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(dir)
	if err := removeAll(top); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !statefile.IsGone(err) {
		t.Errorf("it is left: %v", err)
	}
	if err := removeAll(top); err != nil {
		t.Errorf("what is gone: %v", err)
	}
}

// An instance with ids of its own never becomes privileged.
func TestIDsAreNotGivenUp(t *testing.T) {
	t.Parallel()
	d := &Driver{}
	e := &entry{Slot: roster.NewSlot("a"), Life: supervise.Life{Dir: t.TempDir()}}
	e.held.ids = firstIDs
	if ids, err := d.assignIDs(e, support{noUserNS: "it is full"}); err == nil || !strings.Contains(err.Error(), "it is full") {
		t.Errorf("it gets %d, %v", ids, err)
	}
}

// The log of lxc-start is bounded, and its end is found in a large one.
func TestALargeLogIsTrimmedAndItsEndRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	text := strings.Repeat("x", maxLog) + "the end"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if b := tailOf(path, 7); string(b) != "the end" {
		t.Errorf("the end is %q", b)
	}
	trimLog(path)
	if b := tailOf(path, 7); len(b) != 0 {
		t.Errorf("%q is left", b)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	trimLog(path)
	if b := tailOf(path, 7); string(b) != "short" {
		t.Errorf("a small one is %q", b)
	}
	if b := tailOf(path+"x", 7); b != nil {
		t.Errorf("none is %q", b)
	}
}

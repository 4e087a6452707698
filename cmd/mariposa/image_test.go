package main_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// rootfsArchive returns a compressed root file system with one file.
func rootfsArchive(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	must(t, w.WriteHeader(&tar.Header{Name: "bin/sh", Mode: 0o755, Size: 2}))
	_, err := w.Write([]byte("sh"))
	must(t, err)
	must(t, w.Close())
	must(t, z.Close())
	return b.Bytes()
}

func TestImagesAreImportedListedAndRemoved(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.await("the node is there", func() bool {
		all, err := h.Nodes(t.Context())
		return err == nil && len(all.Nodes) == 1
	})
	run := func(want string, args ...string) string {
		t.Helper()
		out, said, code := h.mariposa("", args...)
		if code != 0 || !strings.Contains(out+said, want) {
			t.Fatalf("%v: exit code %d\n%s%s\nwant %q", args, code, out, said, want)
		}
		return out
	}
	fails := func(want string, code int, args ...string) {
		t.Helper()
		if out, said, got := h.mariposa("", args...); got != code || !strings.Contains(said, want) {
			t.Errorf("%v: exit code %d, want %d\n%s%s\nwant %q", args, got, code, out, said, want)
		}
	}
	archive := rootfsArchive(t)
	sum := sha256.Sum256(archive)
	file := filepath.Join(t.TempDir(), "debian.tar.gz")
	write(t, file, archive)
	run("the image store is empty: add an image with `mariposa image import`", "image", "list")
	run("imported debian:12 (", "image", "import", file, "--name", "debian:12", "--sha256", hex.EncodeToString(sum[:]))
	fails("there is an image named debian:12 already", 1, "image", "import", file, "--name", "debian:12")
	fails("its SHA-256 checksum is "+hex.EncodeToString(sum[:]), 1, "image", "import", file, "--name", "b", "--sha256", strings.Repeat("0", 64))
	fails("--name is required", 2, "image", "import", file)
	fails("--kind must be rootfs, disk or kernel", 2, "image", "import", file, "--name", "b", "--kind", "iso")
	fails("--initrd and --append are for kernels", 2, "image", "import", file, "--name", "b", "--kind", "rootfs", "--append", "quiet")
	text := filepath.Join(t.TempDir(), "text")
	write(t, text, []byte("hello"))
	fails("it is not clear what the file contains", 2, "image", "import", text, "--name", "b")
	fails("not a tar archive", 1, "image", "import", text, "--name", "b", "--kind", "rootfs")
	run("imported tiny (", "image", "import", text, "--name", "tiny", "--initrd", text, "--append", "console=ttyS0")
	var list struct {
		Images []struct {
			ID, Name, Kind string
			Size           int64
			Instances      []string
		}
	}
	must(t, json.Unmarshal([]byte(run("", "image", "list", "--json")), &list))
	if len(list.Images) != 2 || list.Images[0].Name != "debian:12" || list.Images[0].Kind != "rootfs" || list.Images[0].Instances == nil {
		t.Fatalf("%+v", list)
	}
	run("0 instances", "image", "list")
	run("all files are as they were imported", "image", "show", list.Images[0].ID, "--verify")
	run("console=ttyS0", "image", "show", "tiny")
	fails(`has none named "nothing": import it`, 1, "image", "show", "nothing")
	run("removed debian:12 (", "image", "rm", "debian:12", "tiny")
	run("the image store is empty", "image", "list")
	fails("no node has its data in", 1, "image", "list", "--data", t.TempDir())
}

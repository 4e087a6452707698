package imagestore_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"mariposa/driver/imagestore"
)

func open(t *testing.T) *imagestore.Store {
	t.Helper()
	s, err := imagestore.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// archive returns a root file system with files.
func archive(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(name)), Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func compressed(t *testing.T, b []byte, with func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := with(&out)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func rootfs(name string, b []byte) imagestore.Request {
	return imagestore.Request{Name: name, Kind: imagestore.Rootfs, Sources: map[string]io.Reader{imagestore.RootfsFile: bytes.NewReader(b)}}
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// wantEmpty checks that a store has no image, and nothing left of one.
func wantEmpty(t *testing.T, s *imagestore.Store) {
	t.Helper()
	all, err := s.List()
	if err != nil || len(all) > 0 {
		t.Errorf("the store has %v, %v", all, err)
	}
	entries, err := os.ReadDir(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func TestARootFileSystemIsStoredWithoutItsCompression(t *testing.T) {
	t.Parallel()
	plain := archive(t, "etc/hostname", "bin/sh")
	for name, given := range map[string][]byte{
		"plain": plain,
		"gzip":  compressed(t, plain, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }),
		"xz":    compressed(t, plain, func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) }),
		"zstd":  compressed(t, plain, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }),
	} {
		s := open(t)
		r := rootfs("debian:12", given)
		r.SHA256 = strings.ToUpper(sum(given))
		var done int64
		r.Report = func(n int64) { done = n }
		i, err := s.Import(t.Context(), r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, _ := os.ReadFile(s.Path(i, imagestore.RootfsFile)); !bytes.Equal(got, plain) || i.Size() != int64(len(plain)) || i.Files[0].SHA256 != sum(plain) {
			t.Errorf("%s: stored %d bytes as %+v", name, len(got), i)
		}
		if done != int64(len(given)) {
			t.Errorf("%s: %d of %d bytes were reported", name, done, len(given))
		}
		for _, ref := range []string{"debian:12", i.ID} {
			if found, err := s.Find(ref); err != nil || found.ID != i.ID || found.Name != "debian:12" {
				t.Errorf("%s: %s: %+v, %v", name, ref, found, err)
			}
		}
		if err := s.Verify(t.Context(), i); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatIsNoImageIsRefusedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	good := archive(t, "bin/sh")
	disk := func(change func(b []byte)) imagestore.Request {
		b := make([]byte, 1024)
		copy(b, "QFI\xfb")
		binary.BigEndian.PutUint32(b[4:], 3)
		change(b)
		return imagestore.Request{Name: "d", Kind: imagestore.Disk, Sources: map[string]io.Reader{imagestore.DiskFile: bytes.NewReader(b)}}
	}
	wrongSum := rootfs("a", good)
	wrongSum.SHA256 = sum(nil)
	for want, r := range map[string]imagestore.Request{
		`invalid name of an image "../a"`:        rootfs("../a", good),
		`invalid name of an image "a/../b"`:      rootfs("a/../b", good),
		`invalid name of an image ""`:            rootfs("", good),
		"not a tar archive":                      rootfs("a", []byte("hello")),
		"the archive is empty":                   rootfs("a", archive(t)),
		`outside of its root: "../etc/passwd"`:   rootfs("a", archive(t, "bin/sh", "../etc/passwd")),
		"checksum is " + sum(good):               wrongSum,
		"unexpected EOF":                         rootfs("a", compressed(t, good, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil })[:40]),
		"invalid kind of image \"iso\"":          {Name: "a", Kind: "iso"},
		"an image of kind kernel needs a kernel": {Name: "a", Kind: imagestore.Kernel},
		"its kernel is empty":                    {Name: "a", Kind: imagestore.Kernel, Sources: map[string]io.Reader{imagestore.KernelFile: strings.NewReader("")}},
		"too small for a disk":                   {Name: "a", Kind: imagestore.Disk, Sources: map[string]io.Reader{imagestore.DiskFile: strings.NewReader("x")}},
		"it needs another disk image":            disk(func(b []byte) { binary.BigEndian.PutUint64(b[8:], 512) }),
		"its data are in another file":           disk(func(b []byte) { b[79] = 4 }),
		"it is encrypted":                        disk(func(b []byte) { b[35] = 1 }),
		"version 9 of the qcow2 format":          disk(func(b []byte) { b[7] = 9 }),
	} {
		s := open(t)
		if _, err := s.Import(t.Context(), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		wantEmpty(t, s)
	}
	s := open(t)
	if i, err := s.Import(t.Context(), disk(func([]byte) {})); err != nil || i.Options[imagestore.FormatOption] != "qcow2" {
		t.Errorf("%+v, %v", i, err)
	}
}

func TestAnImportThatIsCanceledLeavesNothing(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	r := rootfs("a", archive(t, "bin/sh"))
	r.Report = func(int64) { cancel() }
	if _, err := s.Import(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	wantEmpty(t, s)
}

// An import whose process was killed left a directory. One that goes on is left alone.
func TestTheNextImportRemovesWhatAKilledOneLeft(t *testing.T) {
	t.Parallel()
	s := open(t)
	left := filepath.Join(s.Dir(), ".new-x")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left, long, long); err != nil {
		t.Fatal(err)
	}
	going := rootfs("a", archive(t, "bin/sh"))
	var once sync.Once
	going.Report = func(int64) {
		once.Do(func() {
			mine, err := filepath.Glob(filepath.Join(s.Dir(), ".new-*"))
			if err != nil || len(mine) != 1 {
				t.Errorf("while it goes on: %v, %v", mine, err)
				return
			}
			if err := os.Chtimes(mine[0], long, long); err != nil {
				t.Error(err)
			}
			if _, err := s.Import(t.Context(), rootfs("b", archive(t, "bin/sh"))); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := s.Import(t.Context(), going); err != nil {
		t.Error(err)
	}
	if all, err := s.List(); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestANameBelongsToOneImage(t *testing.T) {
	t.Parallel()
	s := open(t)
	given := archive(t, "bin/sh")
	var all sync.WaitGroup
	results := make(chan error, 8)
	for range 8 {
		all.Go(func() {
			_, err := s.Import(t.Context(), rootfs("debian", given))
			results <- err
		})
	}
	all.Wait()
	close(results)
	ok := 0
	for err := range results {
		if err == nil {
			ok++
		} else if !strings.Contains(err.Error(), "there is an image named debian already") {
			t.Error(err)
		}
	}
	if list, err := s.List(); ok != 1 || err != nil || len(list) != 1 {
		t.Errorf("%d imports passed; %v, %v", ok, list, err)
	}
}

func TestAnImageInUseIsNotRemoved(t *testing.T) {
	t.Parallel()
	s := open(t)
	i, err := s.Import(t.Context(), rootfs("debian", archive(t, "bin/sh")))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Hold(i, "web.1-x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Hold(i, "../x"); err == nil {
		t.Error("a user outside of the store is accepted")
	}
	if _, err := s.Remove("debian"); !errors.Is(err, imagestore.ErrInUse) {
		t.Errorf("removed: %v", err)
	}
	dir, err := s.CacheDir(i, "lxc")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release("web.1-x"); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.Remove("debian"); err != nil || gone.ID != i.ID {
		t.Errorf("%+v, %v", gone, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its cache is left: %v", err)
	}
	wantEmpty(t, s)
	if err := s.Hold(i, "late"); !errors.Is(err, imagestore.ErrNotFound) {
		t.Errorf("an image that is gone is used: %v", err)
	}
	if _, err := s.CacheDir(i, "lxc"); !errors.Is(err, imagestore.ErrNotFound) {
		t.Errorf("an image that is gone has a cache: %v", err)
	}
	if _, err := s.Remove("debian"); !errors.Is(err, imagestore.ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if err := s.Release("web.1-x"); err != nil {
		t.Error(err)
	}
}

func TestADamagedImageIsNoticed(t *testing.T) {
	t.Parallel()
	s := open(t)
	i, err := s.Import(t.Context(), rootfs("debian", archive(t, "bin/sh")))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.Path(i, imagestore.RootfsFile), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("X"), 600)
		_ = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), i); err == nil || !strings.Contains(err.Error(), "image debian is damaged: rootfs.tar is not what was imported") {
		t.Errorf("%v", err)
	}
}

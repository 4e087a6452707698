package imagestore

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Request describes an image to import.
type Request struct {
	Name    string
	Kind    Kind
	Sources map[string]io.Reader // by the names of the image's files
	Options map[string]string
	// SHA256 is the checksum that the main source must have, as it is given; any if empty.
	SHA256 string
	// Report receives how many bytes were read; may be nil.
	Report func(done int64)
}

// main is the name of the file that an image of each kind must have.
var mainFile = map[Kind]string{Rootfs: RootfsFile, Disk: DiskFile, Kernel: KernelFile}

// Import adds an image. Root file systems may be compressed; they are stored without
// compression. An import that fails leaves nothing behind.
func (s *Store) Import(ctx context.Context, r Request) (*Image, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if err := s.checkFree(r.Name); err != nil { // before the work; checked again after it
		return nil, err
	}
	s.sweep()
	i := &Image{ID: uuid.NewString(), Name: r.Name, Kind: r.Kind, Options: maps.Clone(r.Options), Created: time.Now().UTC().Truncate(time.Second)}
	dir := filepath.Join(s.dir, unfinished+i.ID)
	held, err := createHeld(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot import image %s: %w", r.Name, err)
	}
	defer held.Close()
	err = s.fill(ctx, dir, i, r)
	if err == nil {
		err = s.locked(func() error {
			if err := s.checkFree(r.Name); err != nil {
				return err
			}
			return os.Rename(dir, filepath.Join(s.dir, i.ID))
		})
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		_ = os.RemoveAll(dir) // swept by the next import otherwise
		if errors.Is(err, syscall.ENOSPC) {
			return nil, fmt.Errorf("cannot import image %s: the disk of the image store is full: free some space, or remove images with `mariposa image rm`", r.Name)
		}
		return nil, fmt.Errorf("cannot import image %s: %w", r.Name, err)
	}
	return i, nil
}

func (r *Request) check() error {
	need, ok := mainFile[r.Kind]
	switch {
	case !ok:
		return fmt.Errorf("invalid kind of image %q: use rootfs, disk or kernel", r.Kind)
	case len(r.Name) > 200 || !refs.MatchString(r.Name) || strings.Contains(r.Name, "..") || isID(r.Name):
		return fmt.Errorf("invalid name of an image %q: use letters, digits, dots, dashes and slashes, and perhaps a tag, such as debian:12", r.Name)
	case r.Sources[need] == nil:
		return fmt.Errorf("an image of kind %s needs a %s", r.Kind, need)
	}
	return nil
}

func (s *Store) checkFree(name string) error {
	other, err := s.Find(name)
	switch {
	case err == nil:
		return fmt.Errorf("there is an image named %s already (%s): remove it with `mariposa image rm`, or use another name", name, other.ID)
	case errors.Is(err, ErrNotFound):
		return nil
	}
	return err
}

// fill writes the files and the description of an image.
func (s *Store) fill(ctx context.Context, dir string, i *Image, r Request) error {
	var done int64
	for _, name := range slices.Sorted(maps.Keys(r.Sources)) {
		given := sha256.New()
		src := io.TeeReader(readFunc(func(p []byte) (int, error) {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			n, err := r.Sources[name].Read(p)
			if done += int64(n); r.Report != nil {
				r.Report(done)
			}
			return n, err
		}), given)
		f, err := store(filepath.Join(dir, name), src, i)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, src); err != nil { // what is behind the end of an archive counts for the checksum
			return err
		}
		if sum := hex.EncodeToString(given.Sum(nil)); name == mainFile[r.Kind] && r.SHA256 != "" && !strings.EqualFold(sum, r.SHA256) {
			return fmt.Errorf("its SHA-256 checksum is %s, not %s: the file is not the one that you expect", sum, r.SHA256)
		}
		f.Name = name
		i.Files = append(i.Files, f)
	}
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	if _, err := write(filepath.Join(dir, description), bytes.NewReader(append(b, '\n'))); err != nil {
		return err
	}
	return syncDir(dir)
}

// store writes a file of an image, and checks that it is what it should be.
func store(path string, src io.Reader, i *Image) (File, error) {
	switch filepath.Base(path) {
	case RootfsFile:
		plain, err := decompress(src)
		if err != nil {
			return File{}, err
		}
		defer plain.Close()
		r, w := io.Pipe()
		checked := make(chan error, 1)
		go func() {
			err := checkTar(r)
			_, _ = io.Copy(io.Discard, r) // so that the writer ends
			checked <- err
		}()
		f, err := write(path, io.TeeReader(plain, w))
		_ = w.CloseWithError(err) // io.EOF if it is nil
		if wrong := <-checked; err == nil {
			err = wrong
		}
		return f, err
	case DiskFile:
		head := bufio.NewReaderSize(src, diskHead)
		first, err := head.Peek(diskHead)
		if err != nil && !errors.Is(err, io.EOF) {
			return File{}, err
		}
		format, err := checkDisk(first)
		if err != nil {
			return File{}, err
		}
		if i.Options == nil {
			i.Options = map[string]string{}
		}
		i.Options[FormatOption] = format
		return write(path, head)
	}
	f, err := write(path, src)
	if err == nil && f.Size == 0 {
		err = fmt.Errorf("its %s is empty", filepath.Base(path))
	}
	return f, err
}

// write writes a file to the disk.
func write(path string, src io.Reader) (File, error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return File{}, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), src)
	if err == nil {
		err = out.Sync()
	}
	if ended := out.Close(); err == nil {
		err = ended
	}
	return File{Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// decompress returns the content of a file that may be compressed.
func decompress(src io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(src, 64<<10)
	head, err := in.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	is := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	switch {
	case is("\x1f\x8b"):
		return gzip.NewReader(in)
	case is("\xfd7zXZ\x00"):
		r, err := xz.NewReader(in)
		return io.NopCloser(r), err
	case is("BZh"):
		return io.NopCloser(bzip2.NewReader(in)), nil
	case is("\x28\xb5\x2f\xfd"):
		r, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			return nil, err
		}
		return r.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// checkTar reads an archive to its end.
func checkTar(r io.Reader) error {
	in := tar.NewReader(r)
	entries := 0
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return errors.New("it is not a tar archive of a root file system (plain, or compressed with gzip, xz, bzip2 or zstd)")
		}
		for _, name := range []string{h.Name, hardLink(h)} {
			if slices.Contains(strings.Split(name, "/"), "..") {
				return fmt.Errorf("the archive has an entry outside of its root: %q", name)
			}
		}
		if path.Clean(h.Name) != "." {
			entries++
		}
	}
	if entries == 0 {
		return errors.New("the archive is empty")
	}
	return nil
}

// hardLink returns what an entry is a hard link to; empty if it is none.
func hardLink(h *tar.Header) string {
	if h.Typeflag == tar.TypeLink {
		return h.Linkname
	}
	return ""
}

const diskHead = 512

// checkDisk returns the format of a disk by its first bytes. A qcow2 file can name other
// files of the machine, which would become readable in the virtual machine.
func checkDisk(head []byte) (format string, err error) {
	if len(head) < diskHead {
		return "", errors.New("it is too small for a disk")
	}
	if !bytes.HasPrefix(head, []byte("QFI\xfb")) {
		return "raw", nil
	}
	version := binary.BigEndian.Uint32(head[4:])
	switch {
	case version != 2 && version != 3:
		return "", fmt.Errorf("version %d of the qcow2 format is not supported", version)
	case binary.BigEndian.Uint64(head[8:]) != 0:
		return "", errors.New("it needs another disk image (a backing file): flatten it with `qemu-img convert -O qcow2`")
	case binary.BigEndian.Uint32(head[32:]) != 0:
		return "", errors.New("it is encrypted, which is not supported")
	case version == 3 && binary.BigEndian.Uint64(head[72:])&4 != 0:
		return "", errors.New("its data are in another file: merge them with `qemu-img convert -O qcow2`")
	}
	return "qcow2", nil
}

// createHeld creates a directory that sweep leaves alone while it is open.
func createHeld(dir string) (*os.File, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // the first error is the one to report
		return nil, err
	}
	return f, nil
}

// sweep removes what imports and removals left behind whose process was killed.
func (s *Store) sweep() {
	left, _ := filepath.Glob(filepath.Join(s.dir, unfinished+"*")) // a correct pattern
	for _, dir := range left {
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		if info, err := f.Stat(); err == nil && time.Since(info.ModTime()) > time.Second && // not just created
			syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir) // tried again by the next import
		}
		_ = f.Close() // only read
	}
}

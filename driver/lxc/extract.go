package lxc

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// extract writes the files of an archive into an empty directory, with ids that are shifted.
// Nothing is written outside of it, whatever the archive contains. Device files are left out:
// containers get their own.
func extract(ctx context.Context, from io.Reader, dir string, shift int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() // it was only used
	x := extractor{root: root, shift: shift}
	if err := root.Chmod(".", 0o755); err != nil {
		return err
	}
	if err := root.Lchown(".", shift, shift); err != nil {
		return err
	}
	files := tar.NewReader(from)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the root file system of the image cannot be read: %w", err)
		}
		if err := x.add(h, files); err != nil {
			return fmt.Errorf("cannot extract %q of the image: %w", h.Name, err)
		}
	}
	_, err = io.Copy(io.Discard, from) // the checksum is compared at the end of the file
	return err
}

type extractor struct {
	root  *os.Root
	shift int
}

// add writes one file.
func (x *extractor) add(h *tar.Header, content io.Reader) error {
	name, ok := localName(h.Name)
	if !ok {
		return errors.New("its path leads out of the root file system")
	}
	if h.Uid < 0 || h.Uid > maxFileID || h.Gid < 0 || h.Gid > maxFileID {
		return fmt.Errorf("it belongs to %d:%d, but a container has ids up to %d", h.Uid, h.Gid, maxFileID)
	}
	if name != "." {
		if err := x.makeParents(path.Dir(name)); err != nil {
			return err
		}
		if info, err := x.root.Lstat(name); err == nil && (!info.IsDir() || h.Typeflag != tar.TypeDir) {
			if err := x.root.RemoveAll(name); err != nil { // a later file of the same name replaces it
				return err
			}
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := x.root.Mkdir(name, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	case tar.TypeReg:
		if err := x.write(name, h, content); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := x.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return x.root.Lchown(name, h.Uid+x.shift, h.Gid+x.shift)
	case tar.TypeLink:
		to, ok := localName(h.Linkname)
		if !ok {
			return errors.New("it is a link that leads out of the root file system")
		}
		return x.root.Link(to, name) // it has the owner and the mode of the other
	default:
		return nil // devices and pipes
	}
	if err := x.root.Lchown(name, h.Uid+x.shift, h.Gid+x.shift); err != nil {
		return err
	}
	return x.root.Chmod(name, h.FileInfo().Mode()) // a change of the owner clears some bits
}

// localName returns a path of an archive as one below its root; false if it leads out of it.
func localName(name string) (string, bool) {
	clean := path.Clean("/" + name)[1:]
	if clean == "" {
		return ".", true
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", false
		}
	}
	return clean, filepath.IsLocal(clean)
}

// makeParents creates directories that the archive does not name.
func (x *extractor) makeParents(dir string) error {
	if _, err := x.root.Stat(dir); err == nil {
		return nil
	}
	if err := x.makeParents(path.Dir(dir)); err != nil {
		return err
	}
	if err := x.root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return x.root.Lchown(dir, x.shift, x.shift)
}

// write writes a regular file.
func (x *extractor) write(name string, h *tar.Header, content io.Reader) error {
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Chown(h.Uid+x.shift, h.Gid+x.shift) // before its capabilities, which this would clear
	}
	for key, value := range h.PAXRecords {
		attribute, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if ok && err == nil && (attribute == "security.capability" || strings.HasPrefix(attribute, "user.")) {
			_ = unix.Fsetxattr(int(f.Fd()), attribute, []byte(value), 0) // a file system may not have them
		}
	}
	return errors.Join(err, f.Close())
}

package lxc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/imagestore"
	"mariposa/driver/lockfile"
	"mariposa/driver/ostool"
	"mariposa/driver/statefile"
)

// rootfsKind says how an instance has its root file system.
type rootfsKind string

const (
	// rootfsOverlay: the files of the image, and above them a directory of the instance.
	rootfsOverlay rootfsKind = "overlay"
	// rootfsCopy: a full copy with the ids of the instance.
	rootfsCopy rootfsKind = "copy"
)

// EnsureImage extracts the root file system of an image, once.
func (d *Driver) EnsureImage(ctx context.Context, image string, _ *mariposa.Login, report func(driver.Progress)) error {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	i, err := d.findImage(image)
	if err != nil {
		return err
	}
	_, err = d.extracted(ctx, i, report)
	return err
}

// findImage returns an image that a container can have.
func (d *Driver) findImage(ref string) (*imagestore.Image, error) {
	if ref == "" {
		return nil, errors.New("it has no image: set `image`")
	}
	i, err := d.options.Images.Find(ref)
	if err != nil {
		return nil, err
	}
	if i.Kind != imagestore.Rootfs {
		return nil, fmt.Errorf("image %s is not for system containers: it contains a %s, not a root file system", i.Name, i.Kind)
	}
	return i, nil
}

// extracted returns the directory with the files of an image.
func (d *Driver) extracted(ctx context.Context, i *imagestore.Image, report func(driver.Progress)) (string, error) {
	cache, err := d.options.Images.CacheDir(i, "lxc")
	if err != nil {
		return "", err
	}
	if done := filepath.Join(cache, rootfsDir); isDir(done) { // others may be extracted meanwhile
		return done, nil
	}
	lock, err := lockfile.Wait(ctx, filepath.Join(cache, "lock")) // other nodes of this machine may use the store
	if err != nil {
		return "", err
	}
	defer lock.Close() // it was only held
	dir := filepath.Join(cache, rootfsDir)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unfinished := filepath.Join(cache, newPrefix+rootfsDir)
	if err := os.RemoveAll(unfinished); err != nil { // left by an agent that was killed
		return "", err
	}
	if err := d.extractTo(ctx, i, unfinished, 0, report); err != nil {
		_ = os.RemoveAll(unfinished) // the error is returned; the next attempt removes it
		return "", err
	}
	if err := syncFS(unfinished); err != nil { // it is used for ever
		return "", err
	}
	return dir, os.Rename(unfinished, dir)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// syncFS writes the file system of a directory to its disk.
func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// extractTo extracts an image into a new directory.
func (d *Driver) extractTo(ctx context.Context, i *imagestore.Image, dir string, shift int, report func(driver.Progress)) error {
	f, err := d.options.Images.Open(i, imagestore.RootfsFile)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err = extract(ctx, &progressReader{ctx: ctx, from: f, total: i.Size(), report: report}, dir, shift)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errors.New("the disk of this node is full: free some space")
	}
	return err
}

// progressReader reports how much was read, and ends with its context.
type progressReader struct {
	ctx         context.Context
	from        io.Reader
	done, total int64
	told        int64
	report      func(driver.Progress)
}

func (r *progressReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.from.Read(p)
	r.done += int64(n)
	if r.report != nil && (r.done-r.told > 1<<20 || r.done >= r.total && r.told < r.done) {
		r.told = r.done
		r.report(driver.Progress{Done: min(r.done, r.total), Total: r.total})
	}
	return n, err
}

// openIn opens a file below a root as a process in it would: links, absolute ones too, do not
// lead out of it.
func openIn(root, name string, flags int) (*os.File, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close() // it was only used
	fd, err := unix.Openat2(int(dir.Fd()), strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS, //nolint:gosec // flags are positive
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil //nolint:gosec // a file descriptor is positive
}

// isProgram reports whether a path below a root is a file that can be executed.
func isProgram(root, name string) bool {
	f, err := openIn(root, name, unix.O_PATH)
	if err != nil {
		return false
	}
	defer f.Close() // it was only looked at
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// hasInit reports whether an image boots by itself.
func hasInit(root string) bool { return initPath(root) != "" }

// initPath returns the init of an image; empty if it has none.
func initPath(root string) string {
	for _, path := range []string{"/sbin/init", "/bin/init", "/init"} {
		if isProgram(root, path) {
			return path
		}
	}
	return ""
}

// resolveUser returns the numbers of a user of an instance. Names are looked up in its own files:
// those that it has changed, or those of its image.
func resolveUser(roots []string, user string) (to owner, err error) {
	name, group, hasGroup := strings.Cut(user, ":")
	if name == "" {
		name = "0"
	}
	if to.UID, err = strconv.Atoi(name); err != nil {
		f := lookUp(roots, "/etc/passwd", name)
		if len(f) < 4 {
			return to, fmt.Errorf("its image has no user %q: check `user`", name)
		}
		to.UID, _ = strconv.Atoi(f[2])
		to.GID, _ = strconv.Atoi(f[3])
	}
	if hasGroup {
		if to.GID, err = strconv.Atoi(group); err != nil {
			f := lookUp(roots, "/etc/group", group)
			if len(f) < 3 {
				return to, fmt.Errorf("its image has no group %q: check `user`", group)
			}
			to.GID, _ = strconv.Atoi(f[2])
		}
	}
	if to.UID < 0 || to.UID > maxFileID || to.GID < 0 || to.GID > maxFileID {
		return to, fmt.Errorf("its user %q has an id above %d, which a container does not have: check `user`", user, maxFileID)
	}
	return to, nil
}

// lookUp returns the fields of a name in a file like /etc/passwd; nil if it is not there.
func lookUp(roots []string, path, name string) []string {
	for _, root := range roots {
		f, err := openIn(root, path, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(f, 1<<20))
		_ = f.Close() // it was only read
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if fields := strings.Split(strings.TrimSpace(line), ":"); fields[0] == name {
				return fields
			}
		}
		return nil
	}
	return nil
}

// removeAll deletes a tree that a container may have written. A container can nest directories
// as deep as it likes: a program of its own deletes them, which does not need a file descriptor
// for each level, and cannot harm the agent.
func removeAll(path string) error {
	if _, err := os.Lstat(path); statefile.IsGone(err) {
		return nil
	}
	rm := ostool.Find("rm")
	if rm == "" {
		return errors.New("cannot remove the files of an instance: this machine does not have the program rm")
	}
	out, err := exec.CommandContext(context.Background(), rm, "-rf", "--one-file-system", "--", path).CombinedOutput() //nolint:gosec // it is what we run
	if err != nil {
		text := strings.TrimSpace(string(out))
		return fmt.Errorf("cannot remove the files of an instance: %w: %s", err, text[:min(300, len(text))])
	}
	return nil
}

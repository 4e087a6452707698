package memdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestPlacesInMemory(t *testing.T) {
	t.Parallel()
	disk, base := t.TempDir(), ""
	for _, place := range []string{"/dev/shm", os.Getenv("XDG_RUNTIME_DIR"), "/run"} {
		if dir, err := os.MkdirTemp(place, "mariposa-test-"); err == nil && inMemory(dir) {
			base = dir
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			break
		} else if err == nil {
			_ = os.Remove(dir)
		}
	}
	if base == "" {
		t.Fatal("this machine keeps no files in memory")
	}
	good := filepath.Join(base, "good")
	dir := open([]string{filepath.Join(disk, "m"), filepath.Join(base, "missing", "m"), good}, "/root/a")
	if filepath.Dir(dir) != good {
		t.Errorf("got %s", dir)
	}
	if other := open([]string{good}, "/root/b"); other == dir || filepath.Dir(other) != good {
		t.Errorf("another root got %s", other)
	}
	link, file, shared := filepath.Join(base, "link"), filepath.Join(base, "file"), filepath.Join(base, "open")
	if err := errors.Join(os.Symlink(disk, link), os.WriteFile(file, nil, 0o600), os.Mkdir(shared, 0o755), os.Chmod(shared, 0o777)); err != nil {
		t.Fatal(err)
	}
	if got := open([]string{link, file}, "/root/a"); got != "" {
		t.Errorf("another trap was caught: %s", got)
	}
	if open([]string{shared}, "/root/a") == "" {
		t.Error("a place of our own was not taken")
	}
	if info, err := os.Stat(shared); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("it is still open to others: %v", err)
	}
	if os.Geteuid() == 0 {
		theirs := filepath.Join(base, "theirs")
		if err := errors.Join(os.Mkdir(theirs, 0o700), os.Chown(theirs, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		if got := open([]string{theirs, filepath.Join(theirs, "below")}, "/root/a"); got != "" {
			t.Errorf("another user's directory was taken: %s", got)
		}
	}
}

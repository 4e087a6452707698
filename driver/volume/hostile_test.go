package volume_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"mariposa/driver"
)

// An instance writes what it likes into its volume, also what a volume with a size consists of: a
// file system whose directory of content leads to the files of the node. It stays a file.
func TestAnInstanceCannotMakeTheNodeMountItsFile(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	path := provide(t, s, sized("plain", 0))
	evil := t.TempDir()
	if err := os.Symlink("/", filepath.Join(evil, "data")); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(path, "volume.img")
	err := os.WriteFile(image, nil, 0o600)
	if err == nil {
		err = os.Truncate(image, 4<<20)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(path, "mount"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", "-d", evil, image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if again := provide(t, s, sized("plain", 0)); again != path || s.Path("plain") != path {
		t.Fatalf("the volume is at %s, and then at %s and %s", path, again, s.Path("plain"))
	}
	if again, err := s.Provide(t.Context(), sized("plain", 8<<20)); err == nil { // it may be of an earlier build
		t.Fatalf("the volume is at %s with a size", again)
	}
	if mounts := mountsIn(t, dir); len(mounts) > 0 {
		t.Errorf("mounted are %q", mounts)
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0].Size != 0 {
		t.Errorf("listed are %+v, %v", list, err)
	}
	withdraw(t, s, "plain")
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// A volume with a size that an earlier build has made, and that is in use, is recognized: nobody but
// the node mounts something there.
func TestAMountedVolumeOfAnEarlierBuildKeepsItsSize(t *testing.T) {
	t.Parallel()
	s, dir := openStore(t)
	path := provide(t, s, sized("old", 4<<20))
	if err := os.WriteFile(filepath.Join(path, "kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, ".sized-old")); err != nil {
		t.Fatal(err)
	}
	s.Clear()
	if again := provide(t, s, driver.Resource{ID: "old", Size: 4 << 20}); again != path {
		t.Errorf("it was at %s and is at %s", path, again)
	}
	if _, err := os.Stat(filepath.Join(dir, ".sized-old")); err != nil {
		t.Error(err)
	}
}

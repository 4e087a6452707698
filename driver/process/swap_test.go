package process

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNothingIsHandedOverThroughALink keeps replacing a directory by a link to the
// outside and back while the owner of its tree is changed.
func TestNothingIsHandedOverThroughALink(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: only root gives files away")
	}
	base := t.TempDir()
	outside, tree := filepath.Join(base, "outside"), filepath.Join(base, "tree")
	folder, link := filepath.Join(tree, "folder"), filepath.Join(tree, "link")
	for _, dir := range []string{outside, tree, folder} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const files, owner, other = 50, 4321, 4322
	for n := range files {
		for _, dir := range []string{outside, folder} {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	done, swapped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swapped)
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, folder, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	for n := range 300 {
		from, to := owner, other
		if n%2 == 1 {
			from, to = other, owner
		}
		_ = changeOwner(tree, 0, from) // the result does not matter, only which files it changes
		_ = changeOwner(tree, from, to)
	}
	close(done)
	<-swapped
	for n := range files {
		info, err := os.Lstat(filepath.Join(outside, strconv.Itoa(n)))
		if err != nil || ownerOf(info) != 0 {
			t.Fatalf("a file outside was given away: %v %v", info, err)
		}
	}
}

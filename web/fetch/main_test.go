package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// The committed files of the packages are those that were fetched: nobody changed them by hand.
func TestThePackagesAreAsTheyWereFetched(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "packages")
	files := map[string][]byte{}
	if err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if is := string(checksums(files)); is != string(files[sums]) {
		t.Errorf("web/packages differs from its %s: run `go run ./web/fetch`. It is now:\n%s", sums, is)
	}
}

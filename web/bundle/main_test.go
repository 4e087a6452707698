package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The binary contains what the sources say.
func TestTheFilesOfThePageAreUpToDate(t *testing.T) {
	t.Parallel()
	files, err := bundle("..")
	if err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadDir("../dist")
	if err != nil || len(there) != len(files) {
		t.Errorf("web/dist has %d files, and the sources make %d (%v)", len(there), len(files), err)
	}
	for name, body := range files {
		if is, err := os.ReadFile(filepath.Join("../dist", name)); err != nil || !bytes.Equal(is, body) {
			t.Errorf("web/dist/%s is out of date: run `go generate ./web` (%v)", name, err)
		}
	}
}

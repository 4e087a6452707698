package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"mariposa/driver"
)

// TestFollowingAcrossRotations writes and reads in turns, with rotations at
// every possible place between.
func TestFollowingAcrossRotations(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	log, err := Open(path, 250, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.file.Close() }()
	r := &reader{ctx: t.Context(), path: path, keep: 3, closed: make(chan struct{})}
	r.open(driver.LogOptions{Tail: -1, Follow: true})
	defer r.Close()
	var want, got bytes.Buffer
	buffer := make([]byte, 64)
	for n := range 2000 {
		line := fmt.Sprintf("line %d\n", n)
		want.WriteString(line)
		if _, err := log.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if n%17 != 0 { // never further behind than the kept files reach
			continue
		}
		for {
			k, err := r.readNow(buffer)
			got.Write(buffer[:k])
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.HasPrefix(want.Bytes(), got.Bytes()) || got.Len() < want.Len()-400 {
		t.Errorf("read %d of %d bytes, not the same", got.Len(), want.Len())
	}
}

func TestTailAcrossFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []string // the oldest first
		tail  int
		want  string
	}{
		"within one":          {[]string{"a\nb\nc\n"}, 2, "b\nc\n"},
		"more than there are": {[]string{"a\nb\n"}, 9, "a\nb\n"},
		"none":                {[]string{"a\nb\n"}, 0, ""},
		"an unfinished line":  {[]string{"a\nb\nc"}, 2, "b\nc"},
		"across two":          {[]string{"a\nb\n", "c\nd\n"}, 3, "b\nc\nd\n"},
		"exactly the newest":  {[]string{"a\nb\n", "c\nd\n"}, 2, "c\nd\n"},
		"a line in two files": {[]string{"a\nb", "b\nc\n"}, 2, "bb\nc\n"},
		"an empty newest":     {[]string{"a\nb\n", ""}, 1, "b\n"},
		"three files":         {[]string{"a\n", "b\n", "c\n"}, 3, "a\nb\nc\n"},
		"nothing at all":      {nil, 3, ""},
	} {
		path := filepath.Join(t.TempDir(), "log")
		for n, text := range c.files {
			if err := os.WriteFile(rotated(path, len(c.files)-1-n), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r := &reader{ctx: t.Context(), path: path, keep: 3, closed: make(chan struct{})}
		r.open(driver.LogOptions{Tail: c.tail})
		got, err := io.ReadAll(r)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %q (%v), want %q", name, got, err, c.want)
		}
		_ = r.Close()
	}
}

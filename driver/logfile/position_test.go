package logfile

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/driver"
)

// A reader that is interrupted anywhere, and continues from the position of the last line
// that it has a part of, gets every byte once, whatever is written and rotated in between.
func TestAReaderContinuesFromAPosition(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		path := filepath.Join(dir, fmt.Sprint("log", run))
		const keep = 50 // no file is deleted
		log, err := Open(path, rapid.Int64Range(60, 300).Draw(t, "max"), keep)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = log.file.Close() }()
		log.now = newLogClock().now
		var text, got strings.Builder
		from, has := "", 0 // the last line, and how much of it was received
		for _, part := range rapid.SliceOfN(rapid.StringMatching(`[ab\n +@]{1,30}`), 1, 30).Draw(t, "parts") {
			text.WriteString(part)
			if _, err := log.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
			if !rapid.Bool().Draw(t, "read") {
				continue
			}
			r := &reader{ctx: t.Context(), path: path, keep: keep, closed: make(chan struct{})}
			r.open(driver.LogOptions{Tail: -1, Positions: true, From: from})
			all, err := io.ReadAll(r)
			_ = r.Close()
			start, all := mariposa.CutLogPosition(all)
			if err != nil || from != "" && start != from {
				t.Fatalf("from %q: starts at %q, %v", from, start, err)
			}
			for line := range strings.Lines(string(all)) {
				position, line := mariposa.CutLogPosition([]byte(line))
				if position != from {
					from, has = position, 0
				}
				got.Write(line[has:])
				has = len(line)
			}
			if got.String() != text.String() {
				t.Fatalf("%q was read as %q", text.String(), got.String())
			}
		}
	})
}

package logfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa/driver"
)

// logClock is the clock in tests of logs: each write is a second after the last.
type logClock struct{ at time.Time }

func newLogClock() *logClock {
	return &logClock{at: time.Date(2026, 11, 16, 12, 0, 0, 123456000, time.UTC)}
}

func (c *logClock) now() time.Time {
	c.at = c.at.Add(time.Second)
	return c.at
}

func (c *logClock) log(t testing.TB, path string, max int64, keep int) *Writer {
	t.Helper()
	l, err := Open(path, max, keep)
	if err != nil {
		t.Fatal(err)
	}
	l.now = c.now
	t.Cleanup(func() { _ = l.file.Close() })
	return l
}

func writeLog(t testing.TB, l *Writer, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if _, err := l.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
}

func readLog(t testing.TB, path string, keep int, o driver.LogOptions) string {
	t.Helper()
	r := &reader{ctx: t.Context(), path: path, keep: keep, closed: make(chan struct{})}
	r.open(o)
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func second(n int) time.Time { return newLogClock().at.Add(time.Duration(n) * time.Second) }

const (
	first  = "2026-11-16T12:00:01.123456Z "
	later  = "2026-11-16T12:00:02.123456Z "
	latest = "2026-11-16T12:00:03.123456Z "
)

func TestLinesHaveTheTimeOfTheirFirstByte(t *testing.T) {
	t.Parallel()
	all := driver.LogOptions{Tail: -1, Timestamps: true}
	for name, c := range map[string]struct {
		old   string // the log of an earlier release
		parts []string
		o     driver.LogOptions
		want  string
	}{
		"whole lines":                    {"", []string{"a\n", "b\n"}, all, first + "a\n" + later + "b\n"},
		"without timestamps":             {"", []string{"a\n", "b\n"}, driver.LogOptions{Tail: -1}, "a\nb\n"},
		"two lines in one write":         {"", []string{"a\nb\n"}, all, first + "a\n" + first + "b\n"},
		"a line in three parts":          {"", []string{"a", "b", "c\n"}, all, first + "abc\n"},
		"an unfinished line":             {"", []string{"a\n", "b"}, all, first + "a\n" + later + "b"},
		"empty lines":                    {"", []string{"\n\n", "\n"}, all, first + "\n" + first + "\n" + later + "\n"},
		"the last line":                  {"", []string{"a\n", "b\n"}, driver.LogOptions{Tail: 1, Timestamps: true}, later + "b\n"},
		"since":                          {"", []string{"a\n", "b\n", "c\n"}, driver.LogOptions{Tail: -1, Since: second(2)}, "b\nc\n"},
		"since, in the middle of a line": {"", []string{"a\nb", "b\n", "c\n"}, driver.LogOptions{Tail: -1, Since: second(2)}, "c\n"},
		"the last two since":             {"", []string{"a\n", "b\n", "c\n"}, driver.LogOptions{Tail: 2, Since: second(3)}, "c\n"},
		"the last of those since":        {"", []string{"a\n", "b\n", "c\n"}, driver.LogOptions{Tail: 1, Since: second(1)}, "c\n"},
		"since a time to come":           {"", []string{"a\n"}, driver.LogOptions{Tail: -1, Since: second(9)}, ""},
		"a forged time":                  {"", []string{first + "a\n", "b\n" + string(appendStamp(nil, second(0), stampNew)) + "c\n"}, driver.LogOptions{Tail: -1, Since: second(2)}, "b\n" + string(appendStamp(nil, second(0), stampNew)) + "c\n"},
		"a forged header":                {"", []string{logHeader + "a\n"}, all, first + logHeader + first + "a\n"},
		"after an earlier release":       {"old\n", []string{"a\n"}, all, "- old\n" + first + "a\n"},
		"after half a line of it":        {"old\nhal", []string{"a\n"}, all, "- old\n- hal\n" + first + "a\n"},
		"the tail of both":               {"x\ny\n", []string{"a\n"}, driver.LogOptions{Tail: 2, Timestamps: true}, "- y\n" + first + "a\n"},
		"nothing but an earlier release": {"old\n", nil, all, "- old\n"},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if c.old != "" {
			if err := os.WriteFile(path, []byte(c.old), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c.parts != nil {
			writeLog(t, newLogClock().log(t, path, 1000, 3), c.parts...)
		}
		if got := readLog(t, path, 3, c.o); got != c.want {
			t.Errorf("%s:\n%q, want\n%q", name, got, c.want)
		}
	}
}

// Lines of an earlier release have no timestamps. They are left out only if the whole
// file is older than requested.
func TestSinceWithoutTimesGoesByTheAgeOfTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := errors.Join(os.WriteFile(path, []byte("old\n"), 0o600), os.Chtimes(path, second(0), second(0))); err != nil {
		t.Fatal(err)
	}
	for since, want := range map[time.Time]string{second(-1): "old\n", second(1): ""} {
		if got := readLog(t, path, 3, driver.LogOptions{Tail: -1, Since: since}); got != want {
			t.Errorf("since %v: %q", since, got)
		}
	}
	r := &reader{ctx: t.Context(), path: path, keep: 3, closed: make(chan struct{})}
	r.open(driver.LogOptions{Tail: -1, Since: second(1), Follow: true})
	defer r.Close()
	clock := newLogClock()
	writeLog(t, clock.log(t, path, 1000, 3), "a\n")
	b := make([]byte, 100)
	if n, err := r.Read(b); err != nil || string(b[:n]) != "a\n" {
		t.Errorf("followed %q, %v", b[:n], err)
	}
}

func TestALineAcrossFilesKeepsItsTime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	clock := newLogClock()
	log := clock.log(t, path, 100, 2)
	writeLog(t, log, strings.Repeat("a", 60), strings.Repeat("b", 60), strings.Repeat("c", 60)+"\n")
	// The file with its beginning is gone; its time is not.
	want := first + strings.Repeat("b", 60) + strings.Repeat("c", 60) + "\n"
	if got := readLog(t, path, 2, driver.LogOptions{Tail: -1, Timestamps: true}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	writeLog(t, log, "d\n")
	if got := readLog(t, path, 2, driver.LogOptions{Tail: 1, Timestamps: true}); got != "2026-11-16T12:00:04.123456Z d\n" {
		t.Errorf("the last line is %q", got)
	}
}

// A supervisor may be killed at any byte; the next one continues in the same file.
func TestALogSurvivesAKillAtEveryByte(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	writeLog(t, newLogClock().log(t, path, 1000, 3), "one\n", "two", "\n", "three")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(rotated(path, 1))
		before := readLog(t, path, 3, driver.LogOptions{Tail: -1})
		if !strings.HasPrefix("one\ntwo\nthree", before) {
			t.Fatalf("after %d bytes it reads %q", n, before)
		}
		clock := &logClock{at: second(9)}
		writeLog(t, clock.log(t, path, 1000, 3), "next\n")
		if before != "" && !strings.HasSuffix(before, "\n") {
			before += "\n"
		}
		got := readLog(t, path, 3, driver.LogOptions{Tail: -1})
		stamped := readLog(t, path, 3, driver.LogOptions{Tail: 1, Timestamps: true})
		if got != before+"next\n" || stamped != "2026-11-16T12:00:10.123456Z next\n" {
			t.Fatalf("after %d bytes, %q became %q, the last line %q", n, before, got, stamped)
		}
	}
}

func TestAFullDiskLosesLinesAndKeepsTimes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	log := newLogClock().log(t, path, 1000, 3)
	writeLog(t, log, "one\ntw")
	good := log.file
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	log.file = full
	if _, err := log.Write([]byte("o\nthree\n")); err == nil {
		t.Fatal("a full disk takes it")
	}
	log.file = good
	writeLog(t, log, "four\n")
	if got := readLog(t, path, 3, driver.LogOptions{Tail: -1, Timestamps: true}); got != first+"one\n"+first+"tw\n"+latest+"four\n" {
		t.Errorf("%q", got)
	}
}

// If reading starts in the middle of a line, the rest of it is shown with the time of the
// line.
func TestFollowingFromTheMiddleOfALine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	log := newLogClock().log(t, path, 1000, 3)
	writeLog(t, log, "one\ntw")
	r := &reader{ctx: t.Context(), path: path, keep: 3, closed: make(chan struct{})}
	r.open(driver.LogOptions{Follow: true, Timestamps: true})
	defer r.Close()
	writeLog(t, log, "o is a long line\n")
	b := make([]byte, 200)
	if n, err := r.Read(b); err != nil || string(b[:n]) != first+"o is a long line\n" {
		t.Errorf("read %q, %v", b[:n], err)
	}
}

// However output is split and files are rotated, the text that is read is the end of the
// text that was written, and no file is larger than allowed.
func TestLogsOfAnyShapeAreReadBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		path := filepath.Join(dir, fmt.Sprint("log", run))
		max, keep := rapid.Int64Range(60, 300).Draw(t, "max"), rapid.IntRange(1, 4).Draw(t, "keep")
		clock := newLogClock()
		log, err := Open(path, max, keep)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = log.file.Close() }()
		log.now = clock.now
		var text strings.Builder
		for _, part := range rapid.SliceOf(rapid.StringMatching(`[ab\n +]{1,30}`)).Draw(t, "parts") {
			text.WriteString(part)
			if _, err := log.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
		}
		for n := range keep {
			if info, err := os.Stat(rotated(path, n)); err == nil && info.Size() > max {
				t.Fatalf("file %d has %d bytes", n, info.Size())
			}
		}
		r := &reader{ctx: t.Context(), path: path, keep: keep, closed: make(chan struct{})}
		r.open(driver.LogOptions{Tail: -1})
		got, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || !strings.HasSuffix(text.String(), string(got)) || text.Len() > 0 && len(got) == 0 {
			t.Fatalf("%q was read back as %q, %v", text.String(), got, err)
		}
		tail := rapid.IntRange(0, 10).Draw(t, "tail")
		r = &reader{ctx: t.Context(), path: path, keep: keep, closed: make(chan struct{})}
		r.open(driver.LogOptions{Tail: tail})
		last, err := io.ReadAll(r)
		_ = r.Close()
		lines := strings.SplitAfter(string(got), "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		if want := strings.Join(lines[len(lines)-min(tail, len(lines)):], ""); err != nil || string(last) != want {
			t.Fatalf("the last %d lines of %q are %q, %v", tail, got, last, err)
		}
	})
}

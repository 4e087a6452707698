package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// An interrupt ends a prompt immediately, without waiting for the line.
func TestAQuestionCanBeInterrupted(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		release := make(chan struct{})
		wait := func() (string, error) {
			cancel()
			<-release
			return "", io.EOF
		}
		var stderr bytes.Buffer
		a := &app{env: Env{Stdin: reading(wait), Stderr: &stderr, Secret: func(any) (string, error) { return wait() }}.withDefaults()}
		_, err := a.ask(ctx, "password: ", hidden)
		close(release)
		if !errors.Is(err, errInterrupted) || stderr.String() != "password: \n" {
			t.Errorf("hidden %v: got %v after %q", hidden, err, stderr.String())
		}
	}
}

// reading is a reader that calls a function.
type reading func() (string, error)

func (r reading) Read(p []byte) (int, error) {
	s, err := r()
	return copy(p, s), err
}

func TestSizesAreReadAsTheyAreShown(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<50).Draw(t, "bytes")
		if got, err := readSize("memory", sizeOfBytes(n)); err != nil || got != n {
			t.Fatalf("%d is shown as %s and read as %d, %v", n, sizeOfBytes(n), got, err)
		}
	})
	for _, wrong := range []string{"", "m", "-1m", "1e400", "9999999t", "nan", "inf", "1 g", "1gg", "0x1g"} {
		if n, err := readSize("memory", wrong); err == nil {
			t.Errorf("%q is read as %d", wrong, n)
		}
	}
}

func TestWhatIsLeftIsRoundedToTheNearestUnit(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		90*day - 3*time.Second: "90d", 90*day - 13*time.Hour: "89d", 2*day - time.Second: "2d", 12*time.Hour - time.Second: "12h",
		2*time.Hour - time.Second: "2h", time.Hour - time.Second: "60m", 1400 * time.Millisecond: "1s",
	} {
		if got := remainingTime(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

func TestTimesAreReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	now := noon.In(time.FixedZone("here", 2*60*60))
	for text, want := range map[string]time.Time{
		"":                     {},
		"2026-02-28T12:00:00Z": noon.AddDate(0, 0, -1),
		"2026-02-28 14:00":     noon.AddDate(0, 0, -1),
		"2026-02-28":           noon.AddDate(0, 0, -1).Add(-14 * time.Hour),
		"24h":                  noon.AddDate(0, 0, -1),
		"1d":                   noon.AddDate(0, 0, -1),
		"1h30m":                noon.Add(-90 * time.Minute),
	} {
		if got, err := readTime("since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is read as %v, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"yesterday", "-1h", "-1d", "99999999d", "d", "12"} {
		if got, err := readTime("since", wrong, now); err == nil {
			t.Errorf("%q is read as %v", wrong, got)
		}
	}
}

package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/contract"
	"mariposa/seal"
)

// eventsOf returns a log as events, converted in pieces.
func eventsOf(t *rapid.T, log string, mask *seal.Mask, after logID) string {
	e := newLogEvents(after, true)
	raw, err := io.ReadAll(e.readStart(strings.NewReader(log)))
	if err != nil {
		t.Fatal(err)
	}
	var masked bytes.Buffer
	w := mask.Writer(&masked)
	stamps := stampSplitter{}
	for size := rapid.IntRange(1, 40).Draw(t, "piece"); len(raw) > 0; raw = raw[min(size, len(raw)):] {
		if err := stamps.write(w, raw[:min(size, len(raw))]); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Flush()
	select {
	case start := <-e.started:
		e.begin(start)
	default:
	}
	size := rapid.IntRange(1, 40).Draw(t, "part")
	for b := masked.Bytes(); len(b) > 0; b = b[min(size, len(b)):] {
		e.add(b[:min(size, len(b))])
	}
	return e.out.String()
}

// A client that is interrupted after any event continues with the next byte.
func TestALogContinuesAfterAnyEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		mask := seal.NewMask(rapid.SliceOfN(rapid.SampledFrom([]string{"secret", "two\nlines here", "with feed\n"}), 0, 3).Draw(t, "secrets"))
		texts := rapid.SliceOfN(rapid.SampledFrom([]string{"", "plain", "a secret b", "two", "lines here", "with feed", "@x y", "\xff\xfe", "sec"}), 1, 8).Draw(t, "lines")
		var from []string // the log from each line on
		for n := range texts {
			var b strings.Builder
			b.Write(mariposa.LogStart(fmt.Sprint("p", n)))
			for k := n; k < len(texts); k++ {
				fmt.Fprintf(&b, "@p%d 2026-11-16T12:43:08.00000%dZ %s\n", k, k, texts[k])
			}
			from = append(from, b.String())
		}
		whole, ids := partsOf(t, eventsOf(t, from[0], mask, logID{}))
		stop := rapid.IntRange(0, len(ids)-1).Draw(t, "stop")
		id, err := parseLogID(ids[stop].id)
		if err != nil {
			t.Fatal(err)
		}
		var line int
		if _, err := fmt.Sscanf(id.position, "p%d", &line); err != nil {
			t.Fatal(err)
		}
		rest, _ := partsOf(t, eventsOf(t, from[line], mask, id))
		if whole[:ids[stop].at]+rest != whole {
			t.Fatalf("%q, interrupted after %d bytes, continues with %q", whole, ids[stop].at, rest)
		}
	})
}

type part struct {
	id string
	at int // the length of the text up to here
}

// partsOf returns the text of events, and how much of it the client has after each.
func partsOf(t *rapid.T, events string) (text string, ids []part) {
	var b strings.Builder
	id := ""
	for lines := bufio.NewScanner(strings.NewReader(events)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "id":
			id = value
		case "event":
			t.Fatalf("there is a gap: %s", events)
		case "data":
			var line contract.LogLine
			if err := json.Unmarshal([]byte(value), &line); err != nil {
				t.Fatal(err)
			}
			b.WriteString(line.Text)
			b.Write(line.Bytes)
			if !line.Partial {
				b.WriteString("\n")
			}
		case "":
			ids = append(ids, part{id, b.Len()})
		}
	}
	return b.String(), ids
}

func TestALogWithAGapSaysSo(t *testing.T) {
	t.Parallel()
	e := newLogEvents(logID{"gone", 7}, true)
	e.begin("other")
	e.add([]byte("@other - a line\n"))
	if got := e.out.String(); !strings.Contains(got, "event: gap\n") || !strings.Contains(got, "id: other:7\ndata: {\"text\":\"a line\"}") {
		t.Errorf("%s", got)
	}
	for _, id := range []string{"x", ":1", "a b:1", "a:-1", "a:x", "a\nb:1"} {
		if _, err := parseLogID(id); err == nil {
			t.Errorf("%q is an id", id)
		}
	}
}

package manifest

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"
)

func TestATextInQuotesEndsBehindTheQuoteThatClosesIt(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same texts each time
	inside := map[string][]string{`"`: {"a", "'", `\"`, `\\`, "\n", "ä"}, `'`: {"a", `"`, `\`, "''", "\n", "ä"}}
	for range 10_000 {
		for quote, pieces := range inside {
			text := quote
			for range chance.IntN(8) {
				text += pieces[chance.IntN(len(pieces))]
			}
			text += quote
			for _, behind := range []string{"", "\n", ` # "it's"`, ", b: 'x'}"} {
				if got := quotedEnd([]byte("k: "+text+behind), 3); got != 3+len(text) {
					t.Fatalf("%s ends at %d before %q", text, got, behind)
				}
			}
			if got := quotedEnd([]byte("k: "+text[:len(text)-1]), 3); got != 3 && quote == `"` {
				t.Fatalf("%s, without its end, ends at %d", text, got)
			}
		}
	}
}

// Setting a value makes the server search for its end several times, which took seconds
// for four values of a megabyte.
func TestTheEndOfALargeValueIsFoundQuickly(t *testing.T) {
	t.Parallel()
	doc := append(append([]byte(`key: "`), bytes.Repeat([]byte("x"), MaxValue/16)...), '"', '\n')
	pg, err := readValuesDocument(doc)
	if err != nil {
		t.Fatal(err)
	}
	inQuotes := regexp.MustCompile(`^(?s:"(?:\\.|[^"\\])*")`)
	locate, search := time.Hour, time.Hour
	for range 3 {
		start := time.Now()
		pg.entries = nil
		pg.locate()
		locate = min(locate, time.Since(start))
		start = time.Now()
		inQuotes.Find(doc[5:])
		search = min(search, time.Since(start))
	}
	if locate > search {
		t.Errorf("it took %v; a regular expression takes %v", locate, search)
	}
}

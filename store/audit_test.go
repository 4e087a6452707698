package store_test

import (
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/store"
)

// Stores use times to limit the ids that they read. That is correct only if ids and times
// stay consistent, whatever the clock does.
func TestIdsGrowAndTellWhenAnEntryCanHaveBeenMade(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var mark store.AuditMark
		type made struct{ id, micro int64 }
		var all []made
		now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
		for _, step := range rapid.SliceOf(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(-3e9, 3e9))).Draw(t, "steps") {
			now = now.Add(time.Duration(step))
			last := mark.Last
			id := mark.Next(now)
			if id <= last || id != mark.Last {
				t.Fatalf("%d after %d", id, last)
			}
			all = append(all, made{id, now.UnixMicro()})
		}
		for _, e := range all {
			if e.micro > e.id || e.micro < e.id-mark.Lag {
				t.Fatalf("entry %d was made in %d; the lag is %d", e.id, e.micro, mark.Lag)
			}
		}
	})
}

func TestNoFieldOfAnEntryIsForgottenInCleaning(t *testing.T) {
	t.Parallel()
	var a mariposa.Audit
	dirty := strings.Repeat("é\x00\xff", 5000)
	for _, field := range reflect.ValueOf(&a).Elem().Fields() {
		if field.Kind() == reflect.String {
			field.SetString(dirty)
		}
	}
	clean := store.CleanAudit(a)
	for name, field := range reflect.ValueOf(clean).Fields() {
		if field.Kind() != reflect.String {
			continue
		}
		if s := field.String(); !utf8.ValidString(s) || strings.Contains(s, "\x00") || len(s) > 4000 || !strings.HasPrefix(s, "é\uFFFD\uFFFDé") {
			t.Errorf("%s: %.20q…, %d bytes", name.Name, s, len(s))
		}
	}
	if again := store.CleanAudit(clean); again != clean {
		t.Error("what is clean is changed")
	}
	for s, want := range map[string]string{"": "", "über": "über", strings.Repeat("x", 500): strings.Repeat("x", 500), strings.Repeat("x", 501): strings.Repeat("x", 500)} {
		if got := store.CleanAudit(mariposa.Audit{Actor: s}).Actor; got != want {
			t.Errorf("%.10q of %d bytes becomes %.10q of %d", s, len(s), got, len(got))
		}
	}
}

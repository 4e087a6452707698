package assembly

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"mariposa/clock/clocktest"
)

// Ids follow the clock that all replicas share, and grow although the clock stands still
// or goes back.
func TestIDsGrow(t *testing.T) {
	c := clocktest.New()
	s := &ids{clock: c}
	last := ""
	grow := func(n int) {
		t.Helper()
		for range n {
			id := s.next()
			if u, err := uuid.Parse(id); err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
				t.Fatalf("%s is not a UUID of version 7: %v", id, err)
			}
			if id <= last {
				t.Fatalf("%s after %s", id, last)
			}
			last = id
		}
	}
	grow(10000) // more than a millisecond has fractions
	c.Pass(time.Hour)
	grow(1)
	sec, _ := uuid.MustParse(last).Time().UnixTime()
	if got, want := time.Unix(sec, 0), c.Now(); want.Sub(got).Abs() > time.Second {
		t.Errorf("an id of %s says %s", want, got)
	}
	s.clock = clocktest.New()
	grow(10)
}

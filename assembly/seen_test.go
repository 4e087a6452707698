package assembly

import (
	"path/filepath"
	"testing"
	"time"

	"mariposa/wire"
)

// Each state is stored soon, also one that quickly follows another and is the last.
func TestTheLastStateThatANodeHasSeenIsStored(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "seen.json")
	f := &seenFile{path: path}
	stored := func() int64 { return (&seenFile{path: path}).read().Revision }
	for revision := range int64(3) {
		f.write(wire.Seen{Incarnation: "i1", Revision: 7 + revision})
	}
	if got := stored(); got != 7 {
		t.Errorf("the first is not stored at once: %d", got)
	}
	for deadline := time.Now().Add(time.Minute); stored() != 9; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("stored is %d", stored())
		}
	}
	f.write(wire.Seen{Incarnation: "i2", Revision: 3})
	if got := stored(); got != 3 {
		t.Errorf("the first of another incarnation is not stored at once: %d", got)
	}
}

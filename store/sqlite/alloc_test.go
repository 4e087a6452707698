package sqlite

import (
	"path/filepath"
	"testing"

	"mariposa/store/storetest"
)

func TestAWriteAllocatesLittle(t *testing.T) {
	storetest.GuardAllocations(t, open(t, filepath.Join(t.TempDir(), "store"), Options{}), 40)
}

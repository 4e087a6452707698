package codec

import (
	"hash/maphash"
	"sync/atomic"

	"mariposa"
)

// shared are reasons that were read lately. Instances made together have equal
// ones, and keep one copy among them. Reasons are never changed.
var (
	sharedReasons [256]atomic.Pointer[mariposa.Reason]
	hashSeed      = maphash.MakeSeed()
)

// shareReason is a reason that says the same, and is one that others have where there is
// such a one.
func shareReason(r *mariposa.Reason) *mariposa.Reason {
	if r == nil {
		return nil
	}
	h := maphash.String(hashSeed, r.Subject+r.Detail) + maphash.String(hashSeed, string(r.Code)) + uint64(r.Count) + uint64(r.Version)
	at := &sharedReasons[h%uint64(len(sharedReasons))]
	if old := at.Load(); old.Equal(r) {
		return old
	}
	at.Store(r)
	return r
}

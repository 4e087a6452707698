package codec

import (
	"hash/maphash"
	"sync/atomic"

	"mariposa"
)

// sharedReasons caches recently read reasons. Instances created together have equal
// ones, and share one copy. Reasons are never changed.
var (
	sharedReasons [256]atomic.Pointer[mariposa.Reason]
	hashSeed      = maphash.MakeSeed()
)

// shareReason returns an equal reason, shared with other instances if possible.
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

package assembly

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/uuid"

	"mariposa/clock"
)

// NewID returns a new id; ids grow with time.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// ids generates ids that grow with the time of a clock, and with every call: UUIDs of
// version 7, with fractions of milliseconds in their 12 bits after the version.
type ids struct {
	clock clock.Clock

	mu   sync.Mutex
	last uint64 // milliseconds and fractions of the newest id
}

func (s *ids) next() string {
	now := s.clock.Now()
	at := uint64(now.UnixMilli())<<12 | uint64(now.Nanosecond()%int(time.Millisecond))>>8
	s.mu.Lock()
	s.last = max(at, s.last+1)
	at = s.last
	s.mu.Unlock()
	var id uuid.UUID
	_, _ = rand.Read(id[8:]) // never fails
	binary.BigEndian.PutUint64(id[:8], at>>12<<16|7<<12|at&0xfff)
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

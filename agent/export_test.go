package agent

import "time"

// All returns the servers that a link tries.
func (l Link) All() []string { return l.all() }

// Pacer exports the pauses between attempts to connect.
type Pacer struct{ pacer }

// Next returns the pause after a session, or an attempt without one, that was not refused.
func (p *Pacer) Next(lasted time.Duration) time.Duration {
	return p.next(lasted, firstPause, lastPause)
}

package kvm

import (
	"context"
	"encoding/json"
	"time"

	"mariposa/driver/supervise"
)

// QEMU pauses a machine that writes to a disk for which the node has no room, so that the guest
// loses nothing. The supervisor lets it continue once there is room.

// resumeInterval is how often a paused machine is tried again.
const resumeInterval = 5 * time.Second

// pause is what the supervisor knows of a machine that is paused. The supervisor's mutex guards it.
type pause struct {
	reason string // why it is paused; empty if it is not
	again  bool   // it was paused since it was last tried
}

// reasonFull is the reason of a pause.
const reasonFull = "the disk of the node is full: free some space, and it continues"

// handleError handles an error of a disk. The caller holds the mutex.
func (s *supervisor) handleError(data json.RawMessage) {
	var e struct {
		Action string `json:"action"`
	}
	if json.Unmarshal(data, &e) != nil || e.Action != "stop" {
		return // the guest handles it
	}
	s.pause.again = true
	if s.pause.reason == "" {
		s.pause.reason = reasonFull // QEMU pauses for nothing else
		select {
		case s.paused <- struct{}{}:
		default: // it is not handled yet
		}
	}
}

// resume lets a paused machine continue. It returns true once the machine has run for a while.
func (s *supervisor) resume() bool {
	s.mu.Lock()
	runs := !s.pause.again
	s.pause.again = false
	if runs {
		s.pause.reason = ""
	}
	s.mu.Unlock()
	if runs {
		s.tellWatchers()
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), supervise.Timeout)
	defer cancel()
	if s.qmp.Run(ctx, "cont", nil, nil) != nil { // it is tried again
		s.mu.Lock()
		s.pause.again = true
		s.mu.Unlock()
	}
	return false
}

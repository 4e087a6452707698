package kvm

import (
	"context"
	"net"
	"time"

	"mariposa/driver/supervise"
)

// watchChanges reports that a machine was restarted by its guest, was paused, or continues: its
// supervisor says so. The caller holds the entry.
func (d *Driver) watchChanges(e *entry) {
	gone := e.Gone
	d.gate.Go(func() {
		conn, out, _, err := dial(d.ctx, e.Dir, order{Do: orderWatch})
		if err != nil {
			return // it has just ended, which is noticed otherwise
		}
		defer conn.Close() // it was only read
		stop := context.AfterFunc(d.ctx, func() { _ = conn.SetDeadline(time.Now()) })
		defer stop()
		for d.handleChange(e, gone) { // first what has changed before
			if _, err := out.ReadByte(); err != nil {
				return
			}
		}
	})
}

// handleChange reports what a machine does now. It returns false if it has ended.
func (d *Driver) handleChange(e *entry, gone chan struct{}) bool {
	if e.Acquire(d.ctx) != nil {
		return false
	}
	defer e.Release()
	if !e.Live || e.Gone != gone {
		return false
	}
	s, ok := supervise.ReadState(e.Dir, e.record.Run)
	if !ok {
		s = e.State
	}
	ctx, cancel := context.WithTimeout(d.ctx, supervise.Timeout)
	defer cancel()
	a, err := tell(ctx, e.Dir, order{Do: orderStatus})
	if err != nil { // of an earlier version, or it has just ended
		a.Paused = e.paused
	}
	if s != e.State || a.Paused != e.paused {
		e.State, e.paused = s, a.Paused
		d.refresh(e)
		d.roster.TellChange(e)
	}
	return true
}

// tellWatchers tells the agent that the state has changed.
func (s *supervisor) tellWatchers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.watchers {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := conn.Write([]byte{'\n'}); err != nil {
			_ = conn.Close() // an agent that hangs asks again when it is restarted
			delete(s.watchers, conn)
		}
	}
}

// addWatcher keeps a connection until its other end is closed.
func (s *supervisor) addWatcher(conn net.Conn) {
	s.mu.Lock()
	if s.watchers == nil {
		s.watchers = map[net.Conn]struct{}{}
	}
	s.watchers[conn] = struct{}{}
	s.mu.Unlock()
	_, _ = conn.Read(make([]byte, 1)) // nothing is sent
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, conn)
}

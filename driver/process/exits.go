package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// exits reports when processes end, with one goroutine for all of them, which waits
// on their pidfds in one epoll set. It owns every pidfd that it watches.
type exits struct {
	epoll int
	wake  int // an eventfd that ends the loop
	gone  func(*entry, chan struct{})
	done  chan struct{}

	mu      sync.Mutex
	watched map[int32]watched
}

type watched struct {
	e     *entry
	gone  chan struct{}
	ended bool
}

func watchExits(gone func(*entry, chan struct{})) (*exits, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot watch processes: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("cannot watch processes: %w", err)
	}
	x := &exits{epoll: epoll, wake: wake, gone: gone, done: make(chan struct{}), watched: map[int32]watched{}}
	if err := x.add(wake); err != nil {
		_, _ = unix.Close(epoll), unix.Close(wake)
		return nil, fmt.Errorf("cannot watch processes: %w", err)
	}
	go x.loop()
	return x, nil
}

func (x *exits) add(fd int) error {
	return unix.EpollCtl(x.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// watch takes ownership of a pidfd and replaces the entry's gone channel, which is closed
// when the process has ended. The caller holds the entry.
func (x *exits) watch(e *entry, pidfd int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.add(pidfd); err != nil {
		return fmt.Errorf("cannot watch the process: %w", err)
	}
	e.pidfd, e.gone = pidfd, make(chan struct{})
	x.watched[int32(pidfd)] = watched{e: e, gone: e.gone}
	return nil
}

func (x *exits) loop() {
	defer close(x.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(x.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			panic("epoll_wait: " + err.Error()) // the epoll set was closed, which is a bug
		}
		for _, ev := range events[:n] {
			if ev.Fd == int32(x.wake) {
				return
			}
			x.ended(ev.Fd)
		}
	}
}

func (x *exits) ended(fd int32) {
	// Only the zombie of a shim that this agent started can be reaped here. For one that
	// an earlier agent started, this fails as expected.
	_ = unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
	x.mu.Lock()
	w, ok := x.watched[fd]
	_ = unix.EpollCtl(x.epoll, unix.EPOLL_CTL_DEL, int(fd), nil)
	// The pidfd is not closed here: an operation may be about to send a signal through
	// it, and its number must not refer to another process by then.
	if ok && !w.ended {
		w.ended = true
		x.watched[fd] = w
		close(w.gone)
	}
	x.mu.Unlock()
	if ok {
		x.gone(w.e, w.gone)
	}
}

// release closes the pidfd of a process whose end is handled. The caller holds the entry.
func (x *exits) release(e *entry) {
	if e.pidfd < 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.watched, int32(e.pidfd))
	_ = unix.Close(e.pidfd)
	e.pidfd = -1
}

// close ends the loop and closes every pidfd that was not released.
func (x *exits) close() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(x.wake, one[:])
	<-x.done
	for fd := range x.watched {
		_ = unix.Close(int(fd))
	}
	_, _ = unix.Close(x.epoll), unix.Close(x.wake)
}

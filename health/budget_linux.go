package health

import (
	"time"

	"golang.org/x/sys/unix"
)

// processorTime returns how long this thread has used the processor.
func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil { // a kernel without it does not run this program
		return 0
	}
	return time.Duration(t.Nano())
}

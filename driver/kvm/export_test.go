package kvm

import "time"

// SetDiskTimeout makes starts wait shorter for a disk that another process has.
func SetDiskTimeout(d time.Duration) { diskTimeout = d }

package wire

import "time"

// WriteWithin sets how long a single write may take. Call it before the first pipe.
func WriteWithin(d time.Duration) { writeTimeout = d }

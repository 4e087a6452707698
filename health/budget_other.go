//go:build !linux

package health

import "time"

var began = time.Now()

// processorTime returns the time that has passed: there is no better measure.
func processorTime() time.Duration { return time.Since(began) }

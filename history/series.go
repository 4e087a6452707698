package history

// A series is the values of one thing, by interval. Values that stay the same take one entry, so
// what is steady costs next to nothing. Intervals without a value are gaps.
type series[V comparable] struct {
	runs []run[V] // in the order of time
}

// run is a value that lasted from one interval to another, both included.
type run[V comparable] struct {
	from, to int32
	value    V
}

// set records the value of an interval, which must not be earlier than the last one, and returns by
// how many entries the series has grown.
func (s *series[V]) set(at int32, value V) int {
	if n := len(s.runs); n > 0 {
		last := &s.runs[n-1]
		switch {
		case last.value == value && last.to >= at-1:
			last.to = max(last.to, at)
			return 0
		case last.to >= at: // a second value for the interval: the newer one counts
			if last.from >= at {
				last.value = value
				return 0
			}
			last.to = at - 1
		}
	}
	s.runs = append(s.runs, run[V]{at, at, value})
	return 1
}

// trim forgets what is before an interval, and returns by how many entries the series has shrunk.
func (s *series[V]) trim(before int32) int {
	n := 0
	for n < len(s.runs) && s.runs[n].to < before {
		n++
	}
	if n > 0 {
		s.runs = append(s.runs[:0:0], s.runs[n:]...) // a copy, so that memory is given back
	}
	if len(s.runs) > 0 {
		s.runs[0].from = max(s.runs[0].from, before)
	}
	return n
}

// read merges the values of intervals into steps of several, beginning with an interval. Steps
// without a value are nil. times returns the value of so many intervals with the same value.
func (s *series[V]) read(from int32, step, steps int, times func(V, int) V, merge func(a, b V) V) []*V {
	out := make([]*V, steps)
	for _, r := range s.runs {
		begin, end := max(int(r.from-from), 0), min(int(r.to-from), step*steps-1)
		for n := begin / step; n*step <= end; n++ {
			value := times(r.value, min(end, n*step+step-1)-max(begin, n*step)+1)
			if out[n] != nil {
				value = merge(*out[n], value)
			}
			out[n] = &value
		}
	}
	return out
}

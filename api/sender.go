package api

import (
	"bufio"
	"net/http"
	"sync"
	"time"
)

// sender writes to a stream and records the time of the last write and its first
// error.
type sender struct {
	w       http.ResponseWriter
	control *http.ResponseController
	last    time.Time
	err     error
}

func (o *sender) send(texts ...[]byte) {
	if len(texts) == 0 || len(texts[0]) == 0 || o.err != nil {
		return
	}
	_ = o.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // if it cannot be set, TCP detects a dead client
	if o.err = o.write(texts); o.err == nil {
		o.err = o.control.Flush()
	}
	o.last = time.Now()
}

// write writes small texts together.
func (o *sender) write(texts [][]byte) error {
	b := writers.Get().(*bufio.Writer) //nolint:forcetypeassert // the pool has nothing else
	defer writers.Put(b)
	b.Reset(o.w)
	defer b.Reset(nil)
	for i, text := range texts {
		if _, err := b.Write(text); err != nil {
			return err
		}
		texts[i] = nil // it may be large
	}
	return b.Flush()
}

var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 32<<10) }}

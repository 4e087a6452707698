package seal

import "io"

// Writer returns a writer that masks what goes through it. Whatever pieces a text
// comes in, it is masked as Text masks the whole.
func (m *Mask) Writer(w io.Writer) *MaskWriter {
	mw := &MaskWriter{out: w}
	if m != nil {
		mw.words = m.words
	}
	return mw
}

// MaskWriter masks a stream. It holds back an end that may be the beginning of a
// secret, and nothing else. It is not safe for concurrent use.
type MaskWriter struct {
	out   io.Writer
	words *automaton // nil: there is nothing to mask
	state int32
	err   error // the first error of out; nothing is written after it

	// Positions count the bytes since the beginning of the stream.
	pending []byte // what may still turn out to be part of a secret, after some that is done with
	done    int    // how much of held is done with
	base    int64  // the position of held[0]
	hidden  []span // in what is held, in order, apart from each other
	until   int64  // the end of the last span that Masked was already written for
	ready   []byte // to be written
}

// span is bytes from one position to before another.
type span struct{ from, to int64 }

// piece is how much of a long write is looked at before some of it is let out.
const piece = 64 << 10

// Write masks p and writes what is certain by now.
func (w *MaskWriter) Write(p []byte) (int, error) {
	if w.words == nil && w.err == nil {
		return w.out.Write(p)
	}
	n := 0
	for n < len(p) && w.err == nil {
		part := p[n:min(n+piece, len(p))]
		w.read(part)
		w.release(w.end() - int64(w.words.begun(w.state)))
		n += len(part)
	}
	if w.err != nil {
		return 0, w.err
	}
	return n, nil
}

// Flush writes what is held back: nothing more of it is to come. If a secret was
// cut in two there, its first part is shown.
func (w *MaskWriter) Flush() error {
	if w.err == nil && w.words != nil {
		w.release(w.end())
		w.state = 0
	}
	return w.err
}

// Close flushes. What is written to stays open.
func (w *MaskWriter) Close() error { return w.Flush() }

func (w *MaskWriter) end() int64 { return w.base + int64(len(w.pending)) }

// read follows the words through a part of the stream and keeps it.
func (w *MaskWriter) read(part []byte) {
	position, state := w.end(), w.state
	for _, c := range part {
		position++
		state = w.words.step(state, c)
		if n := w.words.found(state); n > 0 {
			w.hide(span{position - int64(n), position})
		}
	}
	w.state = state
	w.pending = append(w.pending, part...)
}

// hide adds a span that ends where the stream does. Those it overlaps become one
// with it.
func (w *MaskWriter) hide(s span) {
	for len(w.hidden) > 0 && w.hidden[len(w.hidden)-1].to > s.from {
		last := len(w.hidden) - 1
		s.from = min(s.from, w.hidden[last].from)
		w.hidden = w.hidden[:last]
	}
	if s.from < w.until {
		w.until = s.to // a Masked stands for it already
		return
	}
	w.hidden = append(w.hidden, s)
}

// release writes what is held up to a position, which no further word begins
// before.
func (w *MaskWriter) release(to int64) {
	w.ready = w.ready[:0]
	spans := 0
	for _, s := range w.hidden {
		if s.from >= to {
			break
		}
		w.writeTo(s.from)
		w.ready = append(w.ready, Masked...)
		w.until = s.to
		spans++
	}
	w.hidden = w.hidden[spans:]
	w.writeTo(to)
	if len(w.ready) > 0 {
		_, w.err = w.out.Write(w.ready)
	}
	// What is done with goes in one move once it is the greater part, so that a
	// long tail is not moved for each byte.
	if w.done > len(w.pending)/2 {
		w.base += int64(w.done)
		w.pending = append(w.pending[:0], w.pending[w.done:]...)
		w.done = 0
	}
}

// writeTo makes ready what is not hidden up to a position.
func (w *MaskWriter) writeTo(to int64) {
	from := max(w.base+int64(w.done), min(w.until, to))
	if from < to {
		w.ready = append(w.ready, w.pending[from-w.base:to-w.base]...)
	}
	w.done = max(w.done, int(to-w.base))
}

package seal

import (
	"bytes"
	"io"
)

// Writer returns a writer that masks its input. However the text is split into writes,
// the result is the same as that of Text for the whole.
func (m *Mask) Writer(w io.Writer) *MaskWriter {
	mw := &MaskWriter{out: w}
	if m != nil {
		mw.words = m.words
	}
	return mw
}

// MaskWriter masks a stream. It holds back only a suffix that may be the beginning of
// a secret. It is not safe for concurrent use.
type MaskWriter struct {
	out   io.Writer
	words *automaton // nil: there is nothing to mask
	state int32
	err   error // the first error of out; nothing is written after it

	// Positions count the bytes since the beginning of the stream.
	pending []byte // bytes that may still be part of a secret, after some that are done
	done    int    // how many bytes of pending are done
	base    int64  // the position of pending[0]
	hidden  []span // in pending, in order, without overlap
	until   int64  // the end of the last span for which Masked is written
	lines   []line // beginnings of lines that are not written yet
	ready   []byte // to be written
	inLine  bool   // the last byte written was no line feed
}

// line is the beginning of a line of the input, and the prefix before it in the output.
type line struct {
	at     int64
	prefix string
}

// span is the bytes from one position up to another, exclusive.
type span struct{ from, to int64 }

// piece is how much of a long write is read before some of it is released.
const piece = 64 << 10

// Write masks p and writes all bytes that can no longer be part of a secret.
func (w *MaskWriter) Write(p []byte) (int, error) {
	if w.words == nil && w.err == nil {
		return w.out.Write(p)
	}
	n := 0
	for n < len(p) && w.err == nil {
		part := p[n:min(n+piece, len(p))]
		w.read(part)
		w.release(w.end() - int64(w.words.prefixLength(w.state)))
		n += len(part)
	}
	if w.err != nil {
		return 0, w.err
	}
	return n, nil
}

// BeginLine marks the beginning of a line of the input, and adds a prefix before it in
// the output. Secrets are found across prefixes: one inside a secret is left out.
func (w *MaskWriter) BeginLine(prefix string) {
	if w.words == nil {
		if w.err == nil {
			_, w.err = io.WriteString(w.out, prefix)
		}
		return
	}
	w.lines = append(w.lines, line{w.end(), prefix})
}

// Flush writes the bytes held back, at the end of the input. If a secret was cut in
// two there, its first part is shown.
func (w *MaskWriter) Flush() error {
	if w.err == nil && w.words != nil {
		w.release(w.end())
		w.state = 0
	}
	w.lines = nil // nothing came after them
	return w.err
}

// Close flushes. It does not close the underlying writer.
func (w *MaskWriter) Close() error { return w.Flush() }

// Discard ends the input without the bytes held back: the rest of a secret may follow
// later. If there is a whole secret among them, one Masked replaces all of them.
func (w *MaskWriter) Discard() error {
	if len(w.hidden) > 0 {
		return w.hideRest()
	}
	w.lines = nil
	return w.err
}

// CloseMasked flushes, and masks the first part of a secret that was cut in two at the
// end. A part that is shorter than any secret is shown: most texts end with one.
func (w *MaskWriter) CloseMasked() error {
	if w.words != nil && w.words.prefixLength(w.state) >= minSecret {
		return w.hideRest()
	}
	return w.Flush()
}

// hideRest flushes, with one Masked for all bytes held back.
func (w *MaskWriter) hideRest() error {
	if from := max(w.base+int64(w.done), w.until); from < w.end() {
		w.hidden = []span{{from, w.end()}}
	}
	return w.Flush()
}

// Switch continues with another mask, also for the bytes held back. A nil mask changes
// nothing: what was hidden stays hidden.
func (w *MaskWriter) Switch(m *Mask) {
	if m == nil || m.words == w.words || w.err != nil {
		return
	}
	from := max(w.base+int64(w.done), min(w.until, w.end()))
	held := bytes.Clone(w.pending[from-w.base:])
	w.words, w.state, w.hidden = m.words, 0, nil
	w.pending, w.done, w.base = w.pending[:0], 0, from
	w.read(held)
	w.release(w.end() - int64(w.words.prefixLength(w.state)))
}

func (w *MaskWriter) end() int64 { return w.base + int64(len(w.pending)) }

// read looks for words in a part of the stream and adds it to pending.
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

// hide adds a span that ends at the current position, merged with those it overlaps.
func (w *MaskWriter) hide(s span) {
	for len(w.hidden) > 0 && w.hidden[len(w.hidden)-1].to > s.from {
		last := len(w.hidden) - 1
		s.from = min(s.from, w.hidden[last].from)
		w.hidden = w.hidden[:last]
	}
	if s.from < w.until {
		w.until = s.to // Masked is already written for it
		return
	}
	w.hidden = append(w.hidden, s)
}

// release writes pending bytes up to a position; no later word begins before it.
func (w *MaskWriter) release(to int64) {
	w.ready = w.ready[:0]
	spans := 0
	for _, s := range w.hidden {
		if s.from >= to {
			break
		}
		w.writeTo(s.from)
		if len(w.lines) > 0 && w.lines[0].at == s.from && s.from >= w.until {
			w.writePrefix(w.lines[0].prefix)
			w.lines = w.lines[1:]
		}
		w.ready = append(w.ready, Masked...)
		w.until = s.to
		spans++
	}
	w.hidden = w.hidden[spans:]
	w.writeTo(to)
	if n := len(w.ready); n > 0 {
		w.inLine = w.ready[n-1] != '\n'
		_, w.err = w.out.Write(w.ready)
	}
	// Done bytes are dropped in one move once they are the greater part, so that a
	// long tail is not moved for each byte.
	if w.done > len(w.pending)/2 {
		w.base += int64(w.done)
		w.pending = append(w.pending[:0], w.pending[w.done:]...)
		w.done = 0
	}
}

// writeTo adds the bytes up to a position that are not hidden to ready, with the
// prefixes of the lines that begin before it.
func (w *MaskWriter) writeTo(to int64) {
	for len(w.lines) > 0 && w.lines[0].at < to {
		w.copyTo(w.lines[0].at)
		if w.lines[0].at >= w.until {
			w.writePrefix(w.lines[0].prefix)
		}
		w.lines = w.lines[1:]
	}
	w.copyTo(to)
}

// writePrefix adds the prefix of a line. If the end of the line before is hidden, the
// line begins all the same.
func (w *MaskWriter) writePrefix(prefix string) {
	inLine := w.inLine
	if n := len(w.ready); n > 0 {
		inLine = w.ready[n-1] != '\n'
	}
	if inLine {
		w.ready = append(w.ready, '\n')
	}
	w.ready = append(w.ready, prefix...)
}

func (w *MaskWriter) copyTo(to int64) {
	from := max(w.base+int64(w.done), min(w.until, to))
	if from < to {
		w.ready = append(w.ready, w.pending[from-w.base:to-w.base]...)
	}
	w.done = max(w.done, int(to-w.base))
}

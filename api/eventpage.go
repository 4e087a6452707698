package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"

	"github.com/danielgtaylor/huma/v2"

	"mariposa/contract"
)

// maxPageBytes is how large a list of events is, about: it ends after the event that exceeds
// it. A client may ask for many lists at once and read none of them, so that they stay in
// memory until the write deadline.
const maxPageBytes = 1 << 20

// eventPage is a list of events. It has them only encoded, because that is smaller, and
// drops each one once it is sent.
type eventPage struct {
	events   [][]byte
	bytes    int
	revision int64
	more     bool
	before   int64 // where a list of older events continues; 0: there are none
}

// isFull reports whether no more events are added.
func (p *eventPage) isFull() bool { return p.bytes >= maxPageBytes }

func (p *eventPage) add(e contract.Event) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // as in all responses
	err := enc.Encode(e)
	text := bytes.Clone(bytes.TrimSpace(b.Bytes())) // without unused capacity
	p.events, p.bytes = append(p.events, text), p.bytes+len(text)
	return err
}

// sendList reads a list of events and sends it.
func (f *feed) sendList(ctx context.Context, read func(context.Context) (*eventPage, error)) (*huma.StreamResponse, error) {
	done, err := f.s.usage.beginList(ctx, f.caller)
	if err != nil {
		return nil, err
	}
	page, err := read(ctx)
	if err != nil {
		done()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer done()
		hc.SetHeader("Content-Type", "application/json")
		page.write(hc.BodyWriter()) // the client may be gone
	}}, nil
}

// write writes the document contract.Events.
func (p *eventPage) write(w io.Writer) {
	end, _ := json.Marshal(contract.Events{Revision: p.revision, More: p.more, Before: p.before}) // never fails
	separator := []byte(`{"events":[`)
	for i, e := range p.events {
		if _, err := w.Write(append(separator, e...)); err != nil {
			return // the client is gone
		}
		p.events[i], separator = nil, []byte(",")
	}
	if len(p.events) > 0 {
		separator = nil
	}
	_, _ = w.Write(append(append(separator, ']'), append(bytes.TrimPrefix(end, []byte(`{"events":null`)), '\n')...))
}

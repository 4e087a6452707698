// Package codec encodes objects and changes for durable stores: a half of an object is
// JSON, the changes of one group commit are one compressed chunk.
//
// It owns the format of both. It does not know where the bytes are stored.
package codec

import (
	"encoding/json"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"mariposa"
	"mariposa/store"
)

// Object is a record with its encoded halves, if they are loaded. It is shared and not
// changed once a group has it, except to fill in an encoding that was missing.
type Object struct {
	store.Record
	SpecJSON   []byte // nil: not loaded
	StatusJSON []byte // nil: not loaded, or there is no Status
}

// Encode fills in the missing encodings.
func (o *Object) Encode() (err error) {
	if o.SpecJSON == nil {
		if o.SpecJSON, err = Half(o.Spec); err != nil {
			return err
		}
	}
	if o.StatusJSON == nil {
		o.StatusJSON, err = Half(o.Status)
	}
	return err
}

// Decode fills in the halves from their encodings.
func (o *Object) Decode() (err error) {
	o.Spec, o.Status, err = decode(o.Kind, o.SpecJSON, o.StatusJSON)
	return err
}

// Half encodes one half of an object; nil stays nil.
func Half(half any) ([]byte, error) {
	if half == nil {
		return nil, nil
	}
	return json.Marshal(half)
}

func decode(k mariposa.Kind, specJSON, statusJSON []byte) (spec, status any, err error) {
	if len(specJSON) > 0 {
		if spec = mariposa.NewSpec(k); spec == nil {
			return nil, nil, fmt.Errorf("unknown kind %q", k)
		}
		if err := json.Unmarshal(specJSON, spec); err != nil {
			return nil, nil, fmt.Errorf("spec of a %s: %w", k, err)
		}
		if i, ok := spec.(*mariposa.InstanceSpec); ok { // there may be very many instances with few different reasons
			i.Reason = shareReason(i.Reason)
		}
	}
	if len(statusJSON) > 0 {
		if status = mariposa.NewStatus(k); status == nil {
			return nil, nil, fmt.Errorf("unknown kind %q", k)
		}
		if err := json.Unmarshal(statusJSON, status); err != nil {
			return nil, nil, fmt.Errorf("status of a %s: %w", k, err)
		}
	}
	return spec, status, nil
}

// Codec compresses and expands chunks. Expanding is safe for concurrent use, compressing
// belongs to one goroutine. Each store has its own, because what it reuses must not
// cross the bubbles of testing/synctest.
type Codec struct {
	encoder *zstd.Encoder
	decoder *zstd.Decoder
	plain   []byte // reused between chunks
	sizes   []int
	// The last reason of an event and its encoding.
	lastReason     *mariposa.Reason
	lastReasonJSON string
}

// New returns a codec.
func New() (*Codec, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, err
	}
	return &Codec{encoder: e, decoder: d}, nil
}

// Close frees the resources of the codec.
func (c *Codec) Close() { c.decoder.Close() }

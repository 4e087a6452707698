package wire

import (
	"context"

	"mariposa"
)

// A frame is checked before it is read: an empty object takes two bytes there, and several
// hundred in memory. Servers send less than this: 500 instances with their values.
const (
	maxObjects = 100_000
	maxValues  = 1_000_000
)

// Agents send far less. The largest frames of an honest one have 500 instances, with 1,500
// objects and 13,000 values, or a part of its inventory: see PackQuarantined.
const (
	// MaxReport is the largest frame in bytes that a server takes from an agent.
	MaxReport        = 8 << 20
	maxReportObjects = 20_000
	maxReportValues  = 100_000
)

// What reading costs in addition to bytes: each message, and each value or object in it.
const (
	messageWeight = 256
	valueWeight   = 32
)

// content is what a frame consists of.
type content struct {
	objects int
	values  int // keys of objects and elements of lists
}

// weight returns what it costs to read, in addition to its bytes.
func (c content) weight() int { return valueWeight * (c.objects + c.values) }

// exceeds returns an error if a frame has more objects or values than any real one.
func (c content) exceeds(objects, values int) error {
	if c.objects > objects || c.values > values {
		return mariposa.Errorf(mariposa.TooLarge, "the frame contains more than %d objects or %d values", objects, values)
	}
	return nil
}

// countContent counts the content of a frame without decoding it. It ends early beyond the
// limits of any frame.
func countContent(b []byte) (c content) {
	for i := 0; i < len(b) && c.objects <= maxObjects && c.values <= maxValues; i++ {
		switch b[i] {
		case '"': // to the end of the text
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{':
			c.objects++
			c.values++ // its first key
		case ',', '[':
			c.values++
		}
	}
	return c
}

// checkContent refuses a frame with more objects or values than any real one has.
func checkContent(b []byte) error {
	if len(b) < 2*maxObjects { // it has no room for as many
		return nil
	}
	return countContent(b).exceeds(maxObjects, maxValues)
}

// payFunc waits until the other side may have some more frames read, and what that costs.
type payFunc func(ctx context.Context, frames, weight int) error

// LimitAgent bounds what is read from an agent. Until it is sent a welcome, it can send only
// small frames: what is not admitted must not take up much memory. pay is called before a
// message is decoded, with what that costs, and waits if the agent sends too much: then the
// connection is read more slowly. Bytes of streams are not counted: the server asked for
// them. LimitAgent is called before the first Read.
func (p *Pipe) LimitAgent(u *Unfinished, pay func(ctx context.Context, frames, weight int) error) {
	p.readLimit.Store(MaxHello)
	p.pieces.bounds, p.pay = u, pay
}

// decode reads a frame that has arrived completely, with a message of some bytes.
func (p *Pipe) decode(ctx context.Context, frame []byte, message int) (Frame, error) {
	if p.pay == nil {
		return Decode(frame)
	}
	c := countContent(frame)
	if err := c.exceeds(maxReportObjects, maxReportValues); err != nil {
		return Frame{}, err
	}
	if err := p.pay(ctx, 1, messageWeight+message+c.weight()); err != nil {
		return Frame{}, err
	}
	return decodeChecked(frame)
}

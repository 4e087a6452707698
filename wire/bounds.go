package wire

import "mariposa"

// A frame is checked before it is read: an empty object takes two bytes there, and several
// hundred in memory. Frames of our agents and servers have far less: 500 instances, or an
// inventory of 10,000.
const (
	maxObjects = 100_000
	maxValues  = 1_000_000
)

// checkContent refuses a frame with more objects or values than any real one has.
func checkContent(b []byte) error {
	if len(b) < 2*maxObjects { // it has no room for as many
		return nil
	}
	objects, values := 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"': // to the end of the text
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{':
			objects++
		case ',', '[':
			values++
		}
		if objects > maxObjects || values > maxValues {
			return mariposa.Errorf(mariposa.TooLarge, "the frame contains more than %d objects or %d values", maxObjects, maxValues)
		}
	}
	return nil
}

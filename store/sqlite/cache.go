package sqlite

import (
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
)

// cacheSize is how many objects are kept at least; up to twice as many may be. Their
// halves are shared with other holders of the records, so this costs little more than
// the keys.
const cacheSize = 100_000

// cache keeps the most recently used objects, in two generations: an object that is not
// used while a whole generation fills up is dropped with the older one. Only the writer
// uses it.
type cache struct {
	young, old map[batch.Key]*codec.Object
}

// get returns nil for an object that is not cached.
func (c *cache) get(k batch.Key) *codec.Object {
	if o := c.young[k]; o != nil {
		return o
	}
	o := c.old[k]
	if o != nil {
		c.put(k, o)
	}
	return o
}

// put caches an object; nil drops it.
func (c *cache) put(k batch.Key, o *codec.Object) {
	if o == nil {
		delete(c.young, k)
		delete(c.old, k)
		return
	}
	if len(c.young) >= cacheSize {
		c.old, c.young = c.young, nil
	}
	if c.young == nil {
		c.young = make(map[batch.Key]*codec.Object)
	}
	c.young[k] = o
}

func (c *cache) clear() { c.young, c.old = nil, nil }

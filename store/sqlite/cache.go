package sqlite

import (
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
)

// cacheSize is how many objects are surely at hand; up to twice as many are
// kept. The halves are shared with whoever else has the records, so this costs
// little more than the keys.
const cacheSize = 100_000

// cache keeps the objects last touched, in two generations: what is not touched
// while a whole generation fills up is forgotten with the older one. It is the
// writer's alone.
type cache struct {
	young, old map[batch.Key]*codec.Object
}

// get returns nil for what is not at hand.
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

// put remembers an object; nil forgets it.
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

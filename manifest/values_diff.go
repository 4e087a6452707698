package manifest

// ValueChange is a metadata key that differs between two generations. Secrets are
// masked on both sides; that they changed still shows.
type ValueChange struct {
	Key    string          `json:"key"`
	Kind   ValueChangeKind `json:"kind"`
	Before string          `json:"before"`
	After  string          `json:"after"`
	Secret bool            `json:"secret,omitempty"`
}

// ValueChangeKind names what happened to a key.
type ValueChangeKind string

const (
	ValueAdded   ValueChangeKind = "added"
	ValueRemoved ValueChangeKind = "removed"
	ValueChanged ValueChangeKind = "changed"
)

// DiffValues compares two generations of values, key by key in sorted order.
// Either may be nil.
func DiffValues(old, new *Values) []ValueChange {
	keys := map[string]bool{}
	for _, v := range []*Values{old, new} {
		for _, key := range v.Keys() {
			keys[key] = true
		}
	}
	var changes []ValueChange
	for _, key := range sortedKeys(keys) {
		was, had := old.Get(key)
		is, has := new.Get(key)
		if had && has && was.Text == is.Text {
			continue
		}
		c := ValueChange{Key: key, Kind: ValueChanged, Before: was.Text, After: is.Text, Secret: was.Secret || is.Secret}
		if !had {
			c.Kind = ValueAdded
		} else if !has {
			c.Kind = ValueRemoved
		}
		if c.Secret && had {
			c.Before = Mask
		}
		if c.Secret && has {
			c.After = Mask
		}
		changes = append(changes, c)
	}
	return changes
}

package engine

import (
	"context"
	"hash/fnv"
	"strconv"

	"mariposa/store"
)

// share says which shards are this replica's, given who lives: each shard goes
// to the replica whose name hashes highest with it, so that all agree without
// asking, and one replica more or less moves only its own part.
func (e *Engine) share(ctx context.Context) (map[int]bool, error) {
	living, err := e.Store.Leases(ctx, store.ReplicaPrefix)
	if err != nil {
		return nil, err
	}
	names := []string{e.Holder}
	for _, l := range living {
		if l.Holder != e.Holder {
			names = append(names, l.Holder)
		}
	}
	mine := map[int]bool{}
	for shard := range Shards {
		if highest(names, shard) == e.Holder {
			mine[shard] = true
		}
	}
	return mine, nil
}

func highest(names []string, shard int) string {
	best, top := "", uint64(0)
	for _, name := range names {
		h := fnv.New64a()
		h.Write([]byte(name + "/" + strconv.Itoa(shard)))
		sum := h.Sum64()
		sum ^= sum >> 33 // the hash's high bits mix poorly on short names
		sum *= 0xff51afd7ed558ccd
		sum ^= sum >> 33
		if sum > top || best == "" || (sum == top && name > best) {
			best, top = name, sum
		}
	}
	return best
}

// letGo hands over the shards that are another replica's now.
func (e *Engine) letGo(ctx context.Context, mine map[int]bool) error {
	var names []string
	e.mu.Lock()
	for shard := range e.epochs {
		if !mine[shard] {
			names = append(names, leaseName(shard))
			e.dropShard(shard)
		}
	}
	for shard := range e.fresh {
		if !mine[shard] {
			names = append(names, leaseName(shard))
			delete(e.fresh, shard)
		}
	}
	e.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	return e.Store.Release(ctx, e.Holder, names...)
}

// hold takes and renews this replica's own lease and those of its shards.
func (e *Engine) hold(ctx context.Context, mine map[int]bool) ([]store.Lease, error) {
	names := []string{store.ReplicaPrefix + e.Holder}
	for shard := range Shards {
		if mine[shard] {
			names = append(names, leaseName(shard))
		}
	}
	leases, err := e.Store.Hold(ctx, e.Holder, e.TTL, names...)
	if err != nil {
		return nil, err
	}
	shards := leases[:0]
	for _, l := range leases {
		if l.Name != names[0] {
			shards = append(shards, l)
		}
	}
	return shards, nil
}

package engine

import (
	"context"
	"hash/fnv"
	"log/slog"
	"strconv"
	"time"

	"mariposa/store"
)

// findOwnShards returns the shards of this replica, given the live replicas. Each shard
// goes to the replica whose name hashes highest with it. So all replicas agree without
// communication, and adding or removing a replica moves only its own part.
func (e *Engine) findOwnShards(ctx context.Context) (map[int]bool, error) {
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
		if highestHash(names, shard) == e.Holder {
			mine[shard] = true
		}
	}
	return mine, nil
}

func highestHash(names []string, shard int) string {
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

// releaseOthers hands over the shards that now belong to another replica.
func (e *Engine) releaseOthers(ctx context.Context, mine map[int]bool) error {
	var names []string
	e.mu.Lock()
	for shard := range e.epochs {
		if !mine[shard] {
			names = append(names, leaseName(shard))
			e.dropShard(shard)
		}
	}
	for shard := range e.pendingShards {
		if !mine[shard] {
			names = append(names, leaseName(shard))
			delete(e.pendingShards, shard)
		}
	}
	e.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	return e.Store.Release(ctx, e.Holder, names...)
}

// holdLeases takes and renews this replica's own lease and those of its shards. It returns
// those of the shards, and when the store's clock renewed them.
func (e *Engine) holdLeases(ctx context.Context, mine map[int]bool) (shards []store.Lease, at time.Time, err error) {
	names := []string{store.ReplicaPrefix + e.Holder}
	for shard := range Shards {
		if mine[shard] {
			names = append(names, leaseName(shard))
		}
	}
	leases, err := e.Store.Hold(ctx, e.Holder, e.TTL, names...)
	if err != nil {
		return nil, at, err
	}
	for _, l := range leases {
		if at = l.Until.Add(-e.TTL); l.Name != names[0] {
			shards = append(shards, l)
			continue
		}
		e.announce(ctx, l)
	}
	return shards, at, nil
}

// announce publishes where this replica is with its own lease, if that has changed. It is
// not worth losing the shards: the next renewal tries again.
func (e *Engine) announce(ctx context.Context, own store.Lease) {
	if e.Note == nil {
		return
	}
	note := e.Note()
	if note == own.Note {
		return
	}
	if err := e.Store.Announce(ctx, e.Holder, own.Name, note); err != nil && ctx.Err() == nil {
		slog.Warn("cannot publish the address of this server; will retry", "err", err)
	}
}

package simulate

import (
	"fmt"

	"mariposa"
	"mariposa/clock"
	"mariposa/driver/dummy"
	"mariposa/manifest"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
)

// build creates the initial world: a store, a server, nodes.
func (w *World) build() error {
	forever := worldClock{w, &lifetime{}}
	if w.Options.Store != nil {
		st, err := w.Options.Store(w)
		if err != nil {
			return err
		}
		w.store = st
	} else {
		w.store = memory.New(forever, memory.WithIncarnations(func(string) string { return w.newID() }))
	}
	w.checker = newChecker(w)
	w.people = &people{w: w, made: map[string]bool{}, settling: map[string]bool{}, tries: map[string]int{}, drafts: map[string]*draft{}, left: map[string]bool{}}
	if err := seal.NewVault(w.ring, w.store).Check(w.ctx, w.store, w.now); err != nil {
		return err
	}
	if err := w.makePeople(); err != nil {
		return err
	}
	for range max(1, w.Replicas) {
		w.startServer(w.newProcess())
	}
	for i := range max(1, w.Nodes) {
		n := &node{
			w: w, name: fmt.Sprintf("node%d", i+1), world: dummy.NewWorld(w.Seed + uint64(i)), wrong: w.wrongBy(), ill: map[string]illness{},
			frontWorld: dummy.NewWorld(w.Seed + uint64(i)), fronts: map[string]*front{},
		}
		w.nodes = append(w.nodes, n)
		n.start()
	}
	return nil
}

// Clock returns the world's clock, for a store that outlives every crash.
func (w *World) Clock() clock.Clock { return worldClock{w, &lifetime{}} }

func (w *World) definition(project string, number int, service string) (*mariposa.Service, error) {
	r, err := w.store.Get(w.ctx, mariposa.KindVersion, mariposa.VersionID(project, number))
	if err != nil {
		return nil, err
	}
	m, err := w.parse((*store.Version)(&r).Spec().Manifest)
	if err != nil {
		return nil, err
	}
	return m.ByName[service], nil
}

// parse parses a manifest, with a cache: the same one is parsed many times in a
// world.
func (w *World) parse(body []byte) (*manifest.Project, error) {
	if m := w.parsed[string(body)]; m != nil {
		return m, nil
	}
	m, err := manifest.Parse(body)
	if err == nil {
		w.parsed[string(body)] = m
	}
	return m, err
}

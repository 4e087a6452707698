package change

import (
	"errors"
	"slices"

	"mariposa"
	"mariposa/manifest"
	"mariposa/seal"
	"mariposa/store"
)

// addValues adds an encrypted generation of values and, the first time, the key that
// encrypts them. It returns the box of the project's values; nil if it has none.
func (e *edit) addValues(values, before *manifest.Values) (*seal.Box, error) {
	if values == nil {
		return nil, nil
	}
	box, err := e.c.Vault.Box(e.ctx, e.record.ID)
	if errors.Is(err, store.ErrNotFound) {
		var key store.Unit
		if box, key, err = e.c.Vault.NewKey(e.ctx, e.record.ID, e.now); err != nil {
			return nil, err
		}
		e.unit.Require, e.unit.Writes = append(e.unit.Require, key.Require...), append(e.unit.Writes, key.Writes...)
	}
	if err != nil || values == before {
		return box, err
	}
	return box, e.addGeneration(box, values)
}

// addGeneration writes a generation. It writes only the parts that the previous
// generation does not have. Parts are shared with that one alone, so neighbouring
// generations show which parts are in use.
func (e *edit) addGeneration(box *seal.Box, values *manifest.Values) error {
	former, err := e.partsOf(e.spec.Metadata)
	if err != nil {
		return err
	}
	shared := make(map[string]mariposa.PartRef, len(former))
	for _, ref := range former {
		shared[ref.Digest] = ref
	}
	e.spec.Metadata++
	head, parts := values.Split()
	id := mariposa.MetadataID(e.record.ID, e.spec.Metadata)
	spec := &mariposa.MetadataSpec{Project: e.record.ID, Number: e.spec.Metadata, Sealed: box.Seal(head, []byte(id)), Parts: []mariposa.PartRef{}, Created: e.now}
	for i, part := range parts {
		digest := box.MAC("part", string(part))
		ref, found := shared[digest]
		if !found {
			ref = mariposa.PartRef{Generation: e.spec.Metadata, Index: i, Digest: digest}
			at := ref.ID(e.record.ID)
			sealed := &mariposa.PartSpec{Sealed: box.Seal(part, []byte(at))}
			ref.Size = encodedSize(sealed)
			e.unit.Put(store.Write{Kind: mariposa.KindPart, ID: at, Project: e.record.ID, Spec: sealed})
		}
		spec.Parts = append(spec.Parts, ref)
	}
	e.parts = spec.Parts
	e.unit.Put(store.Write{Kind: mariposa.KindMetadata, ID: id, Project: e.record.ID, Spec: spec})
	return nil
}

// partsOf returns the parts of a generation; none if it is lost or was stored as a
// whole.
func (e *edit) partsOf(generation int) ([]mariposa.PartRef, error) {
	switch {
	case generation == 0:
		return nil, nil
	case generation == e.spec.Metadata && e.parts != nil:
		return e.parts, nil
	}
	r, err := e.c.Store.Get(e.ctx, mariposa.KindMetadata, mariposa.MetadataID(e.record.ID, generation))
	switch {
	case isLost(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return (*store.Metadata)(&r).Spec().Parts, nil
}

// dropValues removes the generation of a deleted version, unless a kept version uses it
// too, and those of its parts that no other generation uses. Generations grow with
// versions, so only the neighbours need to be checked. The list of kept versions must
// already be the new one.
func (e *edit) dropValues(generation, number int) error {
	if generation == 0 || generation == e.spec.Metadata {
		return nil
	}
	inUse := map[mariposa.PartRef]bool{}
	at, _ := slices.BinarySearch(e.spec.Versions, number)
	for _, beside := range []int{at - 1, at} {
		if beside < 0 || beside >= len(e.spec.Versions) {
			continue
		}
		other, err := e.generationOf(e.spec.Versions[beside])
		if err != nil {
			return err
		}
		if other == generation {
			return nil
		}
		parts, err := e.partsOf(other)
		if err != nil {
			return err
		}
		for _, ref := range parts {
			inUse[ref] = true
		}
	}
	r, err := e.c.Store.Get(e.ctx, mariposa.KindMetadata, mariposa.MetadataID(e.record.ID, generation))
	if err != nil {
		if isLost(err) {
			return nil
		}
		return err
	}
	e.freed += encodedSize(r.Spec)
	for _, ref := range (*store.Metadata)(&r).Spec().Parts {
		if !inUse[ref] {
			e.freed += ref.Size
			e.unit.Delete(mariposa.KindPart, ref.ID(e.record.ID), mariposa.Event{})
		}
	}
	e.unit.Delete(mariposa.KindMetadata, mariposa.MetadataID(e.record.ID, generation), mariposa.Event{})
	return nil
}

// generationOf returns the generation of values of a version; 0 if it has none or is
// lost.
func (e *edit) generationOf(number int) (int, error) {
	if number == e.spec.Number {
		return e.spec.Metadata, nil
	}
	v, err := e.c.Cache.Version(e.ctx, e.record.ID, number)
	if err == nil {
		return v.Spec.Metadata, nil
	}
	r, lost := e.c.Store.Get(e.ctx, mariposa.KindVersion, mariposa.VersionID(e.record.ID, number))
	switch {
	case isLost(lost):
		return 0, nil
	case lost != nil:
		return 0, lost
	}
	return (*store.Version)(&r).Spec().Metadata, nil // it may be one that this binary cannot read
}

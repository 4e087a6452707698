package change

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // names versions, as the contract says; no security depends on it
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/seal"
	"mariposa/store"
)

// draft is a version being created: a manifest, values, or both. What it omits is
// unchanged.
type draft struct {
	cause   mariposa.Cause
	bytes   []byte // of the manifest; nil: unchanged
	json    bool
	parsed  *manifest.Project
	values  *manifest.Values // nil: unchanged
	message string
	counter string // the key that is incremented, when nothing else changes
	from    int    // the version that becomes current again

	// resolved are the images that were looked up for it: those that the newest version does
	// not use, or that are refreshed. images are what the others mean, whatever they mean in the
	// newest version.
	images, resolved map[string]mariposa.ImagePin
	refreshed        bool // of a revert: they are part of its hash

	// given are the keys whose values the caller set, so the caller knows them. Others
	// must not learn what is wrong with a secret, or with a manifest that refers to it.
	given map[string]bool
	// protected are the keys that are protected in the new project.
	protected []string
	// service is the only one that the draft changes in the newest manifest; empty if the
	// caller submits a whole manifest.
	service string
}

// draftResult is the result of a draft.
type draftResult struct {
	difference // from the newest version
	manifest   *manifest.Project
	keys       []string // metadata that differs
	missing    []string // required metadata without a value
	unapproved []string // protected secrets that it uses without an approval
}

// makeVersion adds a version to a change. It returns nil if it would equal the newest.
func (e *edit) makeVersion(d draft) (*draftResult, error) {
	was, err := e.newest()
	if err != nil {
		return nil, err
	}
	if d.parsed == nil {
		if was, err = e.manifestForValues(was); err != nil {
			return nil, err
		}
		if was == nil {
			return nil, e.errNewestLost()
		}
		d.bytes, d.json, d.parsed, d.images = was.Spec.Manifest, was.Spec.JSON, was.Manifest, was.Spec.Images
	}
	before, err := e.c.Cache.Values(e.ctx, e.record.ID, e.spec.Metadata)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if err := e.protect(d, before); err != nil {
		return nil, err
	}
	values, err := e.completeValues(d, before)
	if err != nil {
		return nil, err
	}
	if was != nil && bytes.Equal(was.Spec.Manifest, d.bytes) && values == before && d.cause != mariposa.CauseRevert && d.cause != mariposa.CauseRefresh {
		return nil, nil
	}
	if d.cause == mariposa.CauseManifest {
		if err := e.requireVolumeSizes(d.parsed); err != nil {
			return nil, err
		}
	}
	m := &draftResult{manifest: d.parsed, missing: d.parsed.Missing(values)}
	for _, c := range manifest.DiffValues(before, values) {
		m.keys = append(m.keys, c.Key)
	}
	box, err := e.addValues(values, before)
	if err != nil {
		return nil, err
	}
	return m, e.addVersion(d, m, was, values, box)
}

// manifestForValues returns the version whose manifest the new values are applied to:
// the newest, or the one in force if the newest was rolled back or dropped. Otherwise
// the values would wait for a version that never comes into force.
func (e *edit) manifestForValues(newest *picture.Version) (*picture.Version, error) {
	st := e.record.Status()
	isOnItsWay := func(t queue.Task) bool {
		return t.Spec.Patch.Number > st.Number && (t.Status == nil || t.Status.Fault == nil)
	}
	if st == nil || st.Number == 0 || !e.isNewestDropped() || slices.ContainsFunc(e.tasks, isOnItsWay) {
		return newest, nil
	}
	inForce, err := e.readVersion(st.Number)
	if err != nil || inForce == nil {
		return newest, err
	}
	if newest != nil && sameDefinition(newest.Spec, inForce.Spec) {
		return newest, nil
	}
	e.answer.Reason = fmt.Sprintf("version %d is not in force: the values are applied to the manifest of version %d", e.spec.Number, st.Number)
	return inForce, nil
}

// errNewestLost says that the newest version can no longer be read.
func (e *edit) errNewestLost() error {
	return conflict("version %d of %s is lost: submit the manifest again", e.spec.Number, e.spec.Name)
}

// makeOrResubmit adds a version to a change. If the draft equals the newest version,
// it resubmits that one when it was dropped or has rollouts to retry. It returns nil
// if there is nothing to do.
func (e *edit) makeOrResubmit(d draft) (*draftResult, error) {
	m, err := e.makeVersion(d)
	if err != nil || m != nil || d.cause != mariposa.CauseManifest {
		return m, err
	}
	if !e.isNewestDropped() {
		if d.service != "" && !slices.Contains(converge.RetriedServices(e.record.Status()), d.service) {
			return nil, nil // nobody asked for the others
		}
		return e.retryNewest()
	}
	newest, err := e.newest()
	if err != nil || newest == nil {
		return nil, err
	}
	if follows, err := e.needsNoTask(newest); err != nil || follows {
		return nil, err
	}
	if err := e.requireAllowed(newest.Spec.Manifest, newest.Services); err != nil {
		return nil, err
	}
	return e.resubmitNewest(newest)
}

// retryNewest resubmits the newest version if rollouts of it have stopped by
// themselves. It returns nil if none has.
func (e *edit) retryNewest() (*draftResult, error) {
	if len(converge.RetriedServices(e.record.Status())) == 0 {
		return nil, nil
	}
	newest, err := e.newest()
	if err != nil || newest == nil {
		return nil, err
	}
	return e.resubmitNewest(newest)
}

// resubmitNewest resubmits the newest version: what differs from the goal in force,
// and what is retried. It returns nil if there is neither.
func (e *edit) resubmitNewest(newest *picture.Version) (*draftResult, error) {
	e.fresh = newest.Services
	m := &draftResult{manifest: newest.Manifest, missing: newest.Manifest.Missing(newest.Values)}
	goal := e.record.Status()
	var err error
	if m.difference, err = e.diffFromGoal(m, goal); err != nil {
		return nil, err
	}
	if len(m.changed) == 0 && len(converge.RetriedServices(goal)) == 0 {
		return nil, nil
	}
	e.answer.Missing = m.missing
	return m, nil
}

// needsNoTask reports whether a version differs only in values from one that is in
// force or on its way: it then comes into force without a task.
func (e *edit) needsNoTask(v *picture.Version) (bool, error) {
	st := e.record.Status()
	if v.Spec.Cause != mariposa.CauseMetadata || st != nil && st.RolledBack >= v.Spec.Number {
		return false, nil
	}
	var before []int
	if st != nil && st.Number > 0 {
		before = append(before, st.Number)
	}
	for _, t := range e.tasks {
		if t.Spec.Patch.Number > 0 && (t.Status == nil || t.Status.Fault == nil) {
			before = append(before, t.Spec.Patch.Number)
		}
	}
	for _, n := range before {
		was, err := e.readVersion(n)
		if err != nil {
			return false, err
		}
		if was != nil && sameDefinition(was.Spec, v.Spec) {
			return true, nil
		}
	}
	return false, nil
}

// readVersion returns a version; nil when it is lost.
func (e *edit) readVersion(number int) (*picture.Version, error) {
	v, err := e.c.Cache.Version(e.ctx, e.record.ID, number)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, picture.ErrUnreadable) {
		return nil, nil
	}
	return v, err
}

// newest returns the newest version; nil when there is none, or it is lost.
func (e *edit) newest() (*picture.Version, error) {
	if e.spec.Number == 0 {
		return nil, nil
	}
	return e.readVersion(e.spec.Number)
}

// completeValues returns the values that go with a manifest: it marks secrets,
// generates missing values, and checks all of them against the manifest.
// A secret that the caller neither submits nor may read is not checked: the patterns
// come with the request, and the answers would reveal it letter by letter.
func (e *edit) completeValues(d draft, before *manifest.Values) (*manifest.Values, error) {
	values := before
	if d.values != nil {
		values = d.values
	}
	values, _, err := d.parsed.Generate(values, randomText, e.now)
	if err != nil {
		return nil, err
	}
	values = values.WithSecretsMarked(d.parsed)
	reads := e.mayReadSecrets()
	return values, d.parsed.CheckValues(values, func(key string) bool {
		value, _ := values.Get(key)
		return value.Secret && !d.given[key] && !reads
	})
}

// randomText returns a random text of n letters and digits.
func randomText(n int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, n)
	for len(out) < n {
		var b [64]byte
		_, _ = rand.Read(b[:]) // never fails
		for _, c := range b {
			if int(c) < 256/len(letters)*len(letters) && len(out) < n { // keeps all letters equally likely
				out = append(out, letters[int(c)%len(letters)])
			}
		}
	}
	return string(out)
}

// addVersion writes the version, and deletes those that are no longer kept.
func (e *edit) addVersion(d draft, m *draftResult, was *picture.Version, values *manifest.Values, box *seal.Box) error {
	var sizes map[string]mariposa.PackageSpec
	if was != nil {
		sizes = was.Spec.Packages
	}
	packages, err := e.c.packages(d.parsed, e.defaultPackage(d, sizes))
	if err != nil {
		return err
	}
	var mac func(...string) string
	if box != nil {
		mac = box.MAC
	}
	images := pinImages(d, was)
	e.fresh = manifest.Bind(d.parsed, values, packages, images, mac)
	if d.cause != mariposa.CauseMetadata {
		if err := e.requireAllowed(d.bytes, e.fresh); err != nil {
			return err
		}
	}
	var approves string
	m.unapproved, approves = e.judgeApproval(d, was, values, mac)
	m.difference = differ(servicesOf(was), m.manifest, e.fresh)
	refreshed := isRefreshed(d, was)
	spec := &mariposa.VersionSpec{
		Project: e.record.ID, Version: versionHash(d.bytes, values, hashedImages(images, refreshed), mac), Manifest: d.bytes, JSON: d.json, Created: e.now, Author: e.req.actor(),
		Message: d.message, Changed: append([]string{}, m.changed...), Metadata: e.spec.Metadata, Cause: d.cause, Keys: m.keys, Counter: d.counter, From: d.from,
		Packages: packages, Images: images, Refreshed: refreshed,
	}
	if e.coalesces(d, was, m) {
		spec.Created = was.Spec.Created
		if err := e.dropValues(e.record.Spec().Metadata, was.Spec.Number); err != nil {
			return err
		}
	} else {
		e.spec.Number++
		e.spec.Versions = append(slices.Clone(e.spec.Versions), e.spec.Number)
	}
	if approves != "" {
		e.addApproval(approves, e.spec.Number)
	}
	e.spec.Version, spec.Number = spec.Version, e.spec.Number
	e.spec.Services = serviceIDs(e.record.ID, e.spec.Services, d.parsed)
	e.answer.Images = contract.ImagesOf(d.resolved)
	e.answer.Version, e.answer.Number, e.answer.Missing, e.answer.NeedsApproval = e.spec.Version, e.spec.Number, m.missing, m.unapproved
	why := mariposa.Asked(cmp.Or(d.message, "version "+strconv.Itoa(e.spec.Number)))
	if len(m.unapproved) > 0 {
		why = mariposa.AwaitsApproval(e.spec.Number, m.unapproved)
	}
	e.write(store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(e.record.ID, e.spec.Number), Spec: spec}, "version.created", why)
	return e.prune(isSmaller(d, values, was))
}

// versionHash names a version: a SHA-1 over the manifest and a keyed digest of the
// values. With a plain hash of the values, its readers could guess secrets.
func versionHash(doc []byte, values *manifest.Values, images []string, mac func(...string) string) string {
	h := sha1.New() //nolint:gosec // see the import
	h.Write(doc)
	for _, image := range images {
		h.Write([]byte("\x00" + image))
	}
	if keys := values.Keys(); len(keys) > 0 && mac != nil {
		parts := make([]string, 0, 2*len(keys))
		for _, key := range keys {
			parts = append(parts, key, values.ByKey[key].Text)
		}
		h.Write([]byte("\x00" + mac(parts...)))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// coalesceWithin is how long increments of one key go into one version.
const coalesceWithin = time.Minute

// coalesces reports whether an increment is merged into the previous version, which only
// incremented the same key a moment ago, and from which no instance was created.
func (e *edit) coalesces(d draft, was *picture.Version, m *draftResult) bool {
	if d.counter == "" || was == nil || was.Spec.Number != e.spec.Number || len(m.unapproved) > 0 || was.Spec.Counter != d.counter || e.now.Sub(was.Spec.Created) >= coalesceWithin || len(m.toReprovision) > 0 {
		return false
	}
	inUse := e.inUse()
	delete(inUse, e.spec.Number) // the newest, and perhaps in force
	for _, n := range e.spec.Tags {
		inUse[n] = true
	}
	for _, t := range e.tasks {
		inUse[t.Spec.Patch.Number] = true
	}
	for _, ss := range e.goals() {
		if ss.Frozen != nil {
			inUse[ss.Frozen.Values] = true // its instances keep the values that they have
		}
	}
	e.c.Picture.EachInstanceOf(e.record.ID, func(r *store.Instance) bool {
		spec := r.Spec()
		for _, n := range append(spec.Bindings.Numbers(), spec.Number) {
			inUse[n] = true
		}
		return true
	})
	return !inUse[e.spec.Number]
}

// definitions returns the services of a version, including the one being created.
func (e *edit) definitions(number int) (converge.Definitions, error) {
	if e.fresh != nil && number == e.spec.Number {
		return e.fresh, nil
	}
	return e.c.definitions(e.ctx, e.record.ID, number)
}

// definitions returns the services of a version; none if it is lost.
func (c *Changer) definitions(ctx context.Context, project string, number int) (converge.Definitions, error) {
	v, err := c.Cache.Version(ctx, project, number)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, picture.ErrUnreadable):
		return converge.Definitions{}, nil
	case err != nil:
		return nil, err
	}
	return v.Services, nil
}

// DefaultKeep is how many versions of a project are kept.
const DefaultKeep = 100

// keepVersions is how many versions are kept of a project.
func (e *edit) keepVersions() int { return cmp.Or(e.c.KeepVersions, DefaultKeep) }

// inUse returns the versions that the goal, tasks and tags refer to, and the newest.
func (e *edit) inUse() map[int]bool {
	inUse := map[int]bool{e.spec.Number: true}
	for _, n := range e.spec.Tags {
		inUse[n] = true
	}
	for _, t := range e.tasks {
		inUse[t.Spec.Patch.Number] = true
		if t.Status != nil && t.Status.Before != nil {
			inUse[t.Status.Before.Number] = true // its undo goes there
		}
	}
	if st := e.record.Status(); st != nil {
		inUse[st.Number], inUse[st.Completed] = true, true
		for _, ss := range st.Services {
			inUse[ss.Number] = true
			if ss.Frozen != nil {
				inUse[ss.Frozen.Values] = true
			}
			for _, n := range ss.Bindings.Numbers() {
				inUse[n] = true
			}
			if ss.Rollout != nil {
				inUse[ss.Rollout.Number], inUse[ss.Rollout.From] = true, true
			}
		}
	}
	return inUse
}

// forget deletes a version, and its values if no kept version uses them. The list of
// kept versions must already be the new one.
func (e *edit) forget(number int) error {
	id := mariposa.VersionID(e.record.ID, number)
	r, err := e.c.Store.Get(e.ctx, mariposa.KindVersion, id)
	if err != nil {
		if isLost(err) {
			return nil
		}
		return err
	}
	e.freed += encodedSize(r.Spec) + encodedSize(r.Status)
	e.unit.Put(store.Write{
		Kind: mariposa.KindVersion, ID: id, Project: e.record.ID, Delete: true,
		Event: mariposa.OwnEvent("version.forgotten", e.record.ID, &mariposa.Reason{Code: mariposa.ReasonRetention}),
	})
	return e.dropValues((*store.Version)(&r).Spec().Metadata, number)
}

func isLost(err error) bool { return errors.Is(err, store.ErrNotFound) }

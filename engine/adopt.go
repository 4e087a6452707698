package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"mariposa"
	"mariposa/converge"
	"mariposa/picture"
	"mariposa/store"
)

// adoptValues brings a version into force that differs from the one in force only in
// metadata values. Such a version needs no task.
func (t *turn) adoptValues(ctx context.Context) error {
	if t.goal != nil && t.goal.Number == t.spec.Number && t.goal.Version != t.spec.Version { // only a counter changed, under the same number
		counted := *t.goal
		counted.Version = t.spec.Version
		t.goal = &counted
		return nil
	}
	if t.goal == nil || t.goal.Number == 0 || t.goal.Goal == mariposa.GoalDeleted || t.spec.Deleting ||
		t.spec.Number <= max(t.goal.Number, t.goal.RolledBack) || t.hasFrozen(nil) {
		return nil
	}
	for _, task := range t.open {
		if task.Spec.Patch.Number > t.goal.Number && t.status(task).State == mariposa.TaskQueued {
			return nil // that task brings it into force when its turn comes
		}
	}
	same, err := t.onlyValuesDiffer(ctx, t.goal.Number, t.spec.Number)
	if err != nil || !same {
		return err
	}
	if unapproved, err := t.isUnapproved(ctx, t.spec.Number); err != nil || unapproved {
		return err
	}
	_, err = t.applyPatch(ctx, mariposa.Patch{Number: t.spec.Number}, converge.Change{})
	return err
}

// liveVersion returns the version whose live values instances have: the newest or, while
// that waits for an approval, the one in force.
func (t *turn) liveVersion(ctx context.Context) (int, error) {
	unapproved, err := t.isUnapproved(ctx, t.spec.Number)
	if unapproved && t.goal != nil && t.goal.Number > 0 {
		return t.goal.Number, err
	}
	return t.spec.Number, err
}

// onlyValuesDiffer reports whether a newer version was created by a change of metadata
// and has the manifest of an older one. Versions between them may be gone, so they are
// not compared.
func (t *turn) onlyValuesDiffer(ctx context.Context, older, newer int) (bool, error) {
	b, err := t.version(ctx, newer)
	if err != nil || b == nil || b.Spec.Cause != mariposa.CauseMetadata {
		return false, err
	}
	a, err := t.version(ctx, older)
	return a != nil && bytes.Equal(a.Spec.Manifest, b.Spec.Manifest), err
}

// version reads one version; nil if it does not exist or cannot be read.
func (a *actor) version(ctx context.Context, number int) (*picture.Version, error) {
	v, err := a.e.Cache.Version(ctx, a.project, number)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, picture.ErrUnreadable):
		return nil, nil //nolint:nilnil // a missing version is not an error
	case err != nil:
		return nil, fmt.Errorf("read version %d of project %s: %w", number, a.project, err)
	}
	return v, nil
}

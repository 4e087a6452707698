package change

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/queue"
	"mariposa/store"
)

// Key is a metadata key to change, and the state of it that the caller has seen.
type Key struct {
	Name string
	CAS  string // empty: any; 0: not set
}

// SetKey sets one value.
func (c *Changer) SetKey(ctx context.Context, req *Request, project string, key Key, text string, secret bool, message string) (*contract.Changed, error) {
	return c.changeKey(ctx, req, project, key, message, func(e *edit, old *manifest.Values, p *manifest.Project) (*manifest.Values, error) {
		return old.Set(key.Name, text, secret || p.IsSecret(key.Name), e.now)
	})
}

// DeleteKey unsets one value.
func (c *Changer) DeleteKey(ctx context.Context, req *Request, project string, key Key) (*contract.Changed, error) {
	return c.changeKey(ctx, req, project, key, "", func(e *edit, old *manifest.Values, _ *manifest.Project) (*manifest.Values, error) {
		if _, set := old.Get(key.Name); !set {
			return nil, notFound("project %s has no value for the metadata key %q", e.spec.Name, shorten(key.Name))
		}
		return old.Delete(key.Name), nil
	})
}

// CountKey adds to one value.
func (c *Changer) CountKey(ctx context.Context, req *Request, project string, key Key, by int64) (*contract.Changed, error) {
	return c.changeKey(ctx, req, project, key, "", func(e *edit, old *manifest.Values, p *manifest.Project) (*manifest.Values, error) {
		e.counter = key.Name
		if value, _ := old.Get(key.Name); value.Secret { // whether it can be incremented reveals what it is
			if err := c.Directory.Require(e.req.Caller, auth.ReadSecrets, e.record.Record()); err != nil {
				return nil, err
			}
		}
		return old.Add(p, key.Name, by, e.now)
	})
}

// changeKey changes one key, and answers with its value and cas. Build creates the new
// values from the old.
func (c *Changer) changeKey(ctx context.Context, req *Request, project string, key Key, message string,
	build func(*edit, *manifest.Values, *manifest.Project) (*manifest.Values, error),
) (*contract.Changed, error) {
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		old, declared, err := c.Cache.NewestValues(ctx, project, &e.spec)
		if err != nil {
			return nil, err
		}
		if err := key.requireUnchanged(old); err != nil {
			return nil, err
		}
		values, err := build(e, old, declared)
		if err != nil {
			return nil, err
		}
		if values == nil {
			values = &manifest.Values{}
		}
		e.answer.Key = key.Name
		if value, set := values.WithSecretsMarked(declared).Get(key.Name); set {
			e.answer.Value, e.answer.CAS = value.Text, strconv.FormatInt(value.CAS, 10)
			if value.Secret || declared.IsSecret(key.Name) {
				e.answer.Value = manifest.Mask
			}
		}
		e.unit.Audit[0].Reason = "metadata key " + key.Name
		changed, err := e.addVersionTask(draft{cause: mariposa.CauseMetadata, values: values, message: message, counter: e.counter, given: map[string]bool{key.Name: true}}, mariposa.Patch{})
		if err != nil || !changed {
			return &e.attempt, err
		}
		return e.finish(cmp.Or(e.taskReason(), message, "its metadata changed"))
	})
}

// requireUnchanged refuses to change a key that was changed in the meantime.
func (k Key) requireUnchanged(old *manifest.Values) error {
	if k.CAS == "" {
		return nil
	}
	if _, err := strconv.ParseInt(k.CAS, 10, 64); err != nil {
		return invalid("invalid cas %q: use the number that was returned as cas when the key was read", shorten(k.CAS))
	}
	value, set := old.Get(k.Name)
	is := "0"
	if set {
		is = strconv.FormatInt(value.CAS, 10)
	}
	if k.CAS == is {
		return nil
	}
	if !set {
		return conflict("%s is not set: read it again, or pass ?cas=0 to create it", k.Name)
	}
	return conflict("%s was changed by someone else (its cas is %s, not %s): read it again, then retry", k.Name, is, shorten(k.CAS))
}

// importValues returns the values after a whole document replaced the old one, and the
// keys whose values the document itself contains.
func (e *edit) importValues(doc []byte) (values *manifest.Values, given map[string]bool, err error) {
	old, err := e.c.Cache.Values(e.ctx, e.record.ID, e.spec.Metadata)
	if err != nil {
		return nil, nil, err
	}
	if given, err = manifest.GivenKeys(doc); err != nil {
		return nil, nil, err
	}
	values, err = old.Import(doc, e.now)
	if values == nil && err == nil {
		values = &manifest.Values{}
	}
	return values, given, err
}

// awaitingThaw returns the services of a task that applies new values after a thaw: those
// that are frozen and use them. There are none if a version that is already queued brings
// the values with it, if the task would end another one, or for a counter, whose
// increments share a version.
func (e *edit) awaitingThaw(d draft, m *draftResult) []string {
	names := e.frozenUsers(m)
	if len(names) == 0 || d.counter != "" || len(m.unapproved) > 0 {
		return nil
	}
	for _, t := range e.tasks {
		isNewer := t.Spec.Patch.Number > e.record.Status().Number && t.State() == mariposa.TaskQueued
		switch {
		case isNewer && t.Spec.Component == string(mariposa.CauseMetadata):
			names = union(names, t.Spec.Services) // the new task replaces it
		case isNewer, t.Spec.Task == mariposa.TaskReprovision && queue.Overlap(t.Spec.Services, names):
			return nil
		}
	}
	return names
}

// frozenUsers returns the frozen services that use the values that a change makes,
// sorted.
func (e *edit) frozenUsers(m *draftResult) []string {
	st, users := e.record.Status(), m.manifest.UsersOf(m.keys)
	if st == nil || len(users) == 0 {
		return nil
	}
	return st.FrozenServices(users)
}

// outdatedServices lists the services whose values this change makes outdated. If some
// are frozen, it says that the change waits for their thaw.
func (e *edit) outdatedServices(m *draftResult) string {
	var thaw string
	if names := e.frozenUsers(m); len(names) > 0 && e.task == nil {
		thaw = e.awaitedThaw(&mariposa.TaskSpec{Task: mariposa.TaskReprovision, Origin: mariposa.OriginUser, Services: names})
	}
	waits := thaw != "" || e.task != nil && e.awaitedThaw(e.task) != ""
	names := e.heldBack(m, waits)
	switch {
	case len(names) == 0:
		return thaw
	case waits:
		return joinReasons(thaw, "after the thaw, apply the new values to "+strings.Join(names, ", ")+" with `mariposa project reprovision"+serviceWords(names)+"`")
	}
	run := "run"
	if len(names) == 1 {
		run = "runs"
	}
	return strings.Join(names, ", ") + " still " + run + " with the old values: apply the new ones with `mariposa project reprovision" + serviceWords(names) + "`"
}

// heldBack returns the running services that new values do not reach by themselves. A
// task that waits for a thaw reaches only those that are reprovisioned for them.
func (e *edit) heldBack(m *draftResult, waits bool) []string {
	var names []string
	for _, w := range e.unit.Writes {
		if v, ok := w.Spec.(*mariposa.VersionSpec); ok && (e.answer.Task == nil || waits) {
			names = append(names, v.Changed...)
		}
	}
	runs := map[string]bool{}
	e.c.Picture.EachInstanceOf(e.record.ID, func(r *store.Instance) bool {
		if spec := r.Spec(); spec.Managed && spec.Goal == mariposa.GoalRunning {
			runs[spec.ServiceName] = true
		}
		return true
	})
	return slices.DeleteFunc(names, func(name string) bool {
		return !runs[name] || waits && slices.Contains(m.toReprovision, name)
	})
}

// requireSecretReader requires the right to read secrets if any of some keys is
// secret, and a recent proof of who it is at the web page.
func (c *Changer) requireSecretReader(req *Request, r *store.Project, values *manifest.Values, keys []string) error {
	for _, key := range keys {
		if value, _ := values.Get(key); value.Secret {
			if err := c.Directory.Require(req.Caller, auth.ReadSecrets, r.Record()); err != nil {
				return err
			}
			return req.Caller.RequireProof(c.Clock.Now())
		}
	}
	return nil
}

package change

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/reason"
	"mariposa/store"
)

// maxApprovals limits how many approvals of a project are kept; the oldest are dropped
// first.
const maxApprovals = 200

func (e *edit) mayReadSecrets() bool { return e.may(auth.ReadSecrets) }

func (e *edit) mayApprove() bool { return e.may(auth.Approve) }

func (e *edit) may(p auth.Permission) bool {
	return e.c.Directory.May(e.req.Caller, p, e.record.Record()) == auth.Allowed
}

// protect refuses changes of protected keys to callers who may not approve: they can
// neither change the values nor lift the protection. It does not compare a given value
// with the current one, because the result would reveal the value. A key that a manifest
// protects stays protected, even if later manifests omit it, until an operator submits
// one with protect: false.
func (e *edit) protect(d draft, before *manifest.Values) error {
	lifted := func(key string) bool {
		m, _ := d.parsed.Declared(key)
		return m.Lifts()
	}
	if !e.mayApprove() {
		for _, key := range e.spec.Protected {
			_, was := before.Get(key)
			_, is := d.values.Get(key)
			switch {
			case lifted(key):
				return e.errProtected(key, "lifting the protection")
			case d.given[key] || d.values != nil && was && !is:
				return e.errProtected(key, "changing its value")
			}
		}
	}
	protected := slices.DeleteFunc(slices.Clone(e.spec.Protected), lifted)
	for i := range d.parsed.Metadata {
		if m := &d.parsed.Metadata[i]; m.Protects() {
			protected = append(protected, m.Name)
		}
	}
	e.spec.Protected = union(protected)
	return nil
}

// errProtected returns the error for an action that requires the operator role.
func (e *edit) errProtected(key, what string) error {
	return &mariposa.Error{
		Code:    mariposa.Forbidden,
		Message: fmt.Sprintf("Permission denied: the secret %s of project %s is protected: %s requires the operator role", key, e.spec.Name, what),
		Cause:   auth.Denial{On: e.record.Record()},
	}
}

// keepProtected returns the values that a revert restores, with the current values of
// protected keys: restoring older ones would change them.
func (e *edit) keepProtected(now, then *manifest.Values) (*manifest.Values, error) {
	if e.mayApprove() {
		return then, nil
	}
	var err error
	for _, key := range e.spec.Protected {
		if value, set := now.Get(key); !set {
			then = then.Delete(key)
		} else if then, err = then.Set(key, value.Text, value.Secret, e.now); err != nil {
			return nil, err
		}
	}
	return then, nil
}

// judgeApproval lists the protected secrets that a draft uses without an approval, or
// returns the content that its submission approves. A caller who may approve does so by
// submitting a whole manifest, or a change of what was approved before. A change of
// other values or of one service does not approve a manifest that still waits.
func (e *edit) judgeApproval(d draft, was *picture.Version, values *manifest.Values, mac func(...string) string) (unapproved []string, approves string) {
	uses := d.parsed.UsesAny(e.spec.Protected)
	if len(uses) == 0 {
		return nil, ""
	}
	content := d.parsed.Content(d.bytes, values, e.spec.Protected, mac)
	if e.spec.Approval(content) != nil {
		return nil, ""
	}
	whole := d.cause != mariposa.CauseMetadata && d.service == ""
	if e.mayApprove() && (whole || was != nil && len(was.NeedsApproval(e.record.Spec())) == 0) {
		return nil, content
	}
	return uses, ""
}

func (e *edit) addApproval(content string, number int) {
	approvals := append(slices.Clone(e.spec.Approvals), mariposa.Approval{Content: content, Number: number, By: e.req.actor(), At: e.now})
	e.spec.Approvals = approvals[max(0, len(approvals)-maxApprovals):]
}

// unapprovedReason says which approval a draft waits for; empty if none.
func (e *edit) unapprovedReason(m *draftResult) string {
	if len(m.unapproved) == 0 {
		return ""
	}
	return reason.Sentence(mariposa.AwaitsApproval(e.spec.Number, m.unapproved))
}

// ApproveVersion lets a version use the protected secrets that it refers to.
func (c *Changer) ApproveVersion(ctx context.Context, req *Request, project, ref string) (*contract.Changed, error) {
	return c.changeApproval(ctx, req, project, ref, func(e *edit, v *picture.Version, uses []string, by *mariposa.Approval) (string, error) {
		if len(uses) == 0 {
			return "", conflict("version %d of %s needs no approval: it uses no protected secret", v.Spec.Number, e.spec.Name)
		}
		if by != nil {
			e.answer.Reason = "already approved by " + by.By
			return "", nil
		}
		if err := e.requireAdmissible(v, "ask for another version"); err != nil {
			return "", err
		}
		e.addApproval(v.Content(&e.spec), v.Spec.Number)
		e.answer.Reason = e.afterApproval(v)
		return "version.approved", nil
	})
}

// WithdrawApproval withdraws the approval of a version. Its instances keep running, but
// the version cannot come into force again.
func (c *Changer) WithdrawApproval(ctx context.Context, req *Request, project, ref string) (*contract.Changed, error) {
	return c.changeApproval(ctx, req, project, ref, func(e *edit, v *picture.Version, uses []string, by *mariposa.Approval) (string, error) {
		if by == nil {
			return "", conflict("version %d of %s is not approved", v.Spec.Number, e.spec.Name)
		}
		content := v.Content(&e.spec)
		e.spec.Approvals = slices.DeleteFunc(slices.Clone(e.spec.Approvals), func(a mariposa.Approval) bool { return a.Content == content })
		if st := e.record.Status(); st != nil && st.Number == v.Spec.Number {
			e.answer.Reason = "the version is in force and its instances keep running: rotate " + strings.Join(uses, ", ") + " if they must not have read it"
		}
		return "version.withdrawn", nil
	})
}

// changeApproval changes the approval of a version. Build returns the event, or none if
// nothing changes.
func (c *Changer) changeApproval(ctx context.Context, req *Request, project, ref string,
	build func(e *edit, v *picture.Version, uses []string, by *mariposa.Approval) (string, error),
) (*contract.Changed, error) {
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		found, err := c.FindVersion(ctx, e.record, ref)
		if err != nil {
			return nil, err
		}
		v, err := c.Cache.Version(ctx, e.record.ID, found.Spec().Number)
		if err != nil {
			return nil, err
		}
		e.answer.Version, e.answer.Number = v.Spec.Version, v.Spec.Number
		uses, by := v.Approval(&e.spec)
		event, err := build(e, v, uses, by)
		if err != nil || event == "" {
			return &e.attempt, err
		}
		why := fmt.Sprintf("version %d, which uses %s", v.Spec.Number, strings.Join(uses, ", "))
		e.unit.Audit[0].Reason = why
		e.unit.Exists(mariposa.KindVersion, found.ID)
		spec := e.spec
		e.write(store.Write{Kind: mariposa.KindProject, ID: e.record.ID, Spec: &spec}, "", nil)
		e.write(store.Write{Kind: mariposa.KindVersion, ID: found.ID, Spec: found.Spec()}, event, mariposa.Asked(why)) // unchanged: only the event matters
		return &e.attempt, nil
	})
}

// afterApproval says what happens after an approval, and sets the task in the answer.
func (e *edit) afterApproval(v *picture.Version) string {
	for _, t := range e.tasks {
		if t.State() != mariposa.TaskQueued || t.Spec.Patch.Number == 0 {
			continue
		}
		waiting, _ := e.readVersion(t.Spec.Patch.Number) // a lost version waits for no approval
		if waiting != nil && waiting.Content(&e.spec) == v.Content(&e.spec) {
			e.answer.Task = &t.ID
			return "its queued task starts when its turn comes"
		}
	}
	if st := e.record.Status(); st != nil && st.Number == v.Spec.Number {
		return "it is already in force"
	}
	if v.Spec.Number == e.spec.Number && v.Spec.Cause == mariposa.CauseMetadata {
		return "its values are applied now"
	}
	return "no task will deploy it: run `mariposa project revert " + strconv.Itoa(v.Spec.Number) + "` to do so"
}

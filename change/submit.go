package change

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// Submission is a submitted manifest, a metadata document, or both.
type Submission struct {
	Manifest []byte // nil: unchanged
	JSON     bool   // the manifest came as JSON
	Metadata []byte // nil: unchanged
	Message  string // describes the version in its history
	Rolling  mariposa.Amount
	Canary   mariposa.Amount
	Previous string // the newest version that the caller knows, by hash, number or tag
	Force    bool   // accept any newest version

	service  string                       // the only one that the manifest changes in the newest one; empty: it is a whole manifest
	resolved map[string]mariposa.ImagePin // what the images mean that the newest version does not use
}

// maxMessage bounds the message of a version.
const maxMessage = 4000

// ErrEmpty says that a manifest is empty.
var ErrEmpty = invalid("the manifest is empty: it must begin with services:")

// read checks a submission and parses its manifest; nil if it has none.
func (s *Submission) read() (*manifest.Project, error) {
	if len(s.Message) > maxMessage || !isText(s.Message) {
		return nil, invalid("message must be UTF-8 text without NUL bytes, of at most %d bytes", maxMessage)
	}
	switch {
	case s.Manifest == nil:
		return nil, nil
	case len(bytes.TrimSpace(s.Manifest)) == 0:
		return nil, ErrEmpty
	}
	return manifest.Parse(s.Manifest)
}

// resolveSubmission reads a submission and resolves the images that are new in it. It is called
// before a change begins: a registry may take its time.
func (c *Changer) resolveSubmission(ctx context.Context, project string, sub *Submission) (*Submission, *manifest.Project, error) {
	parsed, err := sub.read()
	if err != nil {
		return nil, nil, err
	}
	resolved := *sub
	resolved.resolved = c.resolveNew(ctx, c.organizationOf(project), parsed, c.newestOf(ctx, project))
	return &resolved, parsed, nil
}

// UpdateProject renames a project, submits a manifest or metadata, or both. An empty
// name or a nil submission leaves that part unchanged.
func (c *Changer) UpdateProject(ctx context.Context, req *Request, project, name string, sub *Submission) (*contract.Changed, error) {
	if name != "" {
		if err := mariposa.CheckName("project", name); err != nil {
			return nil, err
		}
	}
	var parsed *manifest.Project
	if sub != nil {
		var err error
		if sub, parsed, err = c.resolveSubmission(ctx, project, sub); err != nil {
			return nil, err
		}
	}
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		var reason string
		if name != "" && name != e.spec.Name {
			if err := e.rename(name); err != nil {
				return nil, err
			}
			reason = "renamed to " + name
		}
		if sub != nil {
			submitted, err := e.submit(sub, parsed)
			if err != nil {
				return nil, err
			}
			if submitted {
				reason = cmp.Or(reason, e.taskReason(), sub.Message, "its metadata changed")
			}
		}
		if reason == "" {
			return &e.attempt, nil
		}
		return e.finish(reason)
	})
}

// Rewrite changes one service of the newest manifest. It returns the name of the service and the
// new manifest. The project's spec has the ids of the services.
type Rewrite func(newest *mariposa.VersionSpec, of *mariposa.ProjectSpec) (service string, doc []byte, err error)

// EditService submits the newest manifest with one service changed.
func (c *Changer) EditService(ctx context.Context, req *Request, project string, sub Submission, rewrite Rewrite) (*contract.Changed, error) {
	sub.resolved = c.resolveEdit(ctx, project, rewrite)
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		newest, err := e.newest()
		if err != nil {
			return nil, err
		}
		if newest == nil {
			return nil, e.errNewestLost()
		}
		next := sub
		if next.service, next.Manifest, err = rewrite(newest.Spec, &e.spec); err != nil {
			return nil, err
		}
		parsed, err := next.read()
		if err != nil {
			return nil, err
		}
		submitted, err := e.submit(&next, parsed)
		if err != nil || !submitted {
			return &e.attempt, err
		}
		return e.finish(e.taskReason())
	})
}

// submit adds a version and the task that brings it into force. Submitting the newest
// version again changes nothing, unless its task was dropped or it was rolled back:
// then it is resubmitted.
func (e *edit) submit(sub *Submission, parsed *manifest.Project) (bool, error) {
	if !sub.Force {
		if err := e.requireBase(sub.Previous, sub.Metadata != nil); err != nil {
			return false, err
		}
	}
	d := sub.draft(parsed)
	if sub.Metadata != nil {
		var err error
		if d.values, d.given, err = e.importValues(sub.Metadata); err != nil {
			return false, err
		}
	}
	if d.parsed == nil {
		d.cause = mariposa.CauseMetadata
	}
	return e.addVersionTask(d, mariposa.Patch{Rolling: sub.Rolling, Canary: sub.Canary})
}

// draft returns the draft of a submission.
func (s *Submission) draft(parsed *manifest.Project) draft {
	return draft{cause: mariposa.CauseManifest, bytes: s.Manifest, json: s.JSON, parsed: parsed, message: s.Message, service: s.service, resolved: s.resolved}
}

// addVersionTask makes a version from a draft and adds the task that brings it into
// force. A change of values alone needs no task, unless services are reprovisioned for
// it.
func (e *edit) addVersionTask(d draft, p mariposa.Patch) (bool, error) {
	before, first := e.spec.Number, e.hasNoVersion()
	m, err := e.makeOrResubmit(d)
	if err != nil {
		return false, err
	}
	if m == nil && d.cause == mariposa.CauseManifest {
		return false, e.joinTask(d, p)
	}
	if m == nil {
		return false, nil
	}
	if d.cause == mariposa.CauseMetadata {
		if err := e.addValuesTask(d, m, p); err != nil {
			return false, err
		}
		e.answer.Reason = joinReasons(e.answer.Reason, cmp.Or(e.unapprovedReason(m), e.outdatedServices(m)))
		return true, nil
	}
	said := "was submitted"
	if e.spec.Number == before {
		said = "was resubmitted"
	}
	e.answer.Reason = cmp.Or(e.unapprovedReason(m), e.answer.Reason)
	p.Number = e.spec.Number
	t := mariposa.TaskSpec{
		Component: string(d.cause), Origin: mariposa.OriginUser, Supersedes: true,
		Reason: mariposa.Asked(cmp.Or(d.message, "version "+strconv.Itoa(e.spec.Number)+" "+said)), Patch: p,
	}
	if first { // as for a new project
		t.Task, t.Patch.Goal, t.Supersedes = mariposa.TaskStart, mariposa.GoalStarted, false
	} else if t, err = e.completeTask(m, t); err != nil {
		return false, err
	} else if len(t.Services) > 0 {
		t.Services = union(t.Services, e.scaledServices(p))
	}
	return true, e.admit(&t)
}

// joinReasons joins the parts of an answer's reason that are not empty.
func joinReasons(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}

// addValuesTask adds a task for the services that are reprovisioned for new values, or
// that are frozen and get them after the thaw. If the queue does not admit it, the
// planner applies the values by itself.
func (e *edit) addValuesTask(d draft, m *draftResult, p mariposa.Patch) error {
	services := e.awaitingThaw(d, m)
	if len(m.toReprovision) > 0 {
		var err error
		if services, err = e.servicesToUpdate(m); err != nil {
			return err
		}
	}
	if len(services) == 0 {
		return nil
	}
	p.Number = e.spec.Number
	err := e.admit(&mariposa.TaskSpec{
		Task: mariposa.TaskReprovision, Component: string(d.cause), Services: services,
		Reason: mariposa.Asked("metadata changed: " + strings.Join(m.keys, ", ")),
		Patch:  p,
	})
	if mariposa.CodeOf(err) == mariposa.Conflict {
		return nil
	}
	return err
}

// requireBase refuses a change that is not based on the newest version. Increments of
// a counter share one version number, so if values change too, the number of such a
// version is not enough.
func (e *edit) requireBase(previous string, values bool) error {
	if previous == TagLatest {
		return mariposa.Errorf(mariposa.InvalidArgument, "previous: %q always means the newest version, so it cannot tell whether somebody else has changed the project: name the version that your change is based on", previous)
	}
	number, tagged := Tags(e.record)[previous]
	if tagged && number != e.spec.Number || !tagged && !IsVersion(previous, e.spec.Version, e.spec.Number) {
		return e.errStale(previous)
	}
	if !values || (len(previous) >= 7 && strings.HasPrefix(e.spec.Version, previous)) {
		return nil
	}
	newest, err := e.newest()
	if err != nil || newest == nil || newest.Spec.Counter == "" {
		return err
	}
	return conflict("version %d of %s increments %s and can change without a new number: refer to it by its hash, ?previous=%s",
		e.spec.Number, e.spec.Name, newest.Spec.Counter, e.spec.Version)
}

func (e *edit) errStale(previous string) error {
	is := "the newest version of " + e.spec.Name + " is " + versionLabel(e.spec.Version, e.spec.Number)
	if previous == "" {
		return conflict("%s: name the version that your change is based on with ?previous=, or pass ?force=true", is)
	}
	return conflict("%s, not %s: review what changed, then retry with ?previous=%d", is, previous, e.spec.Number)
}

// IsVersion reports whether a reference means a version, by number, hash or hash
// prefix.
func IsVersion(ref, sha string, number int) bool {
	return ref == strconv.Itoa(number) || (len(ref) >= 7 && strings.HasPrefix(sha, ref))
}

// serviceIDs assigns ids to the services of a manifest. An id is derived from the
// project and the name, and is kept when a service is removed, so that a service that
// is added again keeps its id.
func serviceIDs(project string, old map[string]string, m *manifest.Project) map[string]string {
	ids := make(map[string]string, len(old)+len(m.Services))
	for name, id := range old {
		ids[name] = id
	}
	space := uuid.NewSHA1(uuid.NameSpaceOID, []byte(project))
	for _, svc := range m.Services {
		if ids[svc.Name] == "" {
			ids[svc.Name] = uuid.NewSHA1(space, []byte(svc.Name)).String()
		}
	}
	return ids
}

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"mariposa"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/wire"
)

// liveFacts are the facts that determine the live values of a project's instances and can
// change while the instances run, and whether the instances are frozen.
type liveFacts struct {
	project  string            // metadata, names, the version in force, approvals
	services map[string]string // the version in force, the scale, the bindings and the freeze of each
}

// findChangedValues finds the instances whose live values must be sent again, by node,
// after a project or some of its services have changed. It visits only the project's
// instances: its nodes may have many others.
func (f *Fleet) findChangedValues(id string, services []string) map[string][]string {
	r := f.Picture.Projects.Get(id)
	if r == nil {
		delete(f.liveFacts, id)
		return nil
	}
	if !f.noteFacts(r, services) {
		return nil
	}
	byNode := map[string][]string{}
	f.Picture.EachInstanceOf(id, func(r *store.Instance) bool {
		node := r.Spec().Node
		byNode[node] = append(byNode[node], r.ID)
		return true
	})
	return byNode
}

// noteFacts records the live facts of a project and some of its services, and reports
// whether they have changed. A project that is new to it is recorded completely.
func (f *Fleet) noteFacts(r *store.Project, services []string) (changed bool) {
	st := r.Status()
	if st == nil {
		st = &mariposa.ProjectStatus{}
	}
	notified := f.liveFacts[r.ID]
	if notified == nil {
		notified, changed = &liveFacts{services: map[string]string{}}, true
		f.liveFacts[r.ID] = notified
		services = slices.Collect(maps.Keys(st.Services))
	}
	if now := f.factsOf(r, st); notified.project != now {
		notified.project, changed = now, true
	}
	for _, name := range services {
		now := factsOfService(st.Services[name])
		if changed = changed || notified.services[name] != now; now == "" {
			delete(notified.services, name)
		} else {
			notified.services[name] = now
		}
	}
	return changed
}

func (f *Fleet) factsOf(r *store.Project, st *mariposa.ProjectStatus) string {
	spec := r.Spec()
	name := ""
	if org := f.Picture.Orgs.Get(spec.Organization); org != nil {
		name = org.Spec().Name
	}
	approved := ""
	if n := len(spec.Approvals); n > 0 {
		approved = fmt.Sprintf("%d %s", n, spec.Approvals[n-1].Content)
	}
	return fmt.Sprintf("%d %q %q %d %s", spec.Metadata, spec.Name, name, st.Number, approved)
}

func factsOfService(ss *mariposa.ServiceStatus) string {
	if ss == nil {
		return ""
	}
	facts := fmt.Sprintf("%d %d %t", ss.Number, ss.Scale, ss.Frozen != nil)
	if ss.Bindings != nil {
		facts += fmt.Sprintf(" %v", ss.Bindings.To)
	}
	return facts
}

// sendValues sends the node the live values of instances that are new to the node, or
// whose project has changed its values.
func (s *Session) sendValues(ctx context.Context, records []*store.Instance) error {
	var items []wire.MdataItem
	for _, r := range records {
		it, err := s.liveValues(ctx, r)
		if err != nil {
			return err
		}
		if it != nil {
			items = append(items, *it)
		}
	}
	frames, tooLarge := wire.Pack(items)
	for _, m := range frames {
		s.send(wire.Frame{Mdata: m})
	}
	for _, it := range tooLarge {
		slog.Warn("the live values of an instance are too large for a frame; it keeps the previous ones", "instance", it.ID)
	}
	return nil
}

// liveValues returns the live values of one instance; nil: it has none, or its goal is
// gone.
func (s *Session) liveValues(ctx context.Context, r *store.Instance) (*wire.MdataItem, error) {
	spec := r.Spec()
	project := s.f.Picture.Projects.Get(spec.Project)
	if spec.Goal == mariposa.GoalGone || project == nil {
		return nil, nil
	}
	def, v, err := s.definitionInForce(ctx, spec, project)
	if err != nil || def == nil {
		return nil, err
	}
	if len(def.Mdata) == 0 {
		return s.clearedValues(ctx, r, spec, project)
	}
	own, err := s.ownVersion(ctx, spec, def, v)
	if err != nil {
		return nil, err
	}
	if !covers(v, own, spec, project) {
		return nil, nil // it is about to be replaced, and keeps the values that it has until then
	}
	newest, err := s.newestValues(ctx, spec, project, v, own)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil // there is a newer one, which comes through the feed
	}
	if err != nil {
		return nil, err
	}
	hidden := func(key string) bool { return hiddenFrom(spec, v, project)(key) || hiddenFrom(spec, own, project)(key) }
	sc := s.scopeWithout(ctx, r.ID, spec, v, project, hidden)
	if st := project.Status(); st != nil && st.Services[spec.ServiceName] != nil {
		sc.Other = s.resolveOthers(ctx, st.Services[spec.ServiceName].Bindings, project, hidden) // as they are now, not as they were when it was created
	}
	sc.Meta = func(key string) (string, bool) {
		if hidden(key) {
			return "", false // the entry is left out
		}
		return v.Manifest.Value(newest, key)
	}
	entries, err := manifest.ResolveMdata(def, sc)
	if err != nil { // one bad instance must not block its whole node
		slog.Warn("cannot resolve the live values of an instance", "instance", spec.Name, "err", err)
		return nil, nil
	}
	return &wire.MdataItem{ID: r.ID, Number: project.Revision, Values: entries}, nil
}

// ownVersion returns the version that an instance runs: the one in force if that defines
// it in the same way, otherwise the one that it was created from. It is empty if that is
// lost.
func (s *Session) ownVersion(ctx context.Context, spec *mariposa.InstanceSpec, def *mariposa.Service, inForce *picture.Version) (*picture.Version, error) {
	if !spec.Managed || spec.Number == inForce.Spec.Number || spec.Digest == def.Digest {
		return inForce, nil
	}
	own, err := s.f.Cache.Version(ctx, spec.Project, spec.Number)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, picture.ErrUnreadable) {
		return &picture.Version{}, nil
	}
	return own, err
}

// covers reports whether a version uses all protected secrets that another one passes to
// an instance. If it does not, nobody has approved the values that it sends to that
// instance, which could make the instance reveal them.
func covers(v, own *picture.Version, of *mariposa.InstanceSpec, project *store.Project) bool {
	protected := project.Spec().Protected
	uses := v.Manifest.UsesAny(protected)
	return !slices.ContainsFunc(protected, func(key string) bool {
		return own.Manifest.Holds(of.ServiceName, key) && !slices.Contains(uses, key)
	})
}

// newestValues returns the live values of an instance while a version is in force: the
// newest ones, unless they wait for an approval, or belong to a version that needs none
// because it does not use the protected secrets that the instance has. For a frozen
// service, the newest ones are those from before the freeze.
func (s *Session) newestValues(ctx context.Context, of *mariposa.InstanceSpec, project *store.Project, inForce, own *picture.Version) (*manifest.Values, error) {
	spec, frozenAt := project.Spec(), valuesOfFreeze(of, project)
	if frozenAt == 0 && (len(spec.Protected) == 0 || inForce.Spec.Number == spec.Number) {
		return s.f.Cache.Values(ctx, project.ID, spec.Metadata)
	}
	newest, err := s.f.Cache.Version(ctx, project.ID, cmp.Or(frozenAt, spec.Number))
	if err != nil && !errors.Is(err, picture.ErrUnreadable) {
		return nil, err
	}
	switch {
	case newest == nil:
		return inForce.Values, nil
	case newest.Spec.Number != inForce.Spec.Number && (len(newest.NeedsApproval(spec)) > 0 || !covers(newest, own, of, project)):
		return inForce.Values, nil
	case frozenAt == 0:
		return s.f.Cache.Values(ctx, project.ID, spec.Metadata)
	}
	return newest.Values, nil
}

// valuesOfFreeze returns the version whose live values an instance of a frozen service
// keeps; 0 if its service is not frozen.
func valuesOfFreeze(of *mariposa.InstanceSpec, project *store.Project) int {
	if st := project.Status(); st != nil && of.Managed {
		if ss := st.Services[of.ServiceName]; ss != nil && ss.Frozen != nil {
			return ss.Frozen.Values
		}
	}
	return 0
}

// clearedValues removes the live values that an instance was created with, if the
// definition in force has none.
func (s *Session) clearedValues(ctx context.Context, r *store.Instance, spec *mariposa.InstanceSpec, project *store.Project) (*wire.MdataItem, error) {
	own, _, err := s.definition(ctx, spec, spec.Number)
	if errors.Is(err, errLost) || (err == nil && len(own.Mdata) == 0) {
		return nil, nil
	}
	return &wire.MdataItem{ID: r.ID, Number: project.Revision}, err
}

// definitionInForce returns the definition whose live values an instance reads: the one in force
// or, if its service is no longer defined, its own.
func (s *Session) definitionInForce(ctx context.Context, spec *mariposa.InstanceSpec, project *store.Project) (*mariposa.Service, *picture.Version, error) {
	number := spec.Number
	if st := project.Status(); st != nil && spec.Managed {
		if ss := st.Services[spec.ServiceName]; ss != nil && !ss.Removed {
			number = ss.Number
		}
	}
	def, v, err := s.definition(ctx, spec, number)
	if errors.Is(err, errLost) {
		return nil, nil, nil
	}
	return def, v, err
}

// definition returns what a version defines for an instance; errLost if it defines
// nothing.
func (s *Session) definition(ctx context.Context, spec *mariposa.InstanceSpec, number int) (*mariposa.Service, *picture.Version, error) {
	v, err := s.f.Cache.Version(ctx, spec.Project, number)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, picture.ErrUnreadable) {
		return nil, nil, errLost
	}
	if err != nil {
		return nil, nil, err
	}
	def := v.Services[spec.ServiceName]
	if !spec.Managed {
		if def, err = manifest.ParseService(spec.Name, manifest.Modernize(spec.Definition), v.Manifest); err != nil {
			slog.Warn("cannot read the workload of an unmanaged instance", "instance", spec.Name, "err", err)
			return nil, nil, errLost
		}
	}
	if def == nil {
		return nil, nil, errLost
	}
	return def, v, nil
}

// records returns instances as they are now, each once, by id.
func (s *Session) records(ids []string) []*store.Instance {
	slices.Sort(ids)
	var all []*store.Instance
	for _, id := range slices.Compact(ids) {
		if r := s.f.Picture.Instances.Get(id); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// maskSecrets masks a project's secrets in the status of an instance: an error may quote
// a command.
func (s *Session) maskSecrets(ctx context.Context, spec *mariposa.InstanceSpec, st *mariposa.InstanceStatus) {
	project := s.f.Picture.Projects.Get(spec.Project)
	if project == nil || project.Spec().Metadata == 0 || (st.Reason == "" && len(st.Details) == 0 && len(st.Checks) == 0) {
		return
	}
	mask, err := s.f.Cache.Mask(ctx, project, spec)
	if err != nil { // better to show nothing than a secret
		slog.Warn("cannot read a project's secrets to mask them", "project", spec.Project, "err", err)
		st.Reason, st.Details, st.Checks = "the message of the node is hidden: the project's secrets cannot be read to mask them", nil, nil
		return
	}
	st.Reason = mask.Text(st.Reason)
	for i := range st.Checks {
		st.Checks[i].Name, st.Checks[i].Reason = mask.Text(st.Checks[i].Name), mask.Text(st.Checks[i].Reason)
	}
	if len(st.Details) > 0 {
		st.Details = maps.Clone(st.Details)
		for name, text := range st.Details {
			st.Details[name] = mask.Text(text)
		}
	}
}

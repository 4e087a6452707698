package change

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/manifest"
	"mariposa/queue"
	"mariposa/store"
)

// SetQuota changes the limits of an organization. Resources in use are unaffected,
// even above the limits.
func (c *Changer) SetQuota(ctx context.Context, req *Request, org string, set func(*mariposa.Quota) error) (*contract.Quota, error) {
	return commit(ctx, c, req, org, func() (*store.Unit, contract.Quota, error) {
		unit, spec, err := c.editOrganization(req, org)
		if err != nil {
			return nil, contract.Quota{}, err
		}
		if err := set(&spec.Quota); err != nil {
			return nil, contract.Quota{}, err
		}
		unit.Put(orgWrite(req, org, spec))
		unit.Audit[0].Object, unit.Audit[0].ObjectName, unit.Audit[0].Reason = org, spec.Name, describeQuota(spec.Quota)
		doc, err := c.Quota(ctx, org, spec)
		return unit, doc, err
	})
}

// Quota returns the limits and the usage of an organization.
func (c *Changer) Quota(ctx context.Context, id string, spec *mariposa.OrganizationSpec) (contract.Quota, error) {
	ledger, err := c.Store.Ledger(ctx)
	if err != nil {
		return contract.Quota{}, err
	}
	resources, projects := mariposa.LedgerOf(id)
	used := ledger[resources]
	doc := contract.Quota{
		Organization: id, OrganizationName: spec.Name,
		Limits: limitsDoc(spec.Quota),
		Used: contract.QuotaUsed{
			Projects: ledger[projects].Instances, Instances: used.Instances, CPU: float64(used.MilliCPU) / 1000, Memory: used.Memory,
		},
	}
	doc.Stored.PerProject = storedLimitOf(c.Picture, spec.Quota)
	doc.Stored.EventsPerProject = eventsShare(doc.Stored.PerProject)
	doc.Stored.Used, doc.Stored.Events, err = c.storedBy(ctx, id)
	return doc, err
}

// limitsDoc returns the limits of a quota for the API.
func limitsDoc(q mariposa.Quota) contract.QuotaLimits {
	doc := contract.QuotaLimits{Projects: q.Projects, Instances: q.Instances, Memory: q.Memory, StoredPerProject: q.StoredPerProject}
	if n := q.MilliCPU; n != nil {
		cores := float64(*n) / 1000
		doc.CPU = &cores
	}
	return doc
}

// describeQuota describes a quota in words.
func describeQuota(q mariposa.Quota) string {
	var said []string
	say := func(set bool, what string, figure any) {
		if set {
			said = append(said, fmt.Sprintf("%s %v", what, figure))
		}
	}
	say(q.Projects != nil, "projects", figureOf(q.Projects))
	say(q.Instances != nil, "instances", figureOf(q.Instances))
	say(q.MilliCPU != nil, "cores", formatCores(figureOf(q.MilliCPU)))
	say(q.Memory != nil, "memory", formatMegabytes(figureOf(q.Memory)))
	say(q.StoredPerProject != nil, "stored per project", formatMegabytes(figureOf(q.StoredPerProject)))
	if said == nil {
		return "no limits"
	}
	return "at most " + strings.Join(said, ", ")
}

func figureOf[T int | int64](limit *T) T {
	if limit == nil {
		return 0
	}
	return *limit
}

// reserve claims the demand of the goal after this change from the organization's
// quota, in the same commit, so that concurrent changes cannot exceed it together. A
// goal with a lower demand returns the rest.
func (e *edit) reserve() error {
	after, err := e.goalAfter()
	if err != nil {
		return err
	}
	if err := e.refuseGrowth(after); err != nil {
		return err
	}
	demand, err := e.demand(after)
	if err != nil {
		return err
	}
	e.claim(e.spec.Organization, demand.Minus(e.spec.Demand))
	e.spec.Demand = demand
	return nil
}

// goalAfter returns the goal once the waiting tasks and this change have taken effect.
func (e *edit) goalAfter() (*mariposa.ProjectStatus, error) { return e.goalWithout(e.ended, e.task) }

// goalWithout returns the goal once the waiting tasks, except the ended ones, have
// taken effect, followed by an added task, if any.
func (e *edit) goalWithout(ended map[string]bool, add *mariposa.TaskSpec) (*mariposa.ProjectStatus, error) {
	goal := e.record.Status()
	waiting := slices.DeleteFunc(slices.Clone(e.tasks), func(t queue.Task) bool { return t.State() != mariposa.TaskQueued || ended[t.ID] })
	slices.SortFunc(waiting, queue.CompareAge)
	if add != nil {
		waiting = append(waiting, queue.Task{Spec: add})
	}
	var lost error
	for _, t := range waiting {
		c := converge.Change{
			Now: e.now, IDs: e.spec.Services, Version: e.spec.Version, Scope: t.Spec.Services, LiftsFreeze: t.Spec.LiftsFreeze,
			Hash: func(int) string { return "" },
			Versions: func(n int) converge.Definitions {
				defs, err := e.definitions(n)
				if err != nil {
					lost = err
				}
				return defs
			},
		}
		if t.Spec.Patch.Accept || t.Spec.Patch.StopVersion > 0 {
			view, err := e.view(goal)
			if err != nil {
				return nil, err
			}
			c.Running = view.Running()
		}
		goal = converge.Apply(goal, t.Spec.Patch, c)
	}
	return goal, lost
}

// demand sums up the resources of a goal.
func (e *edit) demand(goal *mariposa.ProjectStatus) (mariposa.Resources, error) {
	sum := e.spec.Unmanaged
	if goal == nil || goal.Goal != mariposa.GoalStarted || e.spec.Deleting {
		return sum, nil
	}
	for name, ss := range goal.Services {
		if ss.Removed || ss.Stopped {
			continue
		}
		defs, err := e.definitions(ss.Number)
		if err != nil {
			return sum, err
		}
		one := mariposa.Resources{Instances: ss.Scale}
		if def := defs[name]; def != nil {
			one.MilliCPU, one.Memory = def.MilliCPU*int64(ss.Scale), def.Memory*int64(ss.Scale)
		}
		sum = sum.Plus(one)
	}
	return sum, nil
}

// claim adds a claim on an organization's quota.
func (e *edit) claim(org string, take mariposa.Resources) {
	if take == (mariposa.Resources{}) {
		return
	}
	account, _ := mariposa.LedgerOf(org)
	e.unit.Take(account, take, e.c.limits(org))
}

// requireNoProjects makes a unit fail if an organization has a project at the time of
// its commit.
func requireNoProjects(unit *store.Unit, org string) {
	_, account := mariposa.LedgerOf(org)
	one := mariposa.Resources{Instances: 1}
	unit.Take(account, one, one)
	unit.GiveBack(account, one)
}

// claimProject adds n projects to an organization's quota usage.
func (e *edit) claimProject(org string, n int) {
	_, account := mariposa.LedgerOf(org)
	var limit mariposa.Resources
	if r := e.c.Picture.Orgs.Get(org); r != nil {
		limit.Instances = claimLimit(r.Spec().Quota.Projects)
	}
	e.unit.Take(account, mariposa.Resources{Instances: n}, limit)
}

// limits returns an organization's limits in the form that a claim uses.
func (c *Changer) limits(org string) mariposa.Resources {
	r := c.Picture.Orgs.Get(org)
	if r == nil {
		return mariposa.Resources{}
	}
	q := r.Spec().Quota
	return mariposa.Resources{Instances: claimLimit(q.Instances), MilliCPU: claimLimit(q.MilliCPU), Memory: claimLimit(q.Memory)}
}

// claimLimit converts a limit for a claim. There zero means unlimited, so a limit of
// zero becomes -1.
func claimLimit[T int | int64](limit *T) T {
	switch {
	case limit == nil:
		return 0
	case *limit == 0:
		return -1
	}
	return *limit
}

// overQuota says which limit a change exceeds.
func (c *Changer) overQuota(ctx context.Context, unit *store.Unit, err error) error {
	if slices.ContainsFunc(unit.Writes, func(w store.Write) bool { return w.Kind == mariposa.KindOrg && w.Delete }) {
		return conflict("a project was just added to the organization: move or delete it first")
	}
	ledger, failed := c.Store.Ledger(ctx)
	if failed != nil {
		return failed
	}
	for _, claim := range unit.Claims {
		have := ledger[claim.Node]
		if _, over := claim.Apply(have); over == nil {
			continue
		}
		org, projects := c.accountOf(claim.Node)
		if org == nil {
			continue
		}
		name := org.Spec().Name
		return &mariposa.Error{Code: mariposa.QuotaExceeded, Cause: err, Message: fmt.Sprintf(
			"organization %s %s: %s, or ask an installation admin to raise the quota", name, describeLimit(have, claim, projects), lessOf(projects))}
	}
	return mariposa.Errorf(mariposa.Conflict, "another request just used the remaining quota: try again")
}

func lessOf(projects bool) string {
	if projects {
		return "delete a project"
	}
	return "scale a service down"
}

// accountOf finds the organization whose account a claim is on.
func (c *Changer) accountOf(account string) (org *store.Organization, projects bool) {
	var found *store.Organization
	c.Picture.Orgs.Each(func(r *store.Organization) bool {
		resources, count := mariposa.LedgerOf(r.ID)
		if account == resources || account == count {
			found, projects = r, account == count
		}
		return found == nil
	})
	return found, projects
}

// describeLimit says how much is allowed, in use and requested.
func describeLimit(have mariposa.Resources, c store.Claim, projects bool) string {
	say := func(limit, used, more any, what string) string {
		return fmt.Sprintf("has a quota of %v %s, uses %v and would need %v more", limit, what, used, more)
	}
	sum := have.Plus(c.Take)
	switch allowed := func(n int64) int64 { return max(0, n) }; {
	case projects:
		return say(max(0, c.Limit.Instances), have.Instances, c.Take.Instances, "projects")
	case c.Limit.Instances != 0 && sum.Instances > c.Limit.Instances:
		return say(max(0, c.Limit.Instances), have.Instances, c.Take.Instances, "instances")
	case c.Limit.MilliCPU != 0 && sum.MilliCPU > c.Limit.MilliCPU:
		return say(formatCores(allowed(c.Limit.MilliCPU)), formatCores(have.MilliCPU), formatCores(c.Take.MilliCPU), "cores")
	default:
		return say(formatMegabytes(allowed(c.Limit.Memory)), formatMegabytes(have.Memory), formatMegabytes(c.Take.Memory), "of memory")
	}
}

func formatCores(milli int64) string     { return fmt.Sprintf("%g", float64(milli)/1000) }
func formatMegabytes(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// PutPackage creates or changes a package.
func (c *Changer) PutPackage(ctx context.Context, req *Request, spec mariposa.PackageSpec) (*contract.Changed, error) {
	if err := checkText("family", spec.Family); err != nil {
		return nil, err
	}
	spec.Created, spec.Author = c.Clock.Now(), req.actor()
	return c.writePackage(ctx, req, store.Write{ID: spec.Name, Spec: &spec, Event: mariposa.Event{Kind: "package.updated"}})
}

// DeletePackage deletes a package.
func (c *Changer) DeletePackage(ctx context.Context, req *Request, name string) (*contract.Changed, error) {
	if c.Picture.Packages.Get(name) == nil {
		return nil, notFound("no package named %q", name)
	}
	for _, org := range c.Picture.Orgs.All() {
		if p := org.Spec().Policy; p != nil && p.DefaultPackage == name {
			return nil, conflict("package %s is the default package of organization %s: set another default first", name, org.Spec().Name)
		}
	}
	return c.writePackage(ctx, req, store.Write{ID: name, Delete: true, Event: mariposa.Event{Kind: "package.deleted"}})
}

func (c *Changer) writePackage(ctx context.Context, req *Request, w store.Write) (*contract.Changed, error) {
	return c.commit(ctx, req, "package "+w.ID, func() (*attempt, error) {
		w.Kind, w.Event.Actor = mariposa.KindPackage, req.actor()
		a := &attempt{answer: contract.Changed{ID: w.ID, Name: w.ID}}
		a.unit = store.Unit{Writes: []store.Write{w}, Audit: []mariposa.Audit{{Kind: string(mariposa.KindPackage)}}}
		return a, nil
	})
}

// packages returns the sizes that a manifest refers to, as they are now, and under the
// empty name the default size.
func (c *Changer) packages(m *manifest.Project, standard *mariposa.PackageSpec) (map[string]mariposa.PackageSpec, error) {
	var named map[string]mariposa.PackageSpec
	var faults []mariposa.Fault
	if standard != nil {
		named = map[string]mariposa.PackageSpec{"": *standard}
	}
	for _, svc := range m.Services {
		if svc.Package == "" {
			continue
		}
		r := c.Picture.Packages.Get(svc.Package)
		if r == nil {
			faults = append(faults, mariposa.Fault{
				Field: "services." + svc.Name + ".package", Code: mariposa.FaultUnknown,
				Message: "uses package " + svc.Package + ", which does not exist" + c.packageNames(),
			})
			continue
		}
		if named == nil {
			named = map[string]mariposa.PackageSpec{}
		}
		named[svc.Package] = *r.Spec()
	}
	if len(faults) > 0 {
		return nil, &mariposa.Error{Code: mariposa.InvalidArgument, Message: faults[0].String(), Faults: faults}
	}
	return named, nil
}

func (c *Changer) packageNames() string {
	var names []string
	for _, r := range c.Picture.Packages.All() {
		names = append(names, r.ID)
	}
	if len(names) == 0 {
		return "; no packages are defined: create one with `mariposa package set NAME`, or set memory and cpu"
	}
	return "; the packages are " + strings.Join(names[:min(len(names), 20)], ", ")
}

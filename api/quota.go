package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/queue"
	"mariposa/store"
)

func (s *server) getQuota(ctx context.Context, in *OfOrganization) (*document[contract.Quota], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	doc, err := s.quota(ctx, r.ID, r.Spec.(*mariposa.OrganizationSpec))
	if err != nil {
		return nil, err
	}
	return answer(doc)
}

func (s *server) quota(ctx context.Context, id string, spec *mariposa.OrganizationSpec) (contract.Quota, error) {
	ledger, err := s.Store.Ledger(ctx)
	if err != nil {
		return contract.Quota{}, err
	}
	resources, projects := mariposa.LedgerOf(id)
	used := ledger[resources]
	doc := contract.Quota{
		Organization: id, OrganizationName: spec.Name,
		Limits: contract.QuotaLimits{Projects: spec.Quota.Projects, Instances: spec.Quota.Instances, Memory: spec.Quota.Memory},
		Used: contract.QuotaUsed{
			Projects: ledger[projects].Instances, Instances: used.Instances, CPU: float64(used.MilliCPU) / 1000, Memory: used.Memory,
		},
	}
	if n := spec.Quota.MilliCPU; n != nil {
		cores := float64(*n) / 1000
		doc.Limits.CPU = &cores
	}
	return doc, nil
}

type putQuotaInput struct {
	OfOrganization
	RawBody []byte `contentType:"application/json"`
}

func (s *server) putQuota(ctx context.Context, in *putQuotaInput) (*document[contract.Quota], error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(in.RawBody, &fields); err != nil {
		return nil, invalid(`the body must be an object like {"instances": 100, "memory": null}`)
	}
	found, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	doc, err := commit(ctx, s, found.ID, func() (*store.Unit, contract.Quota, error) {
		unit, spec, err := s.editOrganization(ctx, found.ID)
		if err != nil {
			return nil, contract.Quota{}, err
		}
		if err := readQuota(fields, &spec.Quota); err != nil {
			return nil, contract.Quota{}, err
		}
		unit.Writes = append(unit.Writes, orgWrite(ctx, found.ID, spec))
		unit.Audit[0].Object, unit.Audit[0].ObjectName, unit.Audit[0].Reason = found.ID, spec.Name, limitsIn(spec.Quota)
		doc, err := s.quota(ctx, found.ID, spec)
		return unit, doc, err
	})
	if err != nil {
		return nil, err
	}
	return answer(*doc)
}

// limitsIn says in words what a quota allows.
func limitsIn(q mariposa.Quota) string {
	var said []string
	say := func(set bool, what string, figure any) {
		if set {
			said = append(said, fmt.Sprintf("%s %v", what, figure))
		}
	}
	say(q.Projects != nil, "projects", figureOf(q.Projects))
	say(q.Instances != nil, "instances", figureOf(q.Instances))
	say(q.MilliCPU != nil, "cores", cores(figureOf(q.MilliCPU)))
	say(q.Memory != nil, "memory", megabytes(figureOf(q.Memory)))
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

// readQuota sets the limits that are given.
func readQuota(fields map[string]json.RawMessage, q *mariposa.Quota) error {
	for name, raw := range fields {
		var err error
		switch name {
		case "projects":
			q.Projects, err = limit[int](name, raw)
		case "instances":
			q.Instances, err = limit[int](name, raw)
		case "memory":
			q.Memory, err = limit[int64](name, raw)
		case "cpu":
			var cores *float64
			if cores, err = limit[float64](name, raw); err == nil {
				q.MilliCPU = nil
				if cores != nil {
					n := int64(math.Round(*cores * 1000))
					q.MilliCPU = &n
				}
			}
		default:
			err = invalid("%s is no limit; there are projects, instances, cpu and memory", shorten(name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func limit[T int | int64 | float64](name string, raw json.RawMessage) (*T, error) {
	var n *T
	if json.Unmarshal(raw, &n) != nil || (n != nil && (*n < 0 || *n > 1<<53)) {
		return nil, invalid("%s must be a number from 0, or null for no limit, not %s", name, shorten(string(raw)))
	}
	return n, nil
}

// reserve claims of the organization's quota what the goal after this change adds
// up to, in the same commit, so that no two changes both slip through. A goal that
// asks for less gives back.
func (e *edit) reserve() error {
	after, err := e.after()
	if err != nil {
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

// after is the goal once the waiting tasks and this change have taken effect.
func (e *edit) after() (*mariposa.ProjectStatus, error) { return e.without(e.ended, e.task) }

// without is the goal once the waiting tasks have taken effect but for some, and
// after them a task that is added; nil: none is.
func (e *edit) without(ended map[string]bool, add *mariposa.TaskSpec) (*mariposa.ProjectStatus, error) {
	goal := statusOf(e.record)
	waiting := slices.DeleteFunc(slices.Clone(e.tasks), func(t queue.Task) bool { return t.State() != mariposa.TaskQueued || ended[t.ID] })
	slices.SortFunc(waiting, func(a, b queue.Task) int { return cmp.Compare(a.ID, b.ID) })
	if add != nil {
		waiting = append(waiting, queue.Task{Spec: add})
	}
	var lost error
	for _, t := range waiting {
		c := converge.Change{
			Now: e.now, IDs: e.spec.Services, Version: e.spec.Version, Scope: t.Spec.Services, Lift: t.Spec.Lifts,
			Versions: func(n int) converge.Definitions {
				defs, err := e.definitions(n)
				if err != nil {
					lost = err
				}
				return defs
			},
		}
		if t.Spec.Patch.Accept {
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

// demand is what a goal adds up to.
func (e *edit) demand(goal *mariposa.ProjectStatus) (mariposa.Resources, error) {
	sum := e.spec.Single
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
	e.unit.Claims = append(e.unit.Claims, store.Claim{Node: account, Take: take, Limit: e.s.limits(org)})
}

// emptied lets a unit fail if an organization has a project by the time of its commit.
func emptied(unit *store.Unit, org string) {
	_, account := mariposa.LedgerOf(org)
	one := mariposa.Resources{Instances: 1}
	unit.Claims = append(unit.Claims, store.Claim{Node: account, Take: one, Limit: one}, store.Claim{Node: account, Take: mariposa.Resources{}.Minus(one)})
}

// claimProject adds, or takes away, one project.
func (e *edit) claimProject(org string, n int) {
	_, account := mariposa.LedgerOf(org)
	claim := store.Claim{Node: account, Take: mariposa.Resources{Instances: n}}
	if r := e.s.Picture.Get(mariposa.KindOrg, org); r != nil {
		claim.Limit.Instances = most(r.Spec.(*mariposa.OrganizationSpec).Quota.Projects)
	}
	e.unit.Claims = append(e.unit.Claims, claim)
}

// limits are an organization's limits as a claim takes them.
func (s *server) limits(org string) mariposa.Resources {
	r := s.Picture.Get(mariposa.KindOrg, org)
	if r == nil {
		return mariposa.Resources{}
	}
	q := r.Spec.(*mariposa.OrganizationSpec).Quota
	return mariposa.Resources{Instances: most(q.Instances), MilliCPU: most(q.MilliCPU), Memory: most(q.Memory)}
}

// most is a limit as a claim takes it: there zero means none, so a limit of zero is
// one below.
func most[T int | int64](limit *T) T {
	switch {
	case limit == nil:
		return 0
	case *limit == 0:
		return -1
	}
	return *limit
}

// overQuota says which limit a change ran into.
func (s *server) overQuota(ctx context.Context, unit *store.Unit, err error) error {
	if slices.ContainsFunc(unit.Writes, func(w store.Write) bool { return w.Kind == mariposa.KindOrg && w.Delete }) {
		return conflict("the organization has just got a project: move or delete it first")
	}
	ledger, failed := s.Store.Ledger(ctx)
	if failed != nil {
		return failed
	}
	for _, c := range unit.Claims {
		have := ledger[c.Node]
		if _, over := c.Apply(have); over == nil {
			continue
		}
		org, projects := s.accountOf(c.Node)
		if org == nil {
			continue
		}
		name := org.Spec.(*mariposa.OrganizationSpec).Name
		return &mariposa.Error{Code: mariposa.QuotaExceeded, Cause: err, Message: fmt.Sprintf(
			"organization %s %s: %s, or ask whoever runs the installation for more", name, figure(have, c, projects), lessOf(projects))}
	}
	return mariposa.Errorf(mariposa.Conflict, "what was free has just been taken: try again")
}

func lessOf(projects bool) string {
	if projects {
		return "delete one"
	}
	return "scale something down"
}

// accountOf finds the organization whose account a claim is on.
func (s *server) accountOf(account string) (org *store.Record, projects bool) {
	var found *store.Record
	s.Picture.EachOf(mariposa.KindOrg, func(r *store.Record) bool {
		resources, count := mariposa.LedgerOf(r.ID)
		if account == resources || account == count {
			found, projects = r, account == count
		}
		return found == nil
	})
	return found, projects
}

// figure says what is allowed, in use and asked for.
func figure(have mariposa.Resources, c store.Claim, projects bool) string {
	say := func(limit, used, more any, what string) string {
		return fmt.Sprintf("may have %v %s, has %v and would need %v more", limit, what, used, more)
	}
	sum := have.Plus(c.Take)
	switch allowed := func(n int64) int64 { return max(0, n) }; {
	case projects:
		return say(max(0, c.Limit.Instances), have.Instances, c.Take.Instances, "projects")
	case c.Limit.Instances != 0 && sum.Instances > c.Limit.Instances:
		return say(max(0, c.Limit.Instances), have.Instances, c.Take.Instances, "instances")
	case c.Limit.MilliCPU != 0 && sum.MilliCPU > c.Limit.MilliCPU:
		return say(cores(allowed(c.Limit.MilliCPU)), cores(have.MilliCPU), cores(c.Take.MilliCPU), "cores")
	default:
		return say(megabytes(allowed(c.Limit.Memory)), megabytes(have.Memory), megabytes(c.Take.Memory), "of memory")
	}
}

func cores(milli int64) string     { return fmt.Sprintf("%g", float64(milli)/1000) }
func megabytes(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

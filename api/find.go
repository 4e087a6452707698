package api

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/store"
)

// OfProject are the parameters of every path that begins with a project.
type OfProject struct {
	Project      string `path:"project" doc:"id or name" maxLength:"255"`
	Organization string `query:"organization" doc:"the organization in which the project name is looked up; default: the caller's personal organization"`
}

// InProject are the parameters that restrict a list to a project.
type InProject struct {
	Project      string `query:"project" doc:"id or name of a project" maxLength:"255"`
	Organization string `query:"organization" doc:"the organization in which the project name is looked up; default: the caller's personal organization"`
}

var idPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// findOrganization finds an organization by id or name; by default, the caller's personal
// one. Organizations in which the caller has no role are not found.
func (s *server) findOrganization(ctx context.Context, ref string) (*store.Organization, error) {
	c := caller(ctx)
	r := s.directory.Organization(cmp.Or(ref, c.Home))
	if r == nil || s.directory.RoleOf(c, r) == "" {
		return nil, notFound("there is no organization %q", ref)
	}
	return r, nil
}

// findDestination finds the organization in which the caller wants to create a project. For
// a token that is restricted to one project, it returns an error about that and not about
// a missing organization.
func (s *server) findDestination(ctx context.Context, ref string) (*store.Organization, error) {
	c := caller(ctx)
	if c.Bounds.Project != "" {
		bound := "one project"
		p := s.Picture.Projects.Get(c.Bounds.Project)
		if p != nil && s.sees(c, p) {
			bound = "project " + p.Spec().Name
		} else {
			p = nil
		}
		return nil, &mariposa.Error{
			Code: mariposa.Forbidden, Cause: auth.Denial{On: p.Record()},
			Message: "this token is restricted to " + bound + " and can neither create projects nor move that one: use a token without this restriction",
		}
	}
	org, err := s.findOrganization(ctx, ref)
	if err != nil {
		return nil, err
	}
	return org, s.require(ctx, auth.CreateProject, org.Record())
}

// findProject finds a project by id or name, among those that the caller can see. A project
// that is being deleted has no name any more, but its id works until it is gone. Names are
// looked up in the given organization, or else in the caller's personal one.
func (s *server) findProject(ctx context.Context, ref, organization string) (*store.Project, error) {
	c := caller(ctx)
	if r := s.Picture.Projects.Get(ref); r != nil && s.sees(c, r) {
		return r, nil
	}
	home := c.Home
	if organization != "" {
		home = ""
		if org := s.directory.Organization(organization); org != nil {
			home = org.ID
		}
	}
	if r := s.Picture.ProjectNamed(home, ref); r != nil && s.sees(c, r) {
		return r, nil
	}
	if organization != "" { // do not reveal whether the organization exists
		return nil, notFound("there is no project %q in organization %q", ref, organization)
	}
	if other := s.organizationWith(c, ref); other != "" {
		return nil, notFound("there is no project %q here, but there is one in organization %s: add ?organization=%s (-o %s)", ref, other, other, other)
	}
	return nil, notFound("there is no project %q", ref)
}

// organizationWith returns the name of one of the caller's organizations that has a
// project with a name.
func (s *server) organizationWith(c *auth.Caller, name string) string {
	for _, org := range s.Picture.OrganizationsOf(c.User) {
		if r := s.Picture.ProjectNamed(org.ID, name); r != nil && s.sees(c, r) {
			return org.Spec().Name
		}
	}
	return ""
}

// sees reports whether a caller can see a project.
func (s *server) sees(c *auth.Caller, project *store.Project) bool {
	return s.directory.RoleIn(c, project).Rank() > 0
}

// seesAll reports whether a caller sees everything, including deleted objects.
func (s *server) seesAll(c *auth.Caller) bool {
	return s.directory.May(c, auth.RunInstallation, nil) == auth.Allowed
}

// projectsFor lists the projects that a caller can see, by id, optionally of one
// organization.
func (s *server) projectsFor(ctx context.Context, organization string) ([]*store.Project, error) {
	c := caller(ctx)
	var found []*store.Project
	switch {
	case organization != "":
		org := s.directory.Organization(organization)
		if org == nil {
			return nil, notFound("there is no organization %q", organization)
		}
		found = slices.DeleteFunc(s.Picture.ProjectsOf(org.ID), func(r *store.Project) bool { return !s.sees(c, r) })
		if len(found) == 0 && s.directory.RoleOf(c, org) == "" {
			return nil, notFound("there is no organization %q", organization)
		}
		return found, nil
	case c.Admin && c.Bounds.Organization == "":
		found = s.Picture.Projects.All()
	default:
		for _, org := range s.Picture.OrganizationsOf(c.User) {
			found = append(found, s.Picture.ProjectsOf(org.ID)...)
		}
		if c.Admin {
			found = append(found, s.Picture.ProjectsOf(c.Bounds.Organization)...)
		}
		found = append(found, s.Picture.ProjectsWith(c.User)...)
		slices.SortFunc(found, func(a, b *store.Project) int { return strings.Compare(a.ID, b.ID) })
		found = slices.CompactFunc(found, func(a, b *store.Project) bool { return a.ID == b.ID })
	}
	return slices.DeleteFunc(found, func(r *store.Project) bool { return !s.sees(c, r) }), nil
}

// deletedProject returns the last state of a deleted project; nil if the feed no longer
// contains it.
func (s *server) deletedProject(ctx context.Context, id string) *store.Project {
	if !idPattern.MatchString(id) {
		return nil
	}
	q := store.HistoryQuery{Project: id, Limit: 100}
	for range 20 { // only a few changes follow the deletion, about instances on nodes that were unreachable
		changes, err := s.Store.History(ctx, q)
		if err != nil {
			return nil // unreadable history is not shown
		}
		for i := range changes {
			if c := &changes[i]; c.Deleted && c.Record.Kind == mariposa.KindProject && c.Record.ID == id {
				return (*store.Project)(&c.Record)
			}
			q.Before = changes[i].Revision
		}
		if len(changes) < q.Limit {
			break
		}
	}
	return nil
}

// organizationID resolves a filter by organization. The caller must have a role in it, or
// see one of its projects.
func (s *server) organizationID(ctx context.Context, ref string) (string, error) {
	if _, err := s.projectsFor(ctx, ref); err != nil {
		return "", err
	}
	return s.directory.Organization(ref).ID, nil
}

// visibility caches for one request which projects its caller can see.
type visibility struct {
	s     *server
	ctx   context.Context //nolint:containedctx // a visibility lasts one request
	c     *auth.Caller
	all   bool
	known map[string]*store.Project
}

func (s *server) newVisibility(ctx context.Context, c *auth.Caller) *visibility {
	return &visibility{s: s, ctx: ctx, c: c, all: s.seesAll(c), known: map[string]*store.Project{}}
}

// project reports whether the caller can see the objects of a project. Objects of a deleted
// project remain visible to users who could see it when it was deleted.
func (g *visibility) project(id string) bool {
	return g.all || g.record(id) != nil
}

// record returns a project that the caller can see; nil if there is none.
func (g *visibility) record(id string) *store.Project {
	r, known := g.known[id]
	if !known {
		if r = g.s.Picture.Projects.Get(id); r == nil {
			r = g.s.deletedProject(g.ctx, id)
		}
		if r != nil && !g.s.sees(g.c, r) {
			r = nil
		}
		g.known[id] = r
	}
	return r
}

// projectID resolves a filter by project. The id of a deleted project works too: its
// history may still exist.
func (s *server) projectID(ctx context.Context, in InProject) (string, error) {
	if in.Project == "" {
		return "", nil
	}
	r, err := s.findProject(ctx, in.Project, in.Organization)
	switch {
	case err == nil:
		return r.ID, nil
	case idPattern.MatchString(in.Project) && s.newVisibility(ctx, caller(ctx)).project(in.Project):
		return in.Project, nil
	}
	return "", err
}

// projectOfTask finds the project of a task, even a deleted one.
func (s *server) projectOfTask(ctx context.Context, id string) (*store.Project, error) {
	r, err := s.findTask(ctx, id)
	if err != nil {
		return nil, err
	}
	spec := r.Spec()
	g := s.newVisibility(ctx, caller(ctx))
	if p := g.record(spec.Project); p != nil {
		return p, nil
	}
	if !g.all {
		return nil, notFound("there is no task %q", id)
	}
	return &store.Project{Kind: mariposa.KindProject, ID: spec.Project, Halves: store.Halves{Spec: &mariposa.ProjectSpec{Name: spec.ProjectName}}}, nil
}

// projectOfInstance finds the project of an instance, even a deleted one.
func (s *server) projectOfInstance(ctx context.Context, ref string) (*store.Project, error) {
	r, err := s.findInstance(ctx, ref)
	if err != nil {
		return nil, err
	}
	id := r.Spec().Project
	if p := s.newVisibility(ctx, caller(ctx)).record(id); p != nil {
		return p, nil
	}
	return &store.Project{Kind: mariposa.KindProject, ID: id, Halves: store.Halves{Spec: &mariposa.ProjectSpec{}}}, nil
}

// findNode finds a node by id or name. Several nodes can have a name, but only one of them
// owns it: the others wait without a join token, or were rejected.
func (s *server) findNode(ref string) (*store.Node, error) {
	return s.pickNode(ref, func(spec *mariposa.NodeSpec) int {
		switch {
		case spec.OwnsName():
			return 0
		case spec.Approval == mariposa.ApprovalPending:
			return 1
		}
		return 2
	})
}

// findWaiting finds the node that a decision about a pending node is for: one that waits,
// if there is one of that name, and with that fingerprint of its key, if one is given.
func (s *server) findWaiting(ref, fingerprint string) (*store.Node, error) {
	return s.pickNode(ref, func(spec *mariposa.NodeSpec) int {
		switch {
		case spec.Approval == mariposa.ApprovalPending && fingerprint != "" && mariposa.Fingerprint(spec.KeyHash) == fingerprint:
			return 0
		case spec.Approval == mariposa.ApprovalPending:
			return 1
		case spec.Approval == mariposa.ApprovalRejected:
			return 3
		}
		return 2
	})
}

// pickNode finds a node by id, or the one with a name that ranks lowest.
func (s *server) pickNode(ref string, rank func(*mariposa.NodeSpec) int) (*store.Node, error) {
	if r := s.Picture.Nodes.Get(ref); r != nil {
		return r, nil
	}
	var found []*store.Node
	for _, r := range s.Picture.Nodes.All() {
		switch spec := r.Spec(); {
		case spec.Name != ref || len(found) > 0 && rank(spec) > rank(found[0].Spec()):
		case len(found) > 0 && rank(spec) == rank(found[0].Spec()):
			found = append(found, r)
		default:
			found = []*store.Node{r}
		}
	}
	switch len(found) {
	case 0:
		return nil, notFound("there is no node %q", ref)
	case 1:
		return found[0], nil
	}
	slices.SortFunc(found, func(a, b *store.Node) int { return strings.Compare(a.ID, b.ID) })
	var all []string
	for _, r := range found[:min(len(found), 10)] {
		what := r.ID + " (key " + mariposa.Fingerprint(r.Spec().KeyHash)
		if st := r.Status(); st != nil {
			what += ", from " + st.Address
		}
		all = append(all, what+")")
	}
	return nil, mariposa.Errorf(mariposa.Conflict, "%d nodes are named %s: use the id of one of them: %s", len(found), ref, strings.Join(all, ", "))
}

// findInstance finds an instance by id, name or id prefix, among those that the caller
// may see.
func (s *server) findInstance(ctx context.Context, ref string) (*store.Instance, error) {
	g := s.newVisibility(ctx, caller(ctx))
	if r := s.Picture.Instances.Get(ref); r != nil && g.project(r.Spec().Project) {
		return r, nil
	}
	var found []*store.Instance
	s.Picture.Instances.Each(func(r *store.Instance) bool {
		if r.Spec().Name == ref || (len(ref) >= 4 && strings.HasPrefix(r.ID, ref)) {
			found = append(found, r)
		}
		return true
	})
	found = slices.DeleteFunc(found, func(r *store.Instance) bool { return !g.project(r.Spec().Project) })
	switch len(found) {
	case 0:
		return nil, notFound("there is no instance %q", ref)
	case 1:
		return found[0], nil
	}
	slices.SortFunc(found, func(a, b *store.Instance) int { return strings.Compare(a.ID, b.ID) })
	return nil, invalid("%q matches more than one instance, including %s and %s: use the full id", ref, found[0].ID, found[1].ID)
}

// checkMarker rejects invalid markers: a marker is the id of an object that exists or
// existed.
func (s *server) checkMarker(kind mariposa.Kind, marker string) error {
	if marker != "" && !idPattern.MatchString(marker) && s.Picture.Get(kind, marker) == nil {
		return invalid("invalid marker %q: use the marker of the previous page", shortenText(marker))
	}
	return nil
}

// parseAmount parses an amount: a number above zero, or a percentage.
func parseAmount(field, text string) (mariposa.Amount, error) {
	if text == "" {
		return mariposa.Amount{}, nil
	}
	a, ok := mariposa.ParseAmount(text)
	if !ok || a.N == 0 {
		return a, invalid("%s must be a number above 0 or a percentage such as 25%%, not %q", field, text)
	}
	return a, nil
}

func parseRevision(field, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, invalid("%s must be a revision number such as 4711, not %q", field, text)
	}
	return n, nil
}

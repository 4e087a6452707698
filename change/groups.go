package change

import (
	"context"
	"errors"
	"maps"
	"slices"

	"mariposa"
	"mariposa/auth"
	"mariposa/store"
)

// JoinGroups gives a person who has signed in at a provider the roles of their groups there, by the
// names of organizations. With an empty role, they leave the organization. It returns the names of
// organizations that stay as they are, because they do not exist, are personal or would have no owner.
func (c *Changer) JoinGroups(ctx context.Context, in Outsider, user *store.User, roles map[string]mariposa.OrgRole) (kept []string, err error) {
	req := &Request{Caller: &auth.Caller{User: user.ID, Name: user.Spec().Name}, From: in.From, ID: in.Request}
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		err := c.joinGroup(ctx, req, name, roles[name])
		switch {
		case mariposa.CodeOf(err) == mariposa.Conflict:
			kept = append(kept, name)
		case err != nil:
			return kept, err
		}
	}
	return kept, nil
}

// joinGroup sets the role of the caller in one organization.
func (c *Changer) joinGroup(ctx context.Context, req *Request, name string, role mariposa.OrgRole) error {
	for range maxAttempts {
		from := c.Picture.Revision()
		org := c.Picture.OrgNamed(name)
		if org == nil || org.Spec().Personal != "" {
			return conflict("there is no organization %s with members", name)
		}
		if org.Spec().Members[req.Caller.User] == role {
			return nil
		}
		unit, err := c.membership(req, org, role)
		if err != nil {
			return err
		}
		res := c.Store.Commit(ctx, *unit)[0]
		if res.Err == nil {
			c.Await(ctx, res.Last)
			return nil
		}
		if !errors.Is(res.Err, store.ErrConflict) {
			return res.Err
		}
		if _, err := c.CatchUp(ctx, from); err != nil {
			return err
		}
	}
	return mariposa.Errorf(mariposa.Unavailable, "the organization %s changes too often: try again shortly", name)
}

// membership returns the writes that change the role of the caller in an organization; empty: they
// leave it, and its projects.
func (c *Changer) membership(req *Request, org *store.Organization, role mariposa.OrgRole) (*store.Unit, error) {
	user, spec := req.Caller.User, *org.Spec()
	spec.Members = maps.Clone(spec.Members)
	if spec.Members == nil {
		spec.Members = map[string]mariposa.OrgRole{}
	}
	unit := &store.Unit{Urgent: true}
	unit.Unchanged(org)
	unit.Exists(mariposa.KindUser, user)
	a := req.Audit()
	a.Action, a.Outcome, a.Kind, a.Object, a.ObjectName, a.Organization = "member.put", mariposa.AuditDone, string(mariposa.KindOrg), org.ID, spec.Name, org.ID
	a.Reason = req.Caller.Name + " becomes " + string(role) + ", by groups at the provider"
	spec.Members[user] = role
	if role == "" {
		delete(spec.Members, user)
		a.Action, a.Reason = "member.remove", req.Caller.Name+" leaves, by groups at the provider"
		for _, p := range c.Picture.ProjectsOf(org.ID) {
			if p.Spec().Users[user] != "" {
				leaveProject(req, p, user, unit)
			}
		}
	}
	unit.Put(orgWrite(req, org.ID, &spec))
	unit.Audit = []mariposa.Audit{a}
	return unit, requireOwner(&spec)
}

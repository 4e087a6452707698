package change

import (
	"context"
	"maps"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// withRole is a project's users with another role for one of them.
func withRole(users map[string]mariposa.Role, id string, role mariposa.Role) map[string]mariposa.Role {
	users = maps.Clone(users)
	if users == nil {
		users = map[string]mariposa.Role{}
	}
	if role == mariposa.RoleNone {
		delete(users, id)
	} else {
		users[id] = role
	}
	return users
}

// SetProjectUser gives a user a role of their own in a project; RoleNone takes it away.
func (c *Changer) SetProjectUser(ctx context.Context, req *Request, project string, user *store.Record, role mariposa.Role) (*contract.Changed, error) {
	name := user.Spec.(*mariposa.UserSpec).Name
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		if role == mariposa.RoleNone && e.spec.Users[user.ID] == "" {
			return nil, notFound("%s has no role of their own in project %s", name, e.spec.Name)
		}
		e.spec.Users = withRole(e.spec.Users, user.ID, role)
		e.unit.Exists(mariposa.KindUser, user.ID)
		why := name + " becomes " + string(role)
		if role == mariposa.RoleNone {
			why = name + " has no role of their own any more"
		}
		e.unit.Audit[0].Reason = why
		return e.done(why)
	})
}

// leaveProject takes a user's own role in a project away, as part of a larger change.
func leaveProject(req *Request, r *store.Record, user string, unit *store.Unit) {
	spec := *r.Spec.(*mariposa.ProjectSpec)
	spec.Users = withRole(spec.Users, user, mariposa.RoleNone)
	unit.Unchanged(r)
	unit.Put(store.Write{
		Kind: mariposa.KindProject, ID: r.ID, Project: r.ID, Spec: &spec,
		Event: mariposa.Event{Kind: "project.updated", Project: r.ID, Actor: req.actor()},
	})
}

package fleet

import (
	"context"
	"log/slog"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// addLogin adds the login of a project's organization to a registry to a frame, and returns its
// key; empty if there is none. One that cannot be read does not keep instances from running: most
// nodes have their image already, and the others say that the registry refuses it.
func (s *Session) addLogin(ctx context.Context, a *wire.Assign, project *store.Project, registry string) string {
	if project == nil {
		return ""
	}
	org := s.f.Picture.Orgs.Get(project.Spec().Organization)
	if org == nil {
		return ""
	}
	if _, found := org.Spec().Registries[registry]; !found {
		return ""
	}
	key := org.ID + " " + registry
	if a.Logins[key] != nil {
		return key
	}
	all, err := s.f.Cache.Logins(ctx, org, registry)
	if err != nil || len(all) == 0 {
		slog.Warn("a login to a registry is not sent to a node", "node", s.hello.Name, "organization", org.Spec().Name, "registry", registry, "err", err)
		return ""
	}
	if a.Logins == nil {
		a.Logins = map[string]*mariposa.Login{}
	}
	a.Logins[key] = &all[0]
	return key
}

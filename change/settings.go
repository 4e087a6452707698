package change

import (
	"context"
	"fmt"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/picture"
	"mariposa/reason"
	"mariposa/store"
)

// settings returns the settings of the installation.
func (c *Changer) settings() mariposa.SettingsSpec { return settingsOf(c.Picture) }

func settingsOf(pic *picture.Picture) mariposa.SettingsSpec {
	if r := pic.Settings.Get(mariposa.SettingsID); r != nil {
		return *r.Spec()
	}
	return mariposa.SettingsSpec{}
}

// Settings returns the settings of the installation for the API.
func (c *Changer) Settings() contract.Settings { return settingsDoc(c.settings()) }

func settingsDoc(s mariposa.SettingsSpec) contract.Settings {
	doc := contract.Settings{Quota: limitsDoc(s.NewQuota(false)), OrganizationsPerUser: s.MaxOrgs(), StoredPerProject: mariposa.DefaultStoredPerProject, StormBreaker: s.StormBreaker}
	if s.StoredPerProject != nil {
		doc.StoredPerProject = *s.StoredPerProject
	}
	return doc
}

// SetSettings changes the settings of the installation.
func (c *Changer) SetSettings(ctx context.Context, req *Request, set func(*mariposa.SettingsSpec) error) (*contract.Settings, error) {
	return commit(ctx, c, req, mariposa.SettingsID, func() (*store.Unit, contract.Settings, error) {
		unit, spec := &store.Unit{}, mariposa.SettingsSpec{}
		if r := c.Picture.Settings.Get(mariposa.SettingsID); r != nil {
			spec = *r.Spec()
			unit.Unchanged(r)
		} else {
			unit.Absent(mariposa.KindSettings, mariposa.SettingsID)
		}
		if err := set(&spec); err != nil {
			return nil, contract.Settings{}, err
		}
		unit.Put(store.Write{Kind: mariposa.KindSettings, ID: mariposa.SettingsID, Spec: &spec, Event: req.event("settings.updated", "", nil)})
		unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindSettings), Object: mariposa.SettingsID, Reason: describeSettings(spec)}}
		return unit, settingsDoc(spec), nil
	})
}

// describeSettings describes the settings in words.
func describeSettings(s mariposa.SettingsSpec) string {
	said := []string{"new organizations: " + describeQuota(s.NewQuota(false))}
	if most := s.MaxOrgs(); most != nil {
		said = append(said, fmt.Sprintf("organizations per user: %d", *most))
	}
	if s.StoredPerProject != nil {
		said = append(said, "stored per project: "+formatMegabytes(*s.StoredPerProject))
	}
	if s.StormBreaker != nil {
		said = append(said, fmt.Sprintf("storm breaker: %d%%", *s.StormBreaker))
	}
	return strings.Join(said, "; ")
}

// claimOrganization refuses one more organization to a user who already owns the
// maximum. Installation admins may own any number, and give them to others.
//
// The user is written unchanged, so that of two concurrent requests, even at two
// replicas, the second conflicts and checks again.
func (c *Changer) claimOrganization(req *Request, id string, unit *store.Unit) error {
	settings := c.settings()
	most := settings.MaxOrgs()
	user := c.Picture.Users.Get(id)
	if most == nil || user == nil || user.Spec().Admin || c.Directory.May(req.Caller, auth.RunInstallation, nil) == auth.Allowed {
		return nil
	}
	unit.Unchanged(user)
	unit.Put(store.Write{Kind: mariposa.KindUser, ID: user.ID, Spec: user.Spec()})
	owned := 0
	for _, org := range c.Picture.OrganizationsOf(user.ID) {
		if spec := org.Spec(); spec.Personal == "" && spec.Members[user.ID] == mariposa.OrgOwner {
			owned++
		}
	}
	switch {
	case owned < *most:
		return nil
	case id != req.Caller.User: // how many they own is not the caller's business
		return mariposa.Errorf(mariposa.QuotaExceeded, "%s already owns the maximum number of organizations: make another user the owner, or ask an installation admin to raise the limit", user.Spec().Name)
	}
	return mariposa.Errorf(mariposa.QuotaExceeded, "%s owns %s, and the limit is %d: delete one, give one to another owner, or ask an installation admin to raise the limit",
		user.Spec().Name, reason.Many(owned, "organization"), *most)
}

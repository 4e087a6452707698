package auth_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/auth"
	"mariposa/clock"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/store/memory"
)

// directoryFixture is a directory with a store in memory.
type directoryFixture struct {
	t       testing.TB
	store   store.Store
	picture *picture.Picture
	*auth.Directory
}

func newDirectoryFixture(t testing.TB) *directoryFixture {
	t.Helper()
	o := &directoryFixture{t: t, store: memory.New(clock.Real{})}
	if err := auth.EnsureFirst(context.Background(), o.store, time.Now()); err != nil {
		t.Fatal(err)
	}
	p, err := picture.Open(context.Background(), o.store)
	if err != nil {
		t.Fatal(err)
	}
	o.picture, o.Directory = p, auth.NewDirectory(p, "the-join-token")
	err = auth.EnsureToken(context.Background(), o.store, "the-admin-token", mariposa.TokenSpec{Use: mariposa.TokenAdmin}, "a test")
	if err != nil {
		t.Fatal(err)
	}
	o.write()
	return o
}

func (o *directoryFixture) write(writes ...store.Write) {
	o.t.Helper()
	if err := o.store.Commit(context.Background(), store.Unit{Writes: writes})[0].Err; err != nil {
		o.t.Fatal(err)
	}
	if _, err := o.picture.Advance(context.Background()); err != nil {
		o.t.Fatal(err)
	}
}

func (o *directoryFixture) user(name string, change func(*mariposa.UserSpec)) {
	o.t.Helper()
	spec := &mariposa.UserSpec{Name: name}
	if change != nil {
		change(spec)
	}
	o.write(auth.NewUser(name, auth.PersonalOrganization{ID: "org-" + name}, spec)...)
}

func (o *directoryFixture) token(secret string, spec mariposa.TokenSpec) string {
	o.t.Helper()
	spec.Hash = mariposa.HashToken(secret)
	id := mariposa.TokenID(spec.Hash)
	o.write(store.Write{Kind: mariposa.KindToken, ID: id, Spec: &spec})
	return id
}

func (o *directoryFixture) organization(id string, base mariposa.Role, members map[string]mariposa.OrgRole) *store.Organization {
	o.t.Helper()
	o.write(store.Write{Kind: mariposa.KindOrg, ID: id, Spec: &mariposa.OrganizationSpec{Name: id, Base: base, Members: members}})
	return o.picture.Orgs.Get(id)
}

func (o *directoryFixture) project(id, org string, users map[string]mariposa.Role) *store.Project {
	o.t.Helper()
	o.write(store.Write{Kind: mariposa.KindProject, ID: id, Project: id, Spec: &mariposa.ProjectSpec{Name: id, Organization: org, Users: users}})
	return o.picture.Projects.Get(id)
}

func TestTokensTellWhoSomebodyIs(t *testing.T) {
	t.Parallel()
	o, now := newDirectoryFixture(t), time.Now()
	o.user("ada", nil)
	o.user("off", func(u *mariposa.UserSpec) { u.Disabled = true })
	o.token("plain", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada"})
	o.token("bound", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada", Organization: "acme", Project: "shop", Role: mariposa.RoleViewer})
	o.token("old", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada", Expires: now})
	o.token("soon", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada", Expires: now.Add(time.Nanosecond)})
	o.token("off", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "off"})
	o.token("orphan", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "nobody"})
	o.token("stored admin", mariposa.TokenSpec{Use: mariposa.TokenAdmin})
	o.token("stored join", mariposa.TokenSpec{Use: mariposa.TokenJoin})
	o.token("spent join", mariposa.TokenSpec{Use: mariposa.TokenJoin, Uses: 2, Joined: 2})
	o.token("late join", mariposa.TokenSpec{Use: mariposa.TokenJoin, Expires: now})
	for token, user := range map[string]string{
		"plain": "ada", "bound": "ada", "soon": "ada", "the-admin-token": mariposa.FirstUser, "stored admin": mariposa.FirstUser,
		"old": "", "off": "", "orphan": "", "stored join": "", "the-join-token": "", "": "", "never": "", mariposa.HashToken("plain"): "",
	} {
		got := ""
		if c := o.Identify(token, now); c != nil {
			got = c.User
			if again := o.Renew(c, now); again == nil || *again != *c {
				t.Errorf("%q is %+v, and renewed %+v", token, c, again)
			}
		}
		if got != user {
			t.Errorf("%q is of %q, not of %q", token, got, user)
		}
	}
	if c := o.Identify("bound", now); c.Bounds != (auth.Bounds{Organization: "acme", Project: "shop", Role: mariposa.RoleViewer}) || c.Home != "acme" {
		t.Errorf("bound: %+v", c)
	}
	for token, joins := range map[string]bool{"the-join-token": true, "stored join": true, "late join": false, "spent join": false, "plain": false, "the-admin-token": false, "": false} {
		if r, own := o.JoinToken(token, now); (r != nil || own) != joins {
			t.Errorf("a node joins with %q: %v", token, !joins)
		}
	}
}

func TestWhoWasLetInIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	o, now := newDirectoryFixture(t), time.Now()
	o.user("boss", func(u *mariposa.UserSpec) { u.Admin = true })
	o.user("ada", nil)
	id := o.token("t", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "boss", Expires: now.Add(time.Hour)})
	boss := o.Identify("t", now)
	acting := o.ActAs(boss, "ada")
	if acting.User != "ada" || acting.By != "boss" || acting.Actor() != "ada (by boss)" || acting.Admin {
		t.Fatalf("for ada: %+v", acting)
	}
	if o.Renew(boss, now.Add(time.Hour)) != nil || o.Renew(acting, now.Add(time.Hour)) != nil {
		t.Error("the time of the token is over")
	}
	o.user("boss", nil)
	if c := o.Renew(boss, now); c == nil || c.Admin {
		t.Errorf("boss is no admin any more: %+v", c)
	}
	if c := o.Renew(acting, now); c != nil {
		t.Errorf("and still acts for ada: %+v", c)
	}
	o.write(store.Write{Kind: mariposa.KindToken, ID: id, Delete: true})
	if o.Renew(boss, now) != nil {
		t.Error("the token is revoked")
	}
	if first := o.Identify("the-admin-token", now); o.Renew(first, now) == nil {
		t.Error("the first user's token never ends")
	}
}

func TestOnlyWhoRunsTheInstallationActsForOthers(t *testing.T) {
	t.Parallel()
	o, now := newDirectoryFixture(t), time.Now()
	o.user("ada", nil)
	o.user("bob", nil)
	o.user("off", func(u *mariposa.UserSpec) { u.Disabled = true })
	o.token("ada", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada"})
	o.token("bound", mariposa.TokenSpec{Use: mariposa.TokenUser, User: mariposa.FirstUser, Role: mariposa.RoleAdmin})
	admin, ada, bound := o.Identify("the-admin-token", now), o.Identify("ada", now), o.Identify("bound", now)
	for name, c := range map[string]struct {
		by  *auth.Caller
		ref string
		may bool
	}{
		"admin for ada": {admin, "ada", true}, "admin for itself": {admin, "admin", true}, "admin for nobody": {admin, "nobody", false}, "admin for who is disabled": {admin, "off", false},
		"ada for bob": {ada, "bob", false}, "ada for herself": {ada, "ada", true}, "ada for admin": {ada, "admin", false}, "a bound token for ada": {bound, "ada", false},
	} {
		if got := o.ActAs(c.by, c.ref); (got != nil) != c.may {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestRolesComeFromProjectsAndOrganizations(t *testing.T) {
	t.Parallel()
	o := newDirectoryFixture(t)
	acme := o.organization("acme", mariposa.RoleViewer, map[string]mariposa.OrgRole{"olga": mariposa.OrgOwner, "mia": mariposa.OrgMember, "dora": mariposa.OrgMember})
	closed := o.organization("closed", mariposa.RoleNone, map[string]mariposa.OrgRole{"mia": mariposa.OrgMember})
	shop := o.project("shop", "acme", map[string]mariposa.Role{"dora": mariposa.RoleDeployer, "vera": mariposa.RoleViewer, "olga": mariposa.RoleViewer})
	vault := o.project("vault", "closed", nil)
	for name, c := range map[string]struct {
		caller auth.Caller
		on     *store.Project
		role   mariposa.Role
	}{
		"an owner is an admin, whatever else":      {auth.Caller{User: "olga"}, shop, mariposa.RoleAdmin},
		"a member is what all members are":         {auth.Caller{User: "mia"}, shop, mariposa.RoleViewer},
		"a member with a role of their own":        {auth.Caller{User: "dora"}, shop, mariposa.RoleDeployer},
		"who has a role and no part in it":         {auth.Caller{User: "vera"}, shop, mariposa.RoleViewer},
		"a member where members are nothing":       {auth.Caller{User: "mia"}, vault, mariposa.RoleNone},
		"who has no part":                          {auth.Caller{User: "sam"}, shop, ""},
		"who runs the installation":                {auth.Caller{User: "x", Admin: true}, vault, mariposa.RoleAdmin},
		"bound to the organization":                {auth.Caller{User: "olga", Bounds: auth.Bounds{Organization: "acme"}}, shop, mariposa.RoleAdmin},
		"bound to another":                         {auth.Caller{User: "olga", Bounds: auth.Bounds{Organization: "closed"}}, shop, mariposa.RoleNone},
		"bound to another project":                 {auth.Caller{User: "x", Admin: true, Bounds: auth.Bounds{Project: "vault"}}, shop, mariposa.RoleNone},
		"bound to a role":                          {auth.Caller{User: "olga", Bounds: auth.Bounds{Role: mariposa.RoleDeployer}}, shop, mariposa.RoleDeployer},
		"bound to a role that is more than theirs": {auth.Caller{User: "vera", Bounds: auth.Bounds{Role: mariposa.RoleAdmin}}, shop, mariposa.RoleViewer},
	} {
		if got := o.RoleIn(&c.caller, c.on); got.Rank() != c.role.Rank() {
			t.Errorf("%s: %s", name, got)
		}
	}
	for name, c := range map[string]struct {
		caller auth.Caller
		on     *store.Organization
		role   mariposa.OrgRole
	}{
		"an owner":                  {auth.Caller{User: "olga"}, acme, mariposa.OrgOwner},
		"a member":                  {auth.Caller{User: "mia"}, closed, mariposa.OrgMember},
		"who has no part":           {auth.Caller{User: "vera"}, acme, ""},
		"who runs the installation": {auth.Caller{User: "x", Admin: true}, closed, mariposa.OrgOwner},
		"bound to another":          {auth.Caller{User: "olga", Bounds: auth.Bounds{Organization: "closed"}}, acme, ""},
		"bound to a project":        {auth.Caller{User: "olga", Bounds: auth.Bounds{Organization: "acme", Project: "shop"}}, acme, ""},
		"bound to less than admin":  {auth.Caller{User: "olga", Bounds: auth.Bounds{Role: mariposa.RoleOperator}}, acme, mariposa.OrgMember},
		"bound to admin":            {auth.Caller{User: "olga", Bounds: auth.Bounds{Role: mariposa.RoleAdmin}}, acme, mariposa.OrgOwner},
	} {
		if got := o.RoleOf(&c.caller, c.on); got != c.role {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// The permissions of a deployer, the role for automation.
func TestWhatEachRoleMay(t *testing.T) {
	t.Parallel()
	o := newDirectoryFixture(t)
	for _, role := range mariposa.Roles {
		p := o.project("of-"+string(role), "acme", map[string]mariposa.Role{"u": role})
		may := map[auth.Permission]bool{}
		for _, row := range auth.Table {
			may[row.Permission] = o.May(&auth.Caller{User: "u"}, row.Permission, p.Record()) == auth.Allowed
			if row.Project == "" && may[row.Permission] {
				t.Errorf("%s may %s", role, row.Permission)
			}
		}
		wanted := map[mariposa.Role][]auth.Permission{
			mariposa.RoleViewer:   {auth.ReadProject, auth.ReadVolume, auth.ReadNetwork},
			mariposa.RoleDeployer: {auth.ReadProject, auth.ReadVolume, auth.ReadNetwork, auth.Deploy},
			mariposa.RoleOperator: {auth.ReadProject, auth.ReadVolume, auth.ReadNetwork, auth.Deploy, auth.Operate, auth.ReadSecrets, auth.Approve, auth.Shell, auth.ManageInstances},
			mariposa.RoleAdmin: {
				auth.ReadProject, auth.ReadVolume, auth.ReadNetwork, auth.Deploy, auth.Operate, auth.ReadSecrets, auth.Approve, auth.Shell, auth.ManageInstances, auth.ManagePeople, auth.Administer, auth.AuditProject,
				auth.DeleteVolume, auth.AttachVolume, auth.DeleteNetwork,
			},
		}[role]
		for permission, allowed := range may {
			if allowed != slices.Contains(wanted, permission) {
				t.Errorf("%s may %s: %v", role, permission, allowed)
			}
		}
	}
}

// Bounds only restrict: a bounded token never has a right that its user lacks, and
// narrower bounds never allow more.
func TestBoundsOnlyTakeAway(t *testing.T) {
	t.Parallel()
	o := newDirectoryFixture(t)
	on := []*store.Record{
		o.organization("a", mariposa.RoleViewer, map[string]mariposa.OrgRole{"u": mariposa.OrgOwner, "v": mariposa.OrgMember}).Record(),
		o.organization("b", mariposa.RoleNone, map[string]mariposa.OrgRole{"u": mariposa.OrgMember}).Record(),
		o.project("p", "a", map[string]mariposa.Role{"w": mariposa.RoleOperator}).Record(),
		o.project("q", "b", map[string]mariposa.Role{"v": mariposa.RoleAdmin}).Record(), nil,
	}
	rapid.Check(t, func(rt *rapid.T) {
		anyBounds := func(label string) auth.Bounds {
			return auth.Bounds{
				Organization: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, label+" organization"),
				Project:      rapid.SampledFrom([]string{"", "p", "q", "r"}).Draw(rt, label+" project"),
				Role:         rapid.SampledFrom(append([]mariposa.Role{""}, mariposa.Roles...)).Draw(rt, label+" role"),
			}
		}
		free := auth.Caller{User: rapid.SampledFrom([]string{"u", "v", "w", "x"}).Draw(rt, "user"), Admin: rapid.Bool().Draw(rt, "admin")}
		outer, inner := free, free
		outer.Bounds, inner.Bounds = anyBounds("outer"), anyBounds("inner")
		row := rapid.SampledFrom(auth.Table).Draw(rt, "permission")
		what := rapid.SampledFrom(on).Draw(rt, "on")
		all, some, less := o.May(&free, row.Permission, what), o.May(&outer, row.Permission, what), o.May(&inner, row.Permission, what)
		if some > all {
			rt.Fatalf("bounds %+v gave %s where their user is %s", outer.Bounds, some, all)
		}
		if inner.Bounds.Within(outer.Bounds) && less > some {
			rt.Fatalf("%+v is within %+v, and is %s where that is %s", inner.Bounds, outer.Bounds, less, some)
		}
		if !inner.Bounds.Within(auth.Bounds{}) || !inner.Bounds.Within(inner.Bounds) {
			rt.Fatal("everything is within no bounds, and within itself")
		}
	})
}

func TestFailuresAreLimitedBySource(t *testing.T) {
	t.Parallel()
	l, now := auth.NewLimiter(3, time.Second), time.Now()
	for range 3 {
		if ok, suppressed, _ := l.Fail("a", now); !ok || suppressed != 0 {
			t.Fatal("the first ones are within bounds")
		}
	}
	for range 2 {
		if ok, _, retry := l.Fail("a", now.Add(250*time.Millisecond)); ok || retry != 750*time.Millisecond {
			t.Errorf("one more: %v, again in %v", ok, retry)
		}
	}
	if ok, _, _ := l.Fail("b", now); !ok {
		t.Error("others are not held up")
	}
	if ok, suppressed, _ := l.Fail("a", now.Add(time.Second)); !ok || suppressed != 2 {
		t.Errorf("a second later: %v, %d unsaid", ok, suppressed)
	}
	for i := range 25_000 { // what is remembered has an end
		l.Fail(fmt.Sprint("source ", i), now.Add(time.Duration(i)*time.Millisecond))
	}
	if ok, _, _ := l.Fail("a", now.Add(time.Hour)); !ok {
		t.Error("an hour later all is forgiven")
	}
}

// crowd returns a directory with 10,000 projects in 1,000 organizations.
func crowd(t testing.TB) (*directoryFixture, *auth.Caller, []*store.Project) {
	o := newDirectoryFixture(t)
	o.user("ada", nil)
	o.token("t", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada"})
	var writes []store.Write
	for i := range 1000 {
		org := fmt.Sprintf("org-%d", i)
		members := map[string]mariposa.OrgRole{}
		for m := range 20 {
			members[fmt.Sprintf("user-%d", i*20+m)] = mariposa.OrgMember
		}
		if i%10 == 0 {
			members["ada"] = mariposa.OrgMember
		}
		writes = append(writes, store.Write{Kind: mariposa.KindOrg, ID: org, Spec: &mariposa.OrganizationSpec{Name: org, Base: mariposa.RoleViewer, Members: members}})
		for p := range 10 {
			id := fmt.Sprintf("project-%d-%d", i, p)
			writes = append(writes, store.Write{Kind: mariposa.KindProject, ID: id, Project: id, Spec: &mariposa.ProjectSpec{Name: id, Organization: org}})
		}
	}
	o.write(writes...)
	return o, o.Identify("t", time.Now()), o.picture.Projects.All()
}

// Checking a permission costs the same for any number of objects: it only looks up
// records, and does not allocate.
func TestAPermissionIsLookedUpNotSearchedFor(t *testing.T) { // alone: others would make garbage meanwhile
	o, c, projects := crowd(t)
	i, allowed := 0, 0
	made := testing.AllocsPerRun(20_000, func() {
		p := projects[i%len(projects)]
		i++
		if o.May(c, auth.Deploy, p.Record()) != auth.Hidden {
			allowed++
		}
		o.RoleIn(c, p)
	})
	if made > 1 || allowed < 1000 || allowed > 10_000 {
		t.Errorf("%.1f allocations for each, %d of them seen", made, allowed)
	}
	if made := testing.AllocsPerRun(1000, func() { o.Identify("t", time.Time{}) }); made > 30 {
		t.Errorf("%.1f allocations to identify a caller", made)
	}
}

func BenchmarkPermissions(b *testing.B) {
	o, c, projects := crowd(b)
	now := time.Now()
	b.Run("a permission on one of 10,000 projects", func(b *testing.B) {
		i := 0
		for b.Loop() {
			o.May(c, auth.Deploy, projects[i%len(projects)].Record())
			i++
		}
	})
	b.Run("a role in one of 10,000 projects", func(b *testing.B) {
		i := 0
		for b.Loop() {
			o.RoleIn(c, projects[i%len(projects)])
			i++
		}
	})
	b.Run("who somebody is", func(b *testing.B) {
		for b.Loop() {
			o.Identify("t", now)
		}
	})
}

// Join tokens of earlier releases never expired. They get an expiry, once.
func TestJoinTokensOfEarlierReleasesEnd(t *testing.T) {
	t.Parallel()
	o, now := newDirectoryFixture(t), time.Now()
	old := o.token("old", mariposa.TokenSpec{Use: mariposa.TokenJoin, Name: "old"})
	o.token("new", mariposa.TokenSpec{Use: mariposa.TokenJoin, Expires: now.Add(time.Hour)})
	for round, want := range []int{1, 0} {
		n, err := auth.LimitJoinTokens(context.Background(), o.store, o.picture, now)
		if n != want || err != nil {
			t.Errorf("round %d: %d were given an end, %v", round, n, err)
		}
		o.write()
	}
	if got := o.picture.Tokens.Get(old).Spec().Expires; !got.Equal(now.Add(7 * 24 * time.Hour)) {
		t.Errorf("it ends at %v", got)
	}
	if r, _ := o.JoinToken("old", now.Add(6*24*time.Hour)); r == nil {
		t.Error("it ends too soon")
	}
	if r, _ := o.JoinToken("old", now.Add(8*24*time.Hour)); r != nil {
		t.Error("it does not end")
	}
	records, err := o.store.Audit(context.Background(), store.AuditQuery{Action: "token.update", Limit: 10})
	if err != nil || len(records) != 1 || records[0].Object != old {
		t.Errorf("the audit records are %+v, %v", records, err)
	}
}

// EnsureToken stores a token once; a revoked token stays revoked.
func TestATokenFromElsewhereStaysRevoked(t *testing.T) {
	t.Parallel()
	o, now, ctx := newDirectoryFixture(t), time.Now(), context.Background()
	ensure := func() error {
		return auth.EnsureToken(ctx, o.store, "found", mariposa.TokenSpec{Use: mariposa.TokenAdmin, Created: now}, "a test")
	}
	if err := errors.Join(ensure(), ensure()); err != nil {
		t.Fatal(err)
	}
	o.write()
	if c := o.Identify("found", now); c == nil || c.User != mariposa.FirstUser {
		t.Errorf("it authenticates %+v", c)
	}
	id := mariposa.TokenID(mariposa.HashToken("found"))
	spec := *o.picture.Tokens.Get(id).Spec()
	spec.Revoked = now
	o.write(store.Write{Kind: mariposa.KindToken, ID: id, Spec: &spec, Archive: true})
	if err := ensure(); !errors.Is(err, auth.ErrRevoked) {
		t.Errorf("once revoked: %v", err)
	}
	if c := o.Identify("found", now); c != nil {
		t.Errorf("it still authenticates %+v", c)
	}
}

// For any chain of tokens in the store, a token is valid only if all its ancestors are.
func TestATokenIsAsGoodAsItsWorstMaker(t *testing.T) {
	t.Parallel()
	o, now := newDirectoryFixture(t), time.Now()
	o.user("ada", nil)
	parent := ""
	for i := range auth.MaxDepth + 2 {
		name := strconv.Itoa(i)
		parent = o.token(name, mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada", Parent: parent})
		if got := o.Identify(name, now) != nil; got != (i <= auth.MaxDepth-1) {
			t.Errorf("the token after %d others is valid: %v", i, got)
		}
	}
	a, b := mariposa.TokenID(mariposa.HashToken("a")), mariposa.TokenID(mariposa.HashToken("b"))
	o.token("a", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada", Parent: b})
	o.token("b", mariposa.TokenSpec{Use: mariposa.TokenUser, User: "ada", Parent: a})
	if o.Identify("a", now) != nil || o.Identify("b", now) != nil {
		t.Error("tokens in a cycle are valid")
	}
}

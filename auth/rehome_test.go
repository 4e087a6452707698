package auth_test

import (
	"context"
	"slices"
	"testing"

	"mariposa"
	"mariposa/auth"
	"mariposa/picture"
	"mariposa/store"
)

// lost puts a project into an organization that does not exist, as early releases
// did.
func (o *directoryFixture) lost(id, name string, change func(*mariposa.ProjectSpec)) {
	o.t.Helper()
	spec := &mariposa.ProjectSpec{Name: name, Organization: "default", Demand: mariposa.Resources{Instances: 3}}
	if change != nil {
		change(spec)
	}
	o.write(store.Write{Kind: mariposa.KindProject, ID: id, Project: id, Spec: spec},
		store.Write{Kind: mariposa.KindName, ID: mariposa.NameID("default", name), Spec: &mariposa.NameSpec{Project: id}})
}

func (o *directoryFixture) rehome() (moved, left []string) {
	o.t.Helper()
	p, err := picture.Open(context.Background(), o.store)
	if err != nil {
		o.t.Fatal(err)
	}
	o.picture = p
	moved, left, err = auth.Rehome(context.Background(), o.store, p)
	if err != nil {
		o.t.Fatal(err)
	}
	if _, err := p.Advance(context.Background()); err != nil {
		o.t.Fatal(err)
	}
	return moved, left
}

func TestProjectsOfNoOrganizationComeToTheFirstUser(t *testing.T) {
	t.Parallel()
	o := newDirectoryFixture(t)
	o.organization("acme", mariposa.RoleViewer, nil)
	o.project("theirs", "acme", nil)
	o.lost("a", "shop", nil)
	o.lost("b", "blog", nil)
	o.lost("c", "going", func(s *mariposa.ProjectSpec) { s.Deleting = true })
	o.project("taken", mariposa.FirstOrganization, nil)
	o.write(store.Write{Kind: mariposa.KindName, ID: mariposa.NameID(mariposa.FirstOrganization, "taken"), Spec: &mariposa.NameSpec{Project: "taken"}})
	o.lost("d", "taken", nil)

	moved, left := o.rehome()
	if !slices.Equal(moved, []string{"shop", "blog"}) || !slices.Equal(left, []string{"taken"}) {
		t.Fatalf("moved %v, left %v", moved, left)
	}
	for id, org := range map[string]string{"a": mariposa.FirstOrganization, "b": mariposa.FirstOrganization, "c": "default", "d": "default", "theirs": "acme", "taken": mariposa.FirstOrganization} {
		if got := o.picture.Projects.Get(id).Spec().Organization; got != org {
			t.Errorf("%s is in %s", id, got)
		}
	}
	if r := o.picture.ProjectNamed(mariposa.FirstOrganization, "shop"); r == nil || r.ID != "a" {
		t.Errorf("shop is %v", r)
	}
	if r := o.picture.ProjectNamed("default", "shop"); r != nil {
		t.Error("its old name is still taken")
	}
	ledger, err := o.store.Ledger(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	resources, projects := mariposa.LedgerOf(mariposa.FirstOrganization)
	if ledger[resources].Instances != 6 || ledger[projects].Instances != 2 {
		t.Errorf("reserved: %v", ledger)
	}

	before := o.picture.Revision()
	if moved, left = o.rehome(); len(moved) != 0 || !slices.Equal(left, []string{"taken"}) || o.picture.Revision() != before {
		t.Errorf("once more: moved %v, left %v", moved, left)
	}
}

func TestTwoReplicasMoveAProjectOnce(t *testing.T) {
	t.Parallel()
	o := newDirectoryFixture(t)
	o.lost("a", "shop", nil)
	seen := o.picture // a replica that started a moment earlier
	if moved, _ := o.rehome(); len(moved) != 1 {
		t.Fatalf("moved %v", moved)
	}
	moved, left, err := auth.Rehome(context.Background(), o.store, seen)
	if err != nil || len(moved) != 0 || len(left) != 0 {
		t.Errorf("the other one: moved %v, left %v, %v", moved, left, err)
	}
}

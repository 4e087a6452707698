package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// makers is the number of clients that create and delete objects concurrently.
const makers = 16

// people creates users with a token and an organization each.
func (r *apiRun) people(ctx context.Context) error {
	r.progress("creating %d users with one organization each", r.Organizations)
	if _, err := r.root.SetSettings(ctx, client.SettingsChange{Quota: client.QuotaChange{Lift: []string{"projects", "instances"}}}); err != nil {
		return err // the load may be larger than the default quota
	}
	began := time.Now()
	r.teams = make([]*team, r.Organizations)
	err := forEach(ctx, r.Organizations, makers, func(ctx context.Context, i int) error {
		t := &team{user: fmt.Sprintf("user-%d", i+1), org: fmt.Sprintf("org-%d", i+1)}
		r.teams[i] = t
		var err error
		if t.token, err = r.newUser(ctx, t.user); err != nil {
			return err
		}
		if t.client, err = r.as(t.token, t.org); err != nil {
			return err
		}
		_, err = t.client.CreateOrganization(ctx, contract.NewOrganization{Name: t.org})
		return err
	})
	if err != nil {
		return err
	}
	r.res.PeoplePerS = perSecond(r.Organizations, time.Since(began))
	r.result("made at %.0f/s", r.res.PeoplePerS)
	return nil
}

// newUser creates a user and a token for it.
func (r *apiRun) newUser(ctx context.Context, name string) (token string, err error) {
	if _, err := r.root.CreateUser(ctx, contract.NewUser{Name: name}); err != nil {
		return "", err
	}
	made, err := r.root.CreateToken(ctx, contract.NewToken{Name: "bench", User: name})
	if err != nil {
		return "", err
	}
	return made.Secret, nil
}

// projects creates the projects of every organization, as its owner.
func (r *apiRun) projects(ctx context.Context) error {
	n := r.Organizations * r.Projects
	r.progress("creating %d projects with %d services each", n, r.Services)
	r.all = make([]*project, n)
	began := time.Now()
	err := forEach(ctx, n, makers, func(ctx context.Context, i int) error {
		t := r.teams[i%len(r.teams)]
		p := &project{team: t, name: fmt.Sprintf("project-%d", i/len(r.teams)+1), number: 1}
		p.body = r.manifest(p, 1)
		c, err := t.client.CreateProject(ctx, p.name, p.body, "")
		if err != nil {
			return err
		}
		p.id = c.ID
		r.all[i] = p
		return nil
	})
	if err != nil {
		return err
	}
	r.res.ProjectsPerS = perSecond(n, time.Since(began))
	r.result("made at %.0f/s", r.res.ProjectsPerS)
	for _, p := range r.all {
		p.team.projects = append(p.team.projects, p)
	}
	return nil
}

// manifest returns one version of a project's manifest. It differs from those of all
// other projects. It differs from the previous version in one service, whose instance is
// then replaced.
func (r *apiRun) manifest(p *project, number int) []byte {
	var b strings.Builder
	b.WriteString("services:\n")
	for i := range r.Services {
		version := 1
		if i == 0 {
			version = number
		}
		fmt.Fprintf(&b, `  service-%d:
    compute_type: dummy
    scale: %d
    environment: [PROJECT=%s/%s, VERSION=%d]
    update: {rolling: 100%%, min_healthy: 0}
`, i+1, r.Scale, p.team.org, p.name, version)
	}
	return []byte(b.String())
}

// settle waits until everything runs.
func (r *apiRun) settle(ctx context.Context) error {
	began := time.Now()
	if err := r.awaitIdle(ctx); err != nil {
		return err
	}
	n := r.control.Picture().Instances.Len()
	if n != r.res.Instances {
		return fmt.Errorf("no task is open, but there are %d instances instead of %d", n, r.res.Instances)
	}
	r.res.SettleS = round(time.Since(began).Seconds())
	r.result("%d instances running after another %.2f s", n, r.res.SettleS)
	return nil
}

// memberships creates a user who is a member of every tenth organization.
func (r *apiRun) memberships(ctx context.Context) error {
	const name = "member"
	var err error
	if r.memberToken, err = r.newUser(ctx, name); err != nil {
		return err
	}
	if r.member, err = r.as(r.memberToken, ""); err != nil {
		return err
	}
	r.res.Memberships = (len(r.teams) + 9) / 10
	return forEach(ctx, r.res.Memberships, makers, func(ctx context.Context, i int) error {
		t := r.teams[i*10]
		_, err := t.client.PutMember(ctx, t.org, name, mariposa.OrgMember)
		return err
	})
}

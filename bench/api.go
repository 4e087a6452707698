package bench

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"mariposa/client"
)

// APIOptions configure the API benchmark.
type APIOptions struct {
	Environment
	Organizations int
	Projects      int           // per organization
	Services      int           // per project
	Scale         int           // instances per service; 0: services without instances
	Nodes         int           // nodes to run them on
	Updates       int           // manifests submitted at the same time
	Readers       int           // concurrent readers
	Duration      time.Duration // per measurement
}

// APIResult contains the measurements. Fields in _ms are the time of one request from its
// first byte to the last byte of its answer, as the client sees it.
type APIResult struct {
	Organizations int    `json:"organizations"`
	Projects      int    `json:"projects"`
	Services      int    `json:"services"`
	Instances     int    `json:"instances"`
	Nodes         int    `json:"nodes"`
	Store         string `json:"store"`
	Readers       int    `json:"readers"`

	PeoplePerS   float64 `json:"people_per_s"`   // a user, a token and an organization each
	ProjectsPerS float64 `json:"projects_per_s"` // created
	SettleS      float64 `json:"settle_s"`       // from the creation of the last project until all instances run

	// Lists as seen by one user, at rest and while manifests are submitted; by a
	// member of many organizations; and by the installation's admin.
	ListProjects       Percentiles `json:"projects_ms"`
	State              Percentiles `json:"state_ms"`
	ListProjectsBusy   Percentiles `json:"projects_busy_ms"`
	StateBusy          Percentiles `json:"state_busy_ms"`
	Memberships        int         `json:"memberships"`
	ListProjectsMember Percentiles `json:"projects_member_ms"`
	StateMember        Percentiles `json:"state_member_ms"`
	ListProjectsAdmin  Percentiles `json:"projects_admin_ms"`
	StateAdmin         Percentiles `json:"state_admin_ms"`

	// One project, requested by a user with access and by one without. For comparison:
	// healthz, which needs no token; the part spent on checking the token and the role;
	// and requests per second when each request uses the token of a different user.
	GetProject    Percentiles `json:"project_ms"`
	DeniedProject Percentiles `json:"project_denied_ms"`
	Tokenless     Percentiles `json:"healthz_ms"`
	Check         Percentiles `json:"check_us"`
	CheckBusy     Percentiles `json:"check_busy_us"`
	RequestsPerS  float64     `json:"requests_per_s"`

	Updates      int         `json:"updates"`        // concurrent updates
	UpdatesSent  int         `json:"updates_sent"`   // total
	UpdatesLost  int         `json:"updates_lost"`   // accepted, but missing afterwards
	UpdatesPerS  float64     `json:"updates_per_s"`  // accepted
	Update       Percentiles `json:"update_ms"`      // from the moment all of them are sent
	MetadataPerS float64     `json:"metadata_per_s"` // keys set, one per request
	Metadata     Percentiles `json:"metadata_ms"`    //
	DeletedPerS  float64     `json:"deleted_per_s"`  // projects, until the last one is deleted
	Commit       Percentiles `json:"commit_ms"`      //
	FsyncMS      float64     `json:"fsync_ms"`       //
	RSSMB        float64     `json:"rss_mb"`         // whole process, after everything is created
	CPUS         float64     `json:"cpu_s"`          //
}

// apiRun is one running API benchmark.
type apiRun struct {
	APIOptions
	*system
	http        *http.Client
	root        *client.Client // the installation's admin
	member      *client.Client // a user with many memberships
	memberToken string
	teams       []*team
	all         []*project // projects of all teams
	res         APIResult
}

// team is an organization with its owner.
type team struct {
	user, org string // names
	token     string
	client    *client.Client // the owner's client
	projects  []*project
}

// project is the expected state of one project.
type project struct {
	id     string
	name   string
	team   *team
	body   []byte // the manifest
	number int    // its version
}

// API creates users with one organization each and projects in them, reads them over HTTP
// as one user, as a user with many memberships and as the admin, changes many of them at
// once, and checks that nothing was lost.
func API(ctx context.Context, o APIOptions) (APIResult, error) {
	r := &apiRun{APIOptions: o, http: stopwatchClient()}
	r.res = APIResult{
		Organizations: o.Organizations, Projects: o.Organizations * o.Projects, Services: o.Organizations * o.Projects * o.Services,
		Instances: o.Organizations * o.Projects * o.Services * o.Scale, Nodes: o.Nodes, Store: o.StoreName, Readers: o.Readers,
	}
	took, err := fsync(o.Dir)
	if err != nil {
		return r.res, err
	}
	r.res.FsyncMS = ms(took)
	if r.system, err = begin(ctx, o.Environment, o.Nodes); err != nil {
		return r.res, err
	}
	defer r.end()
	defer r.http.CloseIdleConnections()
	if r.root, err = r.as(r.token, ""); err != nil {
		return r.res, err
	}
	for _, part := range []struct {
		file string
		phase
	}{
		{"cpu-create", phase{"filling the system", r.populate}},
		{"cpu-read", phase{"reading", r.look}},
		{"cpu-update", phase{"submitting manifests", r.busy}},
		{"cpu-metadata", phase{"setting metadata", r.metadata}},
		{"cpu-delete", phase{"deleting everything", r.cleanUp}},
	} {
		profiled := func(ctx context.Context) error { return r.profiled(ctx, part.file, part.do) }
		if err := r.run(ctx, phase{part.name, profiled}); err != nil {
			return r.res, err
		}
	}
	r.res.Commit, r.res.CPUS = r.store.percentiles(), round(cpu().Seconds())
	return r.res, r.emptyStore(ctx)
}

func (r *apiRun) populate(ctx context.Context) error {
	for _, part := range []func(context.Context) error{r.people, r.projects, r.settle, r.memberships} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	r.res.RSSMB = rss()
	return r.writeHeapProfile()
}

func (r *apiRun) look(ctx context.Context) error {
	if err := r.rest(ctx); err != nil {
		return err
	}
	return r.permissions(ctx)
}

// as returns a client that uses a token.
func (r *apiRun) as(token, organization string) (*client.Client, error) {
	return client.New(client.Options{URL: r.control.URL, Token: token, Organization: organization, HTTPClient: r.http})
}

// anyTeam and anyProject pick one at random.
func (r *apiRun) anyTeam() *team       { return r.teams[rand.IntN(len(r.teams))] }
func (r *apiRun) anyProject() *project { return r.all[rand.IntN(len(r.all))] }

// stranger returns a team without access to a project, or nil if there is only one team.
func (r *apiRun) stranger(p *project) *team {
	if len(r.teams) < 2 {
		return nil
	}
	for {
		if t := r.anyTeam(); t != p.team {
			return t
		}
	}
}

// cleanUp deletes everything.
func (r *apiRun) cleanUp(ctx context.Context) error {
	r.progress("deleting %d projects", len(r.all))
	began := time.Now()
	err := forEach(ctx, len(r.all), makers, func(ctx context.Context, i int) error {
		_, err := r.all[i].team.client.DeleteProject(ctx, r.all[i].id, true)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.awaitDeleted(ctx); err != nil {
		return err
	}
	r.res.DeletedPerS = perSecond(len(r.all), time.Since(began))
	r.result("gone after %s", time.Since(began).Round(time.Millisecond))
	return nil
}

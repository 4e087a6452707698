package bench

import (
	"context"
	"time"

	"mariposa"
)

// QueueOptions choose a load on the queue.
type QueueOptions struct {
	Environment
	Projects   int           // in organizations of ten
	History    int           // ended tasks of each
	Instances  int           // of the rolling update
	Nodes      int           //
	Readers    int           // who ask at the same moment
	Clients    int           // who add tasks at the same moment
	Duration   time.Duration // of each measurement
	DriverTime time.Duration // that a dummy takes to start, and to go
	MinHealthy time.Duration //
	Throwaway  bool          // the store is thrown away afterwards, with the history in it
}

// QueueResult is what was measured. What ends in _ms is the time of one request
// from its first byte to the last of its answer, as the caller sees it.
type QueueResult struct {
	Projects      int    `json:"projects"`
	Organizations int    `json:"organizations"`
	History       int    `json:"history"` // ended tasks, in all
	Nodes         int    `json:"nodes"`
	Store         string `json:"store"`
	Readers       int    `json:"readers"`

	// How fast the history was written: straight into the store, in large commits.
	HistoryPerS float64 `json:"history_per_s"`

	// The newest 200 tasks, ended ones too, as who has ten projects, as a member of
	// every tenth organization, and as who runs the installation: of all projects that
	// one sees, of one project, of one service of it, from a point deep in the past, and
	// those that failed (one of a hundred).
	Tenant        Percentiles `json:"tenant_ms"`
	TenantProject Percentiles `json:"tenant_project_ms"`
	TenantService Percentiles `json:"tenant_service_ms"`
	TenantDeep    Percentiles `json:"tenant_deep_ms"`
	Member        Percentiles `json:"member_ms"`
	Admin         Percentiles `json:"admin_ms"`
	AdminProject  Percentiles `json:"admin_project_ms"`
	AdminService  Percentiles `json:"admin_service_ms"`
	AdminDeep     Percentiles `json:"admin_deep_ms"`
	AdminFailed   Percentiles `json:"admin_failed_ms"`
	Open          Percentiles `json:"open_ms"` // of one project, those that have not ended

	// Tasks added: half of them scale a service by one instance, half make one anew.
	Clients      int         `json:"clients"`
	Admitted     int         `json:"admitted"`
	AdmittedPerS float64     `json:"admitted_per_s"`
	Admit        Percentiles `json:"admit_ms"`
	SettleS      float64     `json:"settle_s"` // until the last of them has ended
	// The same to one project: each ends the one before it.
	AdmittedOnePerS float64     `json:"admitted_one_project_per_s"`
	AdmitOne        Percentiles `json:"admit_one_project_ms"`

	Roll Roll `json:"roll"`

	Commit  Percentiles `json:"commit_ms"`
	FsyncMS float64     `json:"fsync_ms"`
	RSSMB   float64     `json:"rss_mb"` // of the whole process, with all of the history
	CPUS    float64     `json:"cpu_s"`
}

// Roll is a rolling update, a tenth at a time. A replacement takes the driver's
// time to start and must then be healthy for a while before its predecessor goes;
// meanwhile nothing else may start. So a batch takes at least both:
//
//	ideal = batches x (driver time + min_healthy)
//
// What goes takes the driver's time too, while the next batch starts. Strict
// counts min_healthy once, not for every batch.
type Roll struct {
	Instances   int     `json:"instances"`
	Batches     int     `json:"batches"`
	DriverS     float64 `json:"driver_s"`
	MinHealthyS float64 `json:"min_healthy_s"`
	S           float64 `json:"s"`     // until all run at the new version, and nothing else does
	EndS        float64 `json:"end_s"` // until the task is completed: what went is away
	IdealS      float64 `json:"ideal_s"`
	Ratio       float64 `json:"ratio"`
	StrictS     float64 `json:"strict_s"`
	StrictRatio float64 `json:"strict_ratio"`
}

// queueRun is one such benchmark under way. Its people and projects are made as
// for the benchmark of the API.
type queueRun struct {
	*apiRun
	o     QueueOptions
	marks []string // ids of tasks, spread over the whole history
	out   QueueResult
}

// Queue fills a system with projects and the history of their tasks, lists that
// history over HTTP, adds tasks as fast as they are taken, and rolls a large service.
func Queue(ctx context.Context, o QueueOptions) (QueueResult, error) {
	each := min(10, o.Projects)
	a := APIOptions{Environment: o.Environment, Organizations: o.Projects / each, Projects: each, Services: 2, Nodes: o.Nodes, Readers: o.Readers, Duration: o.Duration}
	r := &queueRun{o: o, apiRun: &apiRun{APIOptions: a, http: stopwatchClient()}}
	r.out = QueueResult{
		Projects: a.Organizations * each, Organizations: a.Organizations, History: a.Organizations * each * o.History,
		Nodes: o.Nodes, Store: o.StoreName, Readers: o.Readers, Clients: o.Clients,
	}
	took, err := fsync(o.Dir)
	if err != nil {
		return r.out, err
	}
	r.out.FsyncMS = ms(took)
	if r.system, err = begin(ctx, o.Environment, o.Nodes); err != nil {
		return r.out, err
	}
	defer r.end()
	defer r.http.CloseIdleConnections()
	if r.root, err = r.as(r.token, ""); err != nil {
		return r.out, err
	}
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{{"create", r.populate}, {"list", r.lists}, {"admit", r.admit}, {"roll", r.roll}, {"delete", r.cleanUp}} {
		if err := r.profiled(ctx, "cpu-"+part.name, part.do); err != nil {
			return r.out, err
		}
	}
	r.out.Commit, r.out.CPUS = r.store.percentiles(), round(cpu().Seconds())
	return r.out, r.emptyStore(ctx)
}

// populate makes people, projects without instances, and their past.
func (r *queueRun) populate(ctx context.Context) error {
	for _, part := range []func(context.Context) error{r.people, r.projects, r.settle, r.memberships, r.writeHistory} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	r.out.RSSMB = rss()
	return r.writeHeapProfile()
}

// cleanUp deletes everything again, the history too.
func (r *queueRun) cleanUp(ctx context.Context) error {
	if err := r.apiRun.cleanUp(ctx); err != nil {
		return err
	}
	if r.o.Throwaway {
		return nil
	}
	r.progress("deleting the history")
	return r.forget(ctx, mariposa.KindTask)
}

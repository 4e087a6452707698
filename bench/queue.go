package bench

import (
	"context"
	"time"

	"mariposa"
)

// QueueOptions configure the queue benchmark.
type QueueOptions struct {
	Environment
	Projects   int           // ten per organization
	History    int           // ended tasks per project
	Instances  int           // of the rolling update
	Nodes      int           //
	Readers    int           // concurrent readers
	Clients    int           // concurrent clients that add tasks
	Duration   time.Duration // of each measurement
	DriverTime time.Duration // time that a dummy takes to start and to stop
	MinHealthy time.Duration //
	Throwaway  bool          // the store is discarded afterwards, including the history
}

// QueueResult contains the measurements. Fields in _ms are the time of one request from
// its first byte to the last byte of its answer, as the client sees it.
type QueueResult struct {
	Projects      int    `json:"projects"`
	Organizations int    `json:"organizations"`
	History       int    `json:"history"` // total number of ended tasks
	Nodes         int    `json:"nodes"`
	Store         string `json:"store"`
	Readers       int    `json:"readers"`

	// The rate at which the history was written: directly to the store, in large commits.
	HistoryPerS float64 `json:"history_per_s"`

	// The newest 200 tasks, including ended ones, for a user with ten projects, for a
	// member of every tenth organization, and for the installation's admin: of all
	// visible projects, of one project, of one of its services, from a point far in the
	// past, and the failed ones (one in a hundred).
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
	Open          Percentiles `json:"open_ms"` // open tasks of one project

	// Added tasks: half scale a service by one instance, half reprovision a service.
	Clients      int         `json:"clients"`
	Admitted     int         `json:"admitted"`
	AdmittedPerS float64     `json:"admitted_per_s"`
	Admit        Percentiles `json:"admit_ms"`
	SettleS      float64     `json:"settle_s"` // until the last of them has ended
	// The same for a single project: each task ends the previous one.
	AdmittedOnePerS float64     `json:"admitted_one_project_per_s"`
	AdmitOne        Percentiles `json:"admit_one_project_ms"`

	Roll Roll `json:"roll"`

	Commit  Percentiles `json:"commit_ms"`
	FsyncMS float64     `json:"fsync_ms"`
	RSSMB   float64     `json:"rss_mb"` // whole process, with the complete history
	CPUS    float64     `json:"cpu_s"`
}

// Roll is a rolling update, a tenth at a time. A replacement takes the driver's time to
// start and must then be healthy for min_healthy before its predecessor is removed.
// Nothing else may start during that time, so a batch takes at least both:
//
//	ideal = batches x (driver time + min_healthy)
//
// A removal also takes the driver's time, but the next batch starts meanwhile. Strict
// counts min_healthy once instead of once per batch.
type Roll struct {
	Instances   int     `json:"instances"`
	Batches     int     `json:"batches"`
	DriverS     float64 `json:"driver_s"`
	MinHealthyS float64 `json:"min_healthy_s"`
	S           float64 `json:"s"`     // until all instances run the new version and no other runs
	EndS        float64 `json:"end_s"` // until the task is completed and the old instances are removed
	IdealS      float64 `json:"ideal_s"`
	Ratio       float64 `json:"ratio"`
	StrictS     float64 `json:"strict_s"`
	StrictRatio float64 `json:"strict_ratio"`
}

// queueRun is one running queue benchmark. It creates users and projects like the API
// benchmark.
type queueRun struct {
	*apiRun
	o     QueueOptions
	marks []string // task ids, spread over the whole history
	out   QueueResult
}

// Queue fills a system with projects and the history of their tasks, lists that history
// over HTTP, adds tasks as fast as they are accepted, and rolls out an update of a large
// service.
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
		file string
		phase
	}{
		{"cpu-create", phase{"filling the system", r.populate}},
		{"cpu-list", phase{"listing tasks", r.lists}},
		{"cpu-admit", phase{"adding tasks", r.admit}},
		{"cpu-roll", phase{"rolling out a large service", r.roll}},
		{"cpu-delete", phase{"deleting everything", r.cleanUp}},
	} {
		profiled := func(ctx context.Context) error { return r.profiled(ctx, part.file, part.do) }
		if err := r.run(ctx, phase{part.name, profiled}); err != nil {
			return r.out, err
		}
	}
	r.out.Commit, r.out.CPUS = r.store.percentiles(), round(cpu().Seconds())
	return r.out, r.emptyStore(ctx)
}

// populate creates users, projects without instances, and their history.
func (r *queueRun) populate(ctx context.Context) error {
	for _, part := range []func(context.Context) error{r.people, r.projects, r.settle, r.memberships, r.writeHistory} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	r.out.RSSMB = rss()
	return r.writeHeapProfile()
}

// cleanUp deletes everything, including the history.
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

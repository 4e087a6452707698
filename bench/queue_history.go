package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"mariposa"
	"mariposa/assembly"
	"mariposa/client"
	"mariposa/store"
)

// perCommit is the number of objects written or removed per commit.
const perCommit = 1000

// writeHistory gives every project a history. A benchmark has no time to run a million
// tasks, so they are written directly to the store in their final form. The projects take
// turns, so that the tasks of a project are far apart, as after years of use.
func (r *queueRun) writeHistory(ctx context.Context) error {
	r.progress("writing %d ended tasks per project directly to the store", r.o.History)
	began := time.Now()
	n := len(r.all) * r.o.History
	every := max(1, n/1000)
	writes := make([]store.Write, 0, perCommit)
	for i := range n {
		w := r.ended(i, began)
		writes = append(writes, w)
		if i%every == 0 {
			r.marks = append(r.marks, w.ID)
		}
		if len(writes) < perCommit && i < n-1 {
			continue
		}
		res := r.store.Commit(ctx, store.Unit{Writes: writes})[0]
		if res.Err != nil {
			return res.Err
		}
		if err := r.control.Picture().Await(ctx, res.Last); err != nil { // wait for the picture to catch up before the measurement starts
			return err
		}
		writes = writes[:0]
	}
	r.out.HistoryPerS = perSecond(n, time.Since(began))
	r.result("written at %.0f/s", r.out.HistoryPerS)
	return r.whole(ctx)
}

// ended returns the i-th ended task of the history: tasks of every kind, of which one in
// a hundred failed and ten in a hundred were ended by others.
func (r *queueRun) ended(i int, now time.Time) store.Write {
	p, round := r.all[i%len(r.all)], i/len(r.all)
	at := now.Add(time.Duration(round-r.o.History) * 20 * 24 * time.Hour / time.Duration(r.o.History))
	kinds := []mariposa.TaskKind{mariposa.TaskScale, mariposa.TaskReprovision, mariposa.TaskStart, mariposa.TaskStop}
	spec := &mariposa.TaskSpec{
		Project: p.id, ProjectName: p.name, Component: "project", Task: kinds[round%len(kinds)], Origin: mariposa.OriginUser,
		Author: p.team.user, Reason: mariposa.Asked(p.team.user + " asked for it"), Created: at,
	}
	if service := round % 3; service > 0 {
		spec.Services = []string{fmt.Sprintf("service-%d", service)}
	}
	st := &mariposa.TaskStatus{
		State: mariposa.TaskCompleted, Started: at, LastProgress: at.Add(time.Second), Finished: at.Add(2 * time.Second),
		Progress: mariposa.Progress{Done: 3, Total: 3},
	}
	switch k := (i + round) % 100; {
	case k == 0:
		st.State, st.Reason = mariposa.TaskFailed, mariposa.TextReason("no progress for ten minutes")
	case k <= 10:
		st.State, st.Reason = mariposa.TaskTerminated, mariposa.TextReason("ended by another task")
	}
	id := assembly.NewID()
	return store.Write{
		Kind: mariposa.KindTask, ID: id, Project: p.id, Spec: spec, Status: st, Archive: true,
		Event: mariposa.Event{Kind: "task." + string(st.State), Project: p.id, Task: id, Actor: "mariposa"},
	}
}

// whole checks that a project lists its whole history, page by page, and each task once.
func (r *queueRun) whole(ctx context.Context) error {
	p := r.anyProject()
	seen, query := map[string]bool{}, client.TaskFilter{Project: p.id, All: true}
	tasks, err := p.team.client.Queue(ctx, query)
	if err != nil {
		return err
	}
	for i := range tasks.Tasks {
		seen[tasks.Tasks[i].ID] = true
	}
	if want := r.o.History + 1; len(tasks.Tasks) != want || len(seen) != want { // one task created the project
		return fmt.Errorf("a project with %d tasks lists %d, %d of them distinct", want, len(tasks.Tasks), len(seen))
	}
	return nil
}

// forget removes all objects of a kind, including archived ones.
func (r *queueRun) forget(ctx context.Context, kind mariposa.Kind) error {
	for {
		found, err := r.store.List(ctx, store.Query{Kind: kind, Limit: perCommit})
		if err != nil || len(found) == 0 {
			return err
		}
		writes := make([]store.Write, len(found))
		for i := range found {
			writes[i] = store.Write{Kind: kind, ID: found[i].ID, Delete: true}
		}
		if err := r.store.Commit(ctx, store.Unit{Writes: writes})[0].Err; err != nil {
			return err
		}
	}
}

// lists reads the history with typical queries.
func (r *queueRun) lists(ctx context.Context) error {
	looks := []struct {
		what string
		who  func(*project) string
		ask  func(*project) url.Values
		into *Percentiles
	}{
		{"a user, all", tenant, ended, &r.out.Tenant},
		{"a user, one project", tenant, ofProject, &r.out.TenantProject},
		{"a user, one service", tenant, ofService, &r.out.TenantService},
		{"a user, deep", tenant, r.deep, &r.out.TenantDeep},
		{"a user, one project, open", tenant, openOnly, &r.out.Open},
		{"many memberships, all", r.asMember, ended, &r.out.Member},
		{"admin, all", r.asRoot, ended, &r.out.Admin},
		{"admin, one project", r.asRoot, ofProject, &r.out.AdminProject},
		{"admin, one service", r.asRoot, ofService, &r.out.AdminService},
		{"admin, deep", r.asRoot, r.deep, &r.out.AdminDeep},
		{"admin, failed ones", r.asRoot, failedOnes, &r.out.AdminFailed},
	}
	for _, l := range looks {
		s, err := measure(ctx, r.Readers, r.forAWhile(), func(ctx context.Context) error {
			p := r.anyProject()
			return r.get(ctx, l.who(p), "/v1/queue?"+l.ask(p).Encode())
		})
		if err != nil {
			return err
		}
		*l.into = s.percentiles()
		r.result("GET /v1/queue, %s: %.2f ms (p50), %.2f ms (p99), %.0f/s", l.what, l.into.P50, l.into.P99, s.perSecond())
	}
	return nil
}

func tenant(p *project) string               { return p.team.token }
func (r *queueRun) asMember(*project) string { return r.memberToken }
func (r *queueRun) asRoot(*project) string   { return r.token }

func ended(*project) url.Values      { return url.Values{"all": {"true"}} }
func failedOnes(*project) url.Values { return url.Values{"state": {string(mariposa.TaskFailed)}} }
func openOnly(p *project) url.Values { return url.Values{"project": {p.id}} }

func ofProject(p *project) url.Values {
	return url.Values{"all": {"true"}, "project": {p.id}}
}

func ofService(p *project) url.Values {
	return url.Values{"all": {"true"}, "project": {p.id}, "service": {"service-1"}}
}

// deep starts at a random task of the past.
func (r *queueRun) deep(*project) url.Values {
	return url.Values{"all": {"true"}, "marker": {r.marks[rand.IntN(len(r.marks))]}}
}

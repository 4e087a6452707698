package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"mariposa"
	"mariposa/contract"
)

// admit adds tasks to many projects in turn, and then to a single one.
func (r *queueRun) admit(ctx context.Context) error {
	for _, part := range []func(context.Context) error{r.admitMany, r.admitOne} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return r.awaitIdle(ctx)
}

// admitMany adds tasks as fast as they are accepted, to each project in turn. Half of
// them scale a service up or down by one instance, half reprovision another service. A
// scale request that is refused because of an open one is not counted.
func (r *queueRun) admitMany(ctx context.Context) error {
	r.progress("adding tasks to %d projects with %d concurrent clients", len(r.all), r.o.Clients)
	var next, refused atomic.Int64
	up := make([]atomic.Bool, len(r.all))
	s, err := measure(ctx, r.o.Clients, r.forAWhile(), func(ctx context.Context) error {
		i := int(next.Add(1)-1) % len(r.all)
		p := r.all[i]
		if i%2 == 0 {
			return reprovision(ctx, p)
		}
		was := up[i].Load()
		c, err := p.team.client.Scale(ctx, p.id, map[string]string{"service-1": map[bool]string{false: "1", true: "0"}[was]})
		switch {
		case err == nil && c.Task != nil:
			up[i].Store(!was)
		case err == nil || mariposa.CodeOf(err) == mariposa.Conflict:
			refused.Add(1)
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	r.out.Admitted, r.out.Admit = len(s.took)-int(refused.Load()), s.percentiles()
	r.out.AdmittedPerS = perSecond(r.out.Admitted, s.span)
	began := time.Now()
	if err := r.awaitIdle(ctx); err != nil {
		return err
	}
	r.out.SettleS = round(time.Since(began).Seconds())
	r.result("%d tasks accepted at %.0f/s, %.2f ms (p50), %.2f ms (p99), %d refused; the last one ended %.2f s later", r.out.Admitted, r.out.AdmittedPerS,
		r.out.Admit.P50, r.out.Admit.P99, refused.Load(), r.out.SettleS)
	return nil
}

// admitOne adds tasks to a single project. Each task ends the previous one if it is still
// open.
func (r *queueRun) admitOne(ctx context.Context) error {
	p := r.all[0]
	s, err := measure(ctx, r.o.Clients, r.forAWhile(), func(ctx context.Context) error {
		return reprovision(ctx, p)
	})
	if err != nil {
		return err
	}
	r.out.AdmittedOnePerS, r.out.AdmitOne = s.perSecond(), s.percentiles()
	r.result("to one project: %.0f/s, %.2f ms (p50), %.2f ms (p99)", r.out.AdmittedOnePerS, r.out.AdmitOne.P50, r.out.AdmitOne.P99)
	return nil
}

// reprovision requests new instances of the second service.
func reprovision(ctx context.Context, p *project) error {
	c, err := p.team.client.Act(ctx, p.id, contract.Action{Action: "reprovision", Services: []string{"service-2"}})
	if err == nil && c.Task == nil {
		return fmt.Errorf("the answer to a change of project %s has no task", p.id)
	}
	return err
}

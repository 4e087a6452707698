package bench

import (
	"context"
	"fmt"
	"time"

	"mariposa/client"
)

// batches is the number of batches of the rolling update.
const batches = 10

// roll updates a large service a tenth at a time, with a slow driver, and compares the
// time with the possible minimum.
func (r *queueRun) roll(ctx context.Context) error {
	r.progress("starting %d instances that take %s to start", r.o.Instances, r.o.DriverTime)
	c, err := r.client.CreateProject(ctx, "rolling", r.rolling(16), "")
	if err != nil {
		return err
	}
	if err := r.awaitIdle(ctx); err != nil {
		return err
	}
	r.progress("rolling out a new version, a tenth at a time")
	began := time.Now()
	if c, err = r.client.UpdateManifest(ctx, c.ID, r.rolling(17), client.Update{Force: true}); err != nil {
		return err
	}
	var rolled time.Duration
	err = awaitCondition(ctx, func() (bool, error) {
		done, err := r.rolled(ctx, c.ID, c.Version)
		rolled = time.Since(began)
		return done, err
	})
	if err != nil {
		return err
	}
	if err := r.awaitIdle(ctx); err != nil {
		return err
	}
	r.out.Roll = r.rateRoll(rolled, time.Since(began))
	r.result("rolled out in %.2f s: %.2f times the ideal (%.2f s), %.2f times if min_healthy counts once (%.2f s)", r.out.Roll.S, r.out.Roll.Ratio, r.out.Roll.IdealS,
		r.out.Roll.StrictRatio, r.out.Roll.StrictS)
	if _, err := r.client.DeleteProject(ctx, c.ID, true); err != nil {
		return err
	}
	return r.awaitIdle(ctx)
}

func (r *queueRun) rateRoll(rolled, ended time.Duration) Roll {
	n := min(batches, r.o.Instances)
	ideal := time.Duration(n) * (r.o.DriverTime + r.o.MinHealthy)
	strict := time.Duration(n)*r.o.DriverTime + r.o.MinHealthy
	return Roll{
		Instances: r.o.Instances, Batches: n, DriverS: r.o.DriverTime.Seconds(), MinHealthyS: r.o.MinHealthy.Seconds(),
		S: round(rolled.Seconds()), EndS: round(ended.Seconds()), IdealS: round(ideal.Seconds()), Ratio: round(rolled.Seconds() / ideal.Seconds()),
		StrictS: round(strict.Seconds()), StrictRatio: round(rolled.Seconds() / strict.Seconds()),
	}
}

func (r *queueRun) rolling(nameLen int) []byte {
	return fmt.Appendf(nil, `services:
  load:
    compute_type: dummy
    scale: %d
    dummy: {name_len: %d, wait_secs: %g}
    stop: {preservestopped: no}
    update: {rolling: 10%%, min_healthy: %g}
`, r.o.Instances, nameLen, r.o.DriverTime.Seconds(), r.o.MinHealthy.Seconds())
}

// rolled reports whether all instances run a version and none runs another one.
func (r *queueRun) rolled(ctx context.Context, project, version string) (bool, error) {
	state, err := r.client.State(ctx, project, "")
	if err != nil || len(state.Projects) == 0 || len(state.Projects[0].Services) == 0 {
		return false, err
	}
	s := state.Projects[0].Services[0]
	return s.Version == version && s.Running == r.o.Instances && s.Outdated == 0 && s.Starting == 0, nil
}

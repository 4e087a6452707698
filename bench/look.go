package bench

import (
	"context"
	"crypto/sha1" //nolint:gosec // versions are identified by SHA-1, as the contract says
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/client"
	"mariposa/contract"
)

// measure lets several readers repeat a request until over returns true.
func measure(ctx context.Context, readers int, over func() bool, ask func(context.Context) error) (*sample, error) {
	s, began := &sample{}, time.Now()
	ctx = withSample(ctx, s)
	err := forEach(ctx, readers, readers, func(ctx context.Context, _ int) error {
		for {
			if err := ask(ctx); err != nil {
				return err
			}
			if over() {
				return nil
			}
		}
	})
	s.span = time.Since(began)
	return s, err
}

// forAWhile returns a function that reports whether the measurement's time is over.
func (r *apiRun) forAWhile() func() bool {
	end := time.Now().Add(r.Duration)
	return func() bool { return !time.Now().Before(end) }
}

// get requests a path and discards the answer. Decoding answers in the same process would
// add to the load.
func (r *apiRun) get(ctx context.Context, token, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.control.URL+path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: unexpected status %s", path, res.Status)
	}
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

const projectsPath, statePath = "/v1/projects", "/v1/state"

// getAs requests a path as one user, getAsAny as a random user each time.
func (r *apiRun) getAs(token, path string) func(context.Context) error {
	return func(ctx context.Context) error { return r.get(ctx, token, path) }
}

func (r *apiRun) getAsAny(path string) func(context.Context) error {
	return func(ctx context.Context) error { return r.get(ctx, r.anyTeam().token, path) }
}

// complete checks that all users see all their projects.
func (r *apiRun) complete(ctx context.Context) error {
	for _, one := range []struct {
		client *client.Client
		want   int
	}{{r.anyTeam().client, r.Projects}, {r.member, r.Projects * r.res.Memberships}, {r.root, len(r.all)}} {
		projects, err := one.client.Projects(ctx, "")
		if err != nil {
			return err
		}
		state, err := one.client.State(ctx, "", "")
		if err != nil {
			return err
		}
		if len(projects.Projects) != one.want || len(state.Projects) != one.want {
			return fmt.Errorf("a user of %d projects sees %d projects and the state of %d", one.want, len(projects.Projects), len(state.Projects))
		}
	}
	return nil
}

// rest reads while nothing changes, as a random user each time.
func (r *apiRun) rest(ctx context.Context) error {
	if err := r.complete(ctx); err != nil {
		return err
	}
	looks := []struct {
		what    string
		readers int
		ask     func(context.Context) error
		into    *Percentiles
	}{
		{"GET /v1/projects, a user", r.Readers, r.getAsAny(projectsPath), &r.res.ListProjects},
		{"GET /v1/state, a user", r.Readers, r.getAsAny(statePath), &r.res.State},
		{"GET /v1/projects, many memberships", r.Readers, r.getAs(r.memberToken, projectsPath), &r.res.ListProjectsMember},
		{"GET /v1/state, many memberships", r.Readers, r.getAs(r.memberToken, statePath), &r.res.StateMember},
		{"GET /v1/projects, all projects", 1, r.getAs(r.token, projectsPath), &r.res.ListProjectsAdmin},
		{"GET /v1/state, all projects", 1, r.getAs(r.token, statePath), &r.res.StateAdmin},
	}
	for _, l := range looks {
		s, err := measure(ctx, l.readers, r.forAWhile(), l.ask)
		if err != nil {
			return err
		}
		*l.into = s.percentiles()
		r.result("%s: %.2f ms (p50), %.2f ms (p99), %.0f/s", l.what, l.into.P50, l.into.P99, s.perSecond())
	}
	return nil
}

// permissions measures the cost of authentication and authorization.
func (r *apiRun) permissions(ctx context.Context) error {
	may := func(ctx context.Context) error {
		p := r.anyProject()
		return r.get(ctx, p.team.token, projectsPath+"/"+p.id)
	}
	s, err := measure(ctx, r.Readers, r.forAWhile(), may)
	if err != nil {
		return err
	}
	r.res.GetProject, r.res.RequestsPerS = s.percentiles(), s.perSecond()
	if len(r.teams) > 1 {
		if s, err = measure(ctx, r.Readers, r.forAWhile(), r.askStranger); err != nil {
			return err
		}
		r.res.DeniedProject = s.percentiles()
	}
	if s, err = measure(ctx, r.Readers, r.forAWhile(), r.getAs("", "/healthz")); err != nil {
		return err
	}
	r.res.Tokenless = s.percentiles()
	if r.res.Check, err = r.check(ctx, r.forAWhile()); err != nil {
		return err
	}
	r.result("GET one project: %.2f ms (p50), denied %.2f ms, without a token %.2f ms; %.0f/s; the permission check %.1f µs (p50), %.1f µs (p99)",
		r.res.GetProject.P50, r.res.DeniedProject.P50, r.res.Tokenless.P50, r.res.RequestsPerS, r.res.Check.P50, r.res.Check.P99)
	return nil
}

// askStranger requests a project with a token that has no access to it.
func (r *apiRun) askStranger(ctx context.Context) error {
	p := r.anyProject()
	_, err := r.stranger(p).client.Project(ctx, p.id)
	switch {
	case err == nil:
		return fmt.Errorf("project %s was visible to another user", p.id)
	case mariposa.CodeOf(err) != mariposa.ResourceNotFound:
		return err
	}
	return nil
}

// check measures the permission check without an HTTP request: in this process, on the
// server's picture.
func (r *apiRun) check(ctx context.Context, over func() bool) (Percentiles, error) {
	pic := r.control.Picture()
	dir := auth.NewDirectory(pic, "")
	var took []time.Duration
	for ctx.Err() == nil && !over() {
		p := r.anyProject()
		asks, want := p.team, auth.Allowed
		if t := r.stranger(p); t != nil && rand.IntN(2) == 0 {
			asks, want = t, auth.Hidden
		}
		began := time.Now()
		verdict := dir.May(dir.Identify(asks.token, began), auth.Deploy, pic.Projects.Get(p.id).Record())
		took = append(took, 1000*time.Since(began)) // Percentiles are in milliseconds, but this measurement is in microseconds
		if verdict != want {
			return Percentiles{}, fmt.Errorf("%s may deploy project %s of %s: %s", asks.user, p.id, p.team.user, verdict)
		}
		if len(took)%20 != 0 {
			continue
		}
		if err := pause(ctx, time.Millisecond); err != nil { // do not become the load
			return Percentiles{}, err
		}
	}
	return percentiles(took), ctx.Err()
}

// busy repeatedly submits manifests for many projects at the same time, while others
// read.
func (r *apiRun) busy(ctx context.Context) error {
	n := min(r.Updates, len(r.all))
	r.progress("repeatedly submitting %d manifests at once while users read", n)
	var done atomic.Bool
	over, updates := done.Load, &sample{}
	looks := func(ask func(context.Context) error, p *Percentiles) func(context.Context) error {
		return func(ctx context.Context) error {
			s, err := measure(ctx, max(1, r.Readers/2), over, func(ctx context.Context) error {
				if err := ask(ctx); err != nil {
					return err
				}
				return pause(ctx, 5*time.Millisecond) // the load should come from the updates, not from the readers
			})
			*p = s.percentiles()
			return err
		}
	}
	err := runAll(ctx, looks(r.getAsAny(projectsPath), &r.res.ListProjectsBusy), looks(r.getAsAny(statePath), &r.res.StateBusy),
		func(ctx context.Context) (err error) {
			r.res.CheckBusy, err = r.check(ctx, over)
			return err
		},
		func(ctx context.Context) error {
			defer done.Store(true)
			return r.rounds(withSample(ctx, updates), updates, n)
		})
	if err != nil {
		return err
	}
	r.res.Updates, r.res.UpdatesSent, r.res.Update, r.res.UpdatesPerS = n, len(updates.took), updates.percentiles(), updates.perSecond()
	r.result("%d accepted at %.0f/s, %.2f ms (p50), %.2f ms (p99); meanwhile projects %.2f ms (p99), state %.2f ms (p99)", r.res.UpdatesSent, r.res.UpdatesPerS,
		r.res.Update.P50, r.res.Update.P99, r.res.ListProjectsBusy.P99, r.res.StateBusy.P99)
	return r.verify(ctx)
}

// rounds submits one manifest for each of n projects at the same time. The next round
// uses the next projects.
func (r *apiRun) rounds(ctx context.Context, s *sample, n int) error {
	rand.Shuffle(len(r.all), func(i, j int) { r.all[i], r.all[j] = r.all[j], r.all[i] })
	over := r.forAWhile()
	for first := 0; ; first += n {
		began := time.Now()
		err := forEach(ctx, n, n, func(ctx context.Context, i int) error {
			p := r.all[(first+i)%len(r.all)]
			next := r.manifest(p, p.number+1)
			c, err := p.team.client.UpdateManifest(ctx, p.id, next, client.Update{Previous: strconv.Itoa(p.number)})
			if err != nil {
				return fmt.Errorf("version %d of project %s: %w", p.number+1, p.id, err)
			}
			p.body, p.number = next, p.number+1
			if c.Number != p.number {
				return fmt.Errorf("version %d of project %s got the number %d", p.number, p.id, c.Number)
			}
			return nil
		})
		s.span += time.Since(began)
		if err != nil || over() {
			return err
		}
	}
}

// verify counts the projects that do not match their last accepted update.
func (r *apiRun) verify(ctx context.Context) error {
	var lost atomic.Int64
	err := forEach(ctx, len(r.all), makers, func(ctx context.Context, i int) error {
		p := r.all[i]
		got, err := p.team.client.Project(ctx, p.id)
		if err != nil {
			return err
		}
		text, err := p.team.client.Manifest(ctx, p.id)
		if err != nil {
			return err
		}
		sum := sha1.Sum(p.body) //nolint:gosec // see the import
		if got.Number != p.number || got.Version != hex.EncodeToString(sum[:]) || string(text) != string(p.body) {
			lost.Add(1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.res.UpdatesLost = int(lost.Load())
	r.result("%d projects checked, %d do not match their last update", len(r.all), r.res.UpdatesLost)
	return r.awaitIdle(ctx)
}

// metadata sets one key of one project after another.
func (r *apiRun) metadata(ctx context.Context) error {
	var next atomic.Int64
	s, err := measure(ctx, makers, r.forAWhile(), func(ctx context.Context) error {
		i := next.Add(1)
		p := r.all[int(i)%len(r.all)]
		_, err := p.team.client.SetMetadata(ctx, p.id, "key", contract.MetadataValue{Value: json.RawMessage(strconv.FormatInt(i, 10))}, client.KeyChange{})
		return err
	})
	if err != nil {
		return err
	}
	r.res.Metadata, r.res.MetadataPerS = s.percentiles(), s.perSecond()
	r.result("metadata set at %.0f/s, %.2f ms (p50), %.2f ms (p99)", r.res.MetadataPerS, r.res.Metadata.P50, r.res.Metadata.P99)
	return nil
}

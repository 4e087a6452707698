package simulate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/queue"
	"mariposa/store"
)

// people simulates users. They send requests through package change, like every
// interface, to one of the replicas. If the replica crashes during a request, they repeat
// it with the same idempotency key.
type people struct {
	w             *World
	asked         *server           // the replica that they currently use
	open          *request          // a request without an answer; nil: none
	made          map[string]bool   // projects that were ever requested, by name
	settling      map[string]bool   // steps of settling that are done, by project
	tries         map[string]int    // resubmissions of a version while settling
	drafts        map[string]*draft // the manifests last submitted, by project name
	left          map[string]bool   // projects in which something was left outdated, by accepting it or by ending a task
	last          string            // the newest task that was admitted
	settlingSince time.Time         // when they began to ask for reachable goals
	limited       bool              // their organization has a quota
}

// request is a change request.
type request struct {
	what       string
	permission auth.Permission
	global     bool // the permission is not about an object
	deployer   bool // the caller has only the permission to deploy
	key        string
	ask        func(*change.Changer, *change.Request) (*contract.Changed, error)
	onSuccess  func() // nil: nothing follows
}

// The organization that owns all projects, and the token of a member with permission to
// deploy.
const (
	organization  = "default"
	deployerToken = "deployer"
)

// makePeople creates the organization and its users.
func (w *World) makePeople() error {
	err := auth.EnsureFirst(w.ctx, w.store, w.now)
	if err != nil {
		return err
	}
	const deployer = "deployer"
	writes := auth.NewUser(deployer, auth.PersonalOrganization{ID: "of-" + deployer}, &mariposa.UserSpec{Name: deployer, Created: w.now})
	writes = append(writes,
		store.Write{Kind: mariposa.KindToken, ID: deployerToken, Spec: &mariposa.TokenSpec{Use: mariposa.TokenUser, User: deployer, Created: w.now}},
		store.Write{Kind: mariposa.KindOrg, ID: organization, Spec: &mariposa.OrganizationSpec{
			Name: organization, Base: mariposa.RoleDeployer, Created: w.now,
			Members: map[string]mariposa.OrgRole{mariposa.FirstUser: mariposa.OrgOwner, deployer: mariposa.OrgMember},
		}})
	return w.store.Commit(w.ctx, store.Unit{Writes: writes})[0].Err
}

// send sends a request and reports whether it succeeded, or had nothing to do.
func (p *people) send(q *request) bool {
	if q.key == "" {
		q.key = p.w.newID()
	}
	req := &change.Request{
		Caller: &auth.Caller{}, Permission: q.permission, Global: q.global, Action: q.what,
		Idempotency: &change.Idempotency{ID: q.key, Request: q.what, Status: 200},
	}
	if q.deployer {
		req.Caller.Token = deployerToken
	}
	got, err := q.ask(p.asked.change, req)
	p.open = nil
	switch code := mariposa.CodeOf(err); {
	case errors.Is(err, store.ErrUnavailable), code == mariposa.Unavailable:
		p.open = q
	case err == nil, errors.Is(err, store.ErrConflict), code == mariposa.Conflict, code == mariposa.ResourceNotFound, code == mariposa.QuotaExceeded:
	case code == mariposa.InvalidArgument && q.permission == auth.Operate: // the scale would be below 0 by now
	default:
		p.w.fail("request to %s: %v", q.what, err)
	}
	p.w.note("people ask to %s: %s", q.what, answerOf(got, err))
	if req.Replayed {
		p.w.seen["answered again"]++
	}
	if err == nil {
		p.w.seen["asked to "+firstWord(q.what)]++
		if got != nil && got.Task != nil {
			p.last = *got.Task
		}
		if q.onSuccess != nil {
			q.onSuccess()
		}
	}
	p.asked.replaceIfDead()
	return err == nil
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// answerOf summarizes the answer to a request.
func answerOf(got *contract.Changed, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case got == nil:
		return "done"
	case got.Task == nil:
		return "nothing to do"
	}
	return "task " + tail(*got.Task)
}

var projectNames = []string{"p1", "p2", "p3"}

func (p *people) choices(add func(int, func())) {
	if len(p.w.servers) == 0 {
		return
	}
	p.asked = p.w.servers[p.w.rng.IntN(len(p.w.servers))]
	if q := p.open; q != nil {
		add(5, func() { p.send(q) })
		return
	}
	names := projectNames
	if p.w.Graph {
		names = names[:1]
	}
	for _, name := range names {
		r := p.project(name)
		if r == nil {
			if !p.made[name] || p.w.chance(10) {
				add(1, func() { p.create(name, p.nextDraft(name, false)) })
			}
			continue
		}
		if !p.w.chance(3) {
			continue
		}
		add(1, func() { p.update(r, p.nextDraft(name, false), "manifest") })
		add(1, func() { p.rescale(r) })
		if p.w.chance(6) {
			add(1, func() { p.act(r, change.Action{Action: "stop"}) })
			add(2, func() { p.act(r, change.Action{Action: "start"}) })
			add(1, func() { p.reprovision(r) })
			add(3, func() { p.restart(r) })
		}
		if p.w.chance(4) {
			p.holdChoices(add, r)
		}
		if p.w.chance(4) {
			p.followerChoices(add, r)
		}
		if p.w.chance(25) {
			add(1, func() { p.delete(r) })
		}
		if len(p.asked.picture.RetainedVolumesOf(organization)) > 0 {
			add(8, func() { p.attachVolume(r) })
		}
	}
	if p.w.chance(4) && p.w.rewinds > 0 {
		p.purgeChoices(add)
	}
	if p.w.chance(10) && len(p.asked.picture.RetainedVolumesOf(organization)) > 0 {
		add(1, p.deleteVolume)
	}
	if p.w.chance(20) {
		add(1, p.limit)
	}
	if !p.w.Graph && p.w.chance(3) {
		p.drainChoices(add)
	}
}

// project finds a project by name in the server's picture.
func (p *people) project(name string) *store.Project {
	return p.asked.picture.ProjectNamed(organization, name)
}

// nextDraft returns the next manifest of a project: often the previous one with a
// few changes.
func (p *people) nextDraft(name string, sound bool) string {
	d := p.drafts[name]
	if d == nil || sound || p.w.chance(3) {
		d = p.write(sound)
	} else {
		d = p.edit(d)
	}
	p.drafts[name] = d
	return d.String()
}

func (p *people) create(name, body string) bool {
	p.noteManifest(body)
	org := p.asked.picture.Orgs.Get(organization)
	return p.send(&request{
		what: "create " + name, permission: auth.Ask, global: true, onSuccess: func() { p.made[name] = true },
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			return c.CreateProject(p.w.ctx, req, org, name, change.Submission{Manifest: []byte(body)})
		},
	})
}

func (p *people) noteManifest(body string) {
	if p.w.Trace != nil {
		fmt.Fprint(p.w.Trace, body)
	}
}

// update submits a manifest.
func (p *people) update(r *store.Project, body, what string) bool {
	p.noteManifest(body)
	sub := &change.Submission{Manifest: []byte(body), Force: true}
	return p.send(&request{
		what: "submit " + what + " of " + nameOf(r), permission: auth.Deploy, deployer: p.w.chance(3),
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			return c.UpdateProject(p.w.ctx, req, r.ID, "", sub)
		},
	})
}

func nameOf(r *store.Project) string { return r.Spec().Name }

// act changes the goal of a project.
func (p *people) act(r *store.Project, a change.Action) bool {
	q := &request{
		what: fmt.Sprintf("%s %s %v", a.Action, nameOf(r), a.Services), permission: auth.Operate,
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			return c.Act(p.w.ctx, req, r.ID, a)
		},
	}
	switch a.Action {
	case "reprovision", "revert", "converge":
		q.permission, q.deployer = auth.Deploy, p.w.chance(3)
	case "accept":
		q.onSuccess = func() { p.left[nameOf(r)] = true }
	}
	return p.send(q)
}

func (p *people) rescale(r *store.Project) {
	if name := p.pickService(r); name != "" && !strings.HasPrefix(name, "drain") { // not of load balancers: each needs a node of its own
		to := change.Scaling{N: p.w.rng.IntN(7)}
		if p.w.chance(2) {
			to = change.Scaling{N: p.w.rng.IntN(3) - 1, By: true}
		}
		p.act(r, change.Action{Action: "scale", Scale: map[string]change.Scaling{name: to}})
	}
}

func (p *people) reprovision(r *store.Project) {
	if name := p.pickService(r); name != "" {
		p.act(r, change.Action{Action: "reprovision", Services: []string{name}})
	}
}

// restart restarts an instance of a project in place.
func (p *people) restart(r *store.Project) {
	all := p.asked.picture.InstancesOf(r.ID)
	if len(all) == 0 {
		return
	}
	i := all[p.w.rng.IntN(len(all))]
	p.send(&request{
		what: "restart " + i.Spec().Name, permission: auth.Operate,
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			return c.ActOnInstance(p.w.ctx, req, i, "restart")
		},
	})
}

// pickService picks one of the current services; empty: there is none.
func (p *people) pickService(r *store.Project) string {
	st := r.Status()
	if st == nil || len(st.Services) == 0 {
		return ""
	}
	return slices.Sorted(maps.Keys(st.Services))[p.w.rng.IntN(len(st.Services))]
}

func (p *people) delete(r *store.Project) bool {
	volumes := p.w.chance(2)
	return p.send(&request{
		what: "delete " + nameOf(r), permission: auth.Administer,
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			return c.DeleteProject(p.w.ctx, req, r.ID, true, volumes)
		},
	})
}

// limit sets or removes the organization's quota.
func (p *people) limit() {
	var most *int
	if n := 3 + p.w.rng.IntN(30); !p.limited || p.w.chance(2) {
		most = &n
	}
	p.setLimit(most)
}

func (p *people) setLimit(most *int) bool {
	return p.send(&request{
		what: "limit the organization", permission: auth.RunInstallation, global: true, onSuccess: func() { p.limited = most != nil },
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			_, err := c.SetQuota(p.w.ctx, req, organization, func(q *mariposa.Quota) error {
				q.Instances = most
				return nil
			})
			return nil, err
		},
	})
}

// tasks returns the open tasks of a project.
func (p *people) tasks(project string) []queue.Task {
	var open []queue.Task
	for _, t := range p.asked.picture.TasksOf(project) {
		st := t.Status()
		open = append(open, queue.Task{ID: t.ID, Spec: t.Spec(), Status: st})
	}
	return open
}

// askForReachableGoals submits a reachable manifest for every project and starts what is
// stopped. It reports whether all requests have been admitted.
func (p *people) askForReachableGoals() bool {
	if q := p.open; q != nil { // the unanswered request comes first
		p.send(q)
		return false
	}
	if p.limited {
		p.setLimit(nil)
		return false
	}
	if p.hasDrained() {
		p.undrainAll()
		return false
	}
	all := true
	for _, name := range projectNames {
		r := p.project(name)
		if r == nil || p.settling[name+"/started"] {
			continue
		}
		switch {
		case !p.settling[name+"/thawed"]:
			p.settling[name+"/thawed"] = p.act(r, change.Action{Action: "thaw"})
		case !p.settling[name+"/resumed"]:
			p.settling[name+"/resumed"] = p.act(r, change.Action{Action: "resume"})
		case !p.settling[name] && p.mayRescale(r.ID):
		case !p.settling[name] && p.mends(name, r):
			p.settling[name] = p.submitMended(name, r)
		case !p.settling[name]:
			p.settling[name] = p.update(r, p.nextDraft(name, true), "a sound manifest")
		case !p.settling[name+"/finished"] && p.mends(name, r):
			p.settling[name+"/finished"] = p.finishMended(r)
		case !p.settling[name+"/finished"]:
			p.settling[name+"/finished"] = p.finishHolds(r)
		default:
			p.settling[name+"/started"] = p.act(r, change.Action{Action: "start"})
		}
		all = false
	}
	return all
}

// askAgain reports whether a sound version was rolled back after everything had been
// requested, for example because there was no room for it while another project was
// rolling out, or is stuck because its volume is on a full node. Users then make room and
// submit another version, a few times.
func (p *people) askAgain() bool {
	again := false
	for _, name := range projectNames {
		r := p.project(name)
		if r == nil || !p.settling[name+"/started"] || p.tries[name] == 3 {
			continue
		}
		st := r.Status()
		full := p.lacksRoom(st)
		if full {
			p.w.enlargeNodes()
		}
		if full || st != nil && st.RolledBack == r.Spec().Number {
			p.tries[name]++
			p.settling[name], p.settling[name+"/finished"], p.settling[name+"/started"] = false, false, false
			again = true
		}
	}
	return again
}

// lacksRoom reports whether something has waited a long time for room on the node of its
// volume. Nothing moves the instances that fill that node.
func (p *people) lacksRoom(st *mariposa.ProjectStatus) bool {
	if st == nil || p.w.now.Sub(p.settlingSince) < 20*time.Minute {
		return false
	}
	for _, ss := range st.Services {
		stopped := ss.Rollout != nil && ss.Rollout.FailureReason != nil && ss.Rollout.FailureReason.Cause.Is(mariposa.ReasonVolumeNoRoom)
		if stopped || ss.Reason.Is(mariposa.ReasonVolumeNoRoom) {
			return true
		}
	}
	return false
}

// mayRescale reports whether an older request for another scale may still take effect. It
// does not wait for a request that is stuck for long.
func (p *people) mayRescale(project string) bool {
	return p.w.now.Sub(p.settlingSince) < 20*time.Minute && slices.ContainsFunc(p.tasks(project), func(t queue.Task) bool {
		return t.Spec.Task == mariposa.TaskScale && t.Spec.Origin == mariposa.OriginUser && !t.State().Ended()
	})
}

// mayHold reports whether an older request to replace some instances has not begun yet. It
// will be held, unless it is stuck for long.
func (p *people) mayHold(project string) bool {
	return p.w.now.Sub(p.settlingSince) < 20*time.Minute && slices.ContainsFunc(p.tasks(project), func(t queue.Task) bool {
		return t.Spec.Task == mariposa.TaskReprovision && t.Spec.Patch.Canary.N > 0 && t.Spec.Origin == mariposa.OriginUser && t.State() == mariposa.TaskQueued
	})
}

// mends reports whether a project can settle with a corrected copy of its current
// manifest. This is so in every other world, unless something was left outdated or the
// version was rolled back: then users submit another version.
func (p *people) mends(name string, r *store.Project) bool {
	st := r.Status()
	return p.w.Seed%2 == 0 && p.drafts[name] != nil && !p.left[name] && st != nil && st.RolledBack != r.Spec().Number
}

// submitMended submits the current manifest with its errors corrected. Without a change,
// there is nothing to do.
func (p *people) submitMended(name string, r *store.Project) bool {
	scales := map[string]int{}
	st := r.Status()
	for service, ss := range st.Services {
		scales[service] = ss.Scale
	}
	d := p.mendDraft(p.drafts[name], scales)
	if !p.update(r, d.String(), "a mended manifest") {
		return false
	}
	p.drafts[name] = d
	p.w.seen["mended"]++
	return true
}

// leftOutdated reports whether a rollout with a filter replaced another one, so that the
// other instances stay outdated.
func (p *people) leftOutdated(project, service string, number int) bool {
	def, err := p.w.definition(project, number, service)
	if err != nil || def == nil {
		return false
	}
	for _, r := range p.w.checker.instances {
		spec := r.Spec()
		if spec.Project == project && spec.ServiceName == service && spec.Goal == mariposa.GoalRunning && mariposa.FormOf(spec.Digest) != mariposa.FormOf(def.Digest) {
			return true
		}
	}
	return false
}

// finishMended continues held or outdated rollouts and retries failed ones once the
// corrected version is current.
func (p *people) finishMended(r *store.Project) bool {
	spec, st := r.Spec(), r.Status()
	if st == nil || st.Number != spec.Number {
		p.settling[spec.Name] = st == nil || st.RolledBack != spec.Number
		return false
	}
	if p.mayHold(r.ID) {
		return false
	}
	var held []string
	for _, name := range slices.Sorted(maps.Keys(st.Services)) {
		if ss := st.Services[name]; ss.Scale == 0 && !ss.Removed { // an older request took effect meanwhile
			p.act(r, change.Action{Action: "scale", Scale: map[string]change.Scaling{name: {N: 1}}})
			return false
		}
		if ss := st.Services[name]; ss.Rollout != nil && ss.Rollout.Limit > 0 || ss.Rollout == nil && p.leftOutdated(r.ID, name, ss.Number) {
			held = append(held, name)
		}
	}
	if len(held) > 0 {
		return p.act(r, change.Action{Action: "reprovision", Services: held})
	}
	return p.act(r, change.Action{Action: "converge"})
}

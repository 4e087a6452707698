package change

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/place"
	"mariposa/reason"
	"mariposa/store"
)

// maxForecastSteps bounds how far a plan looks ahead.
const maxForecastSteps = 5000

// Plan forecasts what would be done: with a manifest, what it would change; without
// one, what would happen right now.
func (c *Changer) Plan(ctx context.Context, req *Request, project string, sub *Submission) (*contract.Plan, error) {
	var parsed *manifest.Project
	if sub != nil {
		var err error
		if sub, parsed, err = c.resolveSubmission(ctx, project, sub); err != nil {
			return nil, err
		}
	}
	e, err := c.edit(ctx, req, project)
	if err != nil {
		return nil, err
	}
	var changes *draftResult
	if sub != nil {
		if changes, err = e.draftHypothetical(sub, parsed); err != nil {
			return nil, err
		}
	}
	return e.forecast(changes)
}

// draftHypothetical makes the version that is asked about, which is never stored. It
// returns nil if that version is in force already.
func (e *edit) draftHypothetical(sub *Submission, parsed *manifest.Project) (*draftResult, error) {
	m, err := e.makeOrResubmit(sub.draft(parsed))
	if err == nil && m != nil {
		if m.difference, err = e.diffFromGoal(m, e.record.Status()); err != nil {
			return nil, err
		}
		e.task = &mariposa.TaskSpec{Services: m.changed, Patch: mariposa.Patch{Number: e.spec.Number, Rolling: sub.Rolling, Canary: sub.Canary}}
	}
	return m, err
}

// forecast returns the plan for the goal after this change.
func (e *edit) forecast(m *draftResult) (*contract.Plan, error) {
	goal, err := e.goalAfter()
	if err != nil {
		return nil, err
	}
	doc := contract.Plan{Resources: []contract.PlanResource{}, Steps: []contract.PlanStep{}, Waits: []string{}, Missing: []string{}, Complete: true}
	if m != nil {
		doc.Missing, doc.NeedsApproval, doc.Declares = append(doc.Missing, m.missing...), m.unapproved, rulesOf(m.manifest)
	}
	if goal == nil { // its first task has not arrived yet
		doc.Waits = e.awaitedApprovals(m)
		return &doc, nil
	}
	view, err := e.view(goal)
	if err != nil {
		return nil, err
	}
	doc.Version = goal.Version
	doc.Resources = e.resourceChanges(m, goal)
	r := placementTrial{view: view, goal: goal}
	seen := view.Forecast(converge.ForecastOptions{Goal: goal, Now: e.now, Steps: maxForecastSteps, Name: r.name})
	markFollowers(doc.Resources, seen.Steps)
	var retried []string
	if m != nil {
		retried = converge.RetriedServices(e.record.Status())
	}
	markUnfinished(doc.Resources, retried, seen)
	shared, err := e.networksAndVolumes(m, goal)
	if err != nil {
		return nil, err
	}
	doc.Resources = append(doc.Resources, shared...)
	names := map[string]string{}
	e.c.Picture.EachInstanceOf(e.record.ID, func(r *store.Instance) bool {
		names[r.ID] = r.Spec().Name
		return true
	})
	for _, step := range seen.Steps {
		doc.Steps = append(doc.Steps, e.step(step, view, names))
	}
	doc.Waits = append(e.awaitedApprovals(m), append(waits(seen), r.run(seen.Steps, e.c.Trial(slices.Collect(maps.Keys(names))))...)...)
	doc.Complete = !seen.Cut && len(doc.Waits) == 0
	return &doc, nil
}

// rulesOf returns what a manifest declares about metadata.
func rulesOf(p *manifest.Project) []contract.MetadataRule {
	var rules []contract.MetadataRule
	for _, m := range p.Metadata {
		rules = append(rules, contract.MetadataRule{
			Key: m.Name, Description: m.Description, Required: m.Required, Secret: m.Secret, Type: m.Type, Pattern: m.Pattern, Choices: m.Choices, Default: m.Default, Generate: m.Generate,
		})
	}
	return rules
}

// awaitedApprovals says which versions an operator would have to approve first: the one
// that is asked about, and those whose tasks wait already.
func (e *edit) awaitedApprovals(m *draftResult) []string {
	all := []string{}
	if m != nil && len(m.unapproved) > 0 {
		all = append(all, e.unapprovedReason(m))
	}
	for _, t := range e.tasks {
		if t.State() != mariposa.TaskQueued || t.Spec.Patch.Number == 0 || e.ended[t.ID] {
			continue
		}
		if v, _ := e.readVersion(t.Spec.Patch.Number); v != nil { // what is lost waits for nobody
			if uses := v.NeedsApproval(e.record.Spec()); len(uses) > 0 {
				all = append(all, reason.Sentence(mariposa.AwaitsApproval(v.Spec.Number, uses)))
			}
		}
	}
	return all
}

// waits says, for each service that would not reach its goal, what it waits for.
func waits(seen converge.Forecast) []string {
	all := []string{}
	for _, name := range slices.Sorted(maps.Keys(seen.Services)) {
		ss, why := seen.Services[name], ""
		switch {
		case seen.Cut:
			continue
		case ss.Rollout.HasFailed():
			why = cmp.Or(reason.Sentence(ss.Reason), "its rollout has stopped")
		case seen.Todo[name] > 0:
			why = cmp.Or(reason.Sentence(ss.Reason), "it is waiting")
		case ss.Frozen != nil:
			why = cmp.Or(reason.Sentence(ss.Reason), "it is frozen")
		case ss.Rollout != nil && ss.Rollout.Held:
			why = cmp.Or(reason.Sentence(ss.Reason), "its rollout is held")
		case ss.Paused && ss.Rollout != nil:
			why = cmp.Or(reason.Sentence(ss.Reason), "it is paused")
		default:
			continue
		}
		all = append(all, name+": "+why)
	}
	return all
}

// view returns the project as its planner would see it under a goal.
func (e *edit) view(goal *mariposa.ProjectStatus) (*converge.View, error) {
	return e.c.view(e.record.ID, goal, e.definitions)
}

// view returns a project as its planner would see it under a goal.
func (c *Changer) view(project string, goal *mariposa.ProjectStatus, definitions func(int) (converge.Definitions, error)) (*converge.View, error) {
	view := c.Picture.View(c.Picture.Project(project), goal)
	return view, picture.LoadDefinitions(view, definitions)
}

// resourceChanges describes the change of each service.
func (e *edit) resourceChanges(m *draftResult, goal *mariposa.ProjectStatus) []contract.PlanResource {
	before := map[string]int{}
	if st := e.record.Status(); st != nil {
		for name, ss := range st.Services {
			if !ss.Removed {
				before[name] = ss.Scale
			}
		}
	}
	docs := []contract.PlanResource{}
	add := func(name, change string, fields []contract.FieldDiff) {
		doc := contract.PlanResource{Kind: "service", Name: name, Change: change, Fields: append([]contract.FieldDiff{}, fields...), Before: before[name]}
		if ss := goal.Services[name]; ss != nil && !ss.Removed {
			doc.After = ss.Scale
		}
		if change == string(manifest.Unchanged) && doc.Before != doc.After {
			doc.Change = string(manifest.Scaled)
		}
		docs = append(docs, doc)
	}
	if m != nil {
		for _, d := range m.diffs {
			one := ServiceDiff(d)
			add(one.Service, one.Change, one.Fields)
		}
		return docs
	}
	for _, name := range slices.Sorted(maps.Keys(goal.Services)) {
		change := manifest.Unchanged
		switch {
		case goal.Services[name].Removed:
			change = manifest.Removed
		case e.record.Status() == nil: // its first plan has not been made yet
			change = manifest.Created
		}
		add(name, string(change), nil)
	}
	return docs
}

// markFollowers marks services as replaced that would be recreated because of others,
// whether or not their own definition changes.
func markFollowers(docs []contract.PlanResource, steps []converge.ForecastStep) {
	follows := map[string]string{}
	for _, s := range steps {
		if s.Follows != "" {
			follows[s.Service] = s.Follows
		}
	}
	for i := range docs {
		doc := &docs[i]
		switch manifest.Change(doc.Change) {
		case manifest.Unchanged, manifest.Updated, manifest.Scaled:
			if on := follows[doc.Name]; on != "" {
				doc.Change, doc.Follows = string(manifest.Replaced), on
			}
		}
	}
}

// markUnfinished describes services whose definition is unchanged but which are not at
// their goal, and marks those that are retried.
func markUnfinished(docs []contract.PlanResource, retried []string, seen converge.Forecast) {
	changes := changesBy(seen)
	for i := range docs {
		doc := &docs[i]
		is := manifest.Change(doc.Change)
		doc.Retried = is != manifest.Removed && slices.Contains(retried, doc.Name)
		if change := changes[doc.Name]; change != "" && (is == manifest.Unchanged || is == manifest.Scaled && doc.Retried) {
			doc.Change = string(change)
		}
	}
}

// changesBy sums up the steps of a plan for each service.
func changesBy(seen converge.Forecast) map[string]manifest.Change {
	weight := map[manifest.Change]int{manifest.Scaled: 1, manifest.Created: 2, manifest.Updated: 3, manifest.Replaced: 4}
	changes := map[string]manifest.Change{}
	note := func(name string, c manifest.Change) {
		if weight[c] > weight[changes[name]] {
			changes[name] = c
		}
	}
	for _, s := range seen.Steps {
		switch {
		case s.Action == converge.Create && s.Reason.Is(mariposa.ReasonScale):
			note(s.Service, manifest.Created)
		case s.Action == converge.Create, s.Reason.Is(mariposa.ReasonVersionReplaces, mariposa.ReasonFollowReplaces):
			note(s.Service, manifest.Replaced)
		case s.Action == converge.Update:
			note(s.Service, manifest.Updated)
		case s.Action == converge.Remove:
			note(s.Service, manifest.Scaled)
		}
	}
	for name, ss := range seen.Services {
		r := ss.Rollout
		if seen.Todo[name] > 0 && r != nil && r.FailureReason == nil && !r.Held && !ss.Paused && ss.Frozen == nil && !ss.Removed {
			note(name, manifest.Replaced) // it waits for something other than a user
		}
	}
	return changes
}

func (e *edit) step(s converge.ForecastStep, view *converge.View, names map[string]string) contract.PlanStep {
	doc := contract.PlanStep{Step: string(s.Action), Service: s.Service, Instance: s.Instance, InstanceName: names[s.Instance], Reason: reason.Sentence(s.Reason)}
	if s.Reason != nil {
		doc.ReasonCode = s.Reason.Code
	}
	if doc.InstanceName == "" { // an earlier step would have created it
		doc.Instance, doc.InstanceName = "", s.Instance
	}
	slot := s.Slot
	if i := view.Instance(s.Instance); i != nil {
		slot = i.Spec.Slot
	}
	if slot > 0 {
		doc.Slot = fmt.Sprintf("%s.%d", s.Service, slot)
	}
	if s.Number > 0 {
		doc.Version = e.spec.Version
		if s.Number != e.spec.Number {
			doc.Version, doc.Number = e.sha(s.Number), s.Number
		}
	}
	return doc
}

// ServiceDiff returns the differences of a service between two versions.
func ServiceDiff(d manifest.Difference) contract.ServiceDiff {
	out := contract.ServiceDiff{Service: d.Service, Change: string(d.Change), Fields: []contract.FieldDiff{}}
	for _, f := range d.Fields {
		out.Fields = append(out.Fields, contract.FieldDiff{Field: f.Field, Before: f.Old, After: f.New})
	}
	return out
}

// TrialFunc returns a copy of the known nodes and claims, from which the given
// instances can be released.
type TrialFunc func(instances []string) *place.Placer

// placementTrial finds out which steps of a plan no node would take in the current
// state. The plan itself knows no nodes.
type placementTrial struct {
	view  *converge.View
	goal  *mariposa.ProjectStatus
	names []string // of the instances that would be created, in the order of the steps
}

// name returns the name of the instance that a step would create.
func (r *placementTrial) name(service string, slot int) string {
	r.names = append(r.names, fmt.Sprintf("%s.%d#%d", service, slot, len(r.names)+1))
	return r.names[len(r.names)-1]
}

// refusal describes the creates of one service that no node takes.
type refusal struct {
	slot int
	why  *mariposa.Reason
	more int
}

// run applies the steps to a copy of the placement state, and says which services do
// not fit. Removals in a round make room for creates in the same round; the locations
// of volumes are ignored.
func (r *placementTrial) run(steps []converge.ForecastStep, stage *place.Placer) []string {
	refused := map[string]*refusal{}
	made := 0
	for len(steps) > 0 {
		end := slices.IndexFunc(steps, func(s converge.ForecastStep) bool { return s.Round != steps[0].Round })
		if end < 0 {
			end = len(steps)
		}
		for _, s := range steps[:end] {
			if s.Action == converge.Remove || s.Action == converge.Preserve || s.Action == converge.Collect {
				stage.Release(s.Instance)
			}
		}
		for _, s := range steps[:end] {
			if s.Action != converge.Create || made >= len(r.names) { // beyond the steps that were simulated
				continue
			}
			r.tryPlace(s, r.names[made], stage, refused)
			made++
		}
		steps = steps[end:]
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		f := refused[name]
		all = append(all, fmt.Sprintf("%s: %s.%d would have to wait: %s", name, name, f.slot, reason.Sentence(f.why.AndMore(f.more))))
	}
	return all
}

// tryPlace looks for a node for one instance. Once an instance of a service finds
// none, the others are only counted.
func (r *placementTrial) tryPlace(s converge.ForecastStep, name string, stage *place.Placer, refused map[string]*refusal) {
	if f := refused[s.Service]; f != nil {
		f.more++
		return
	}
	def, ss := r.view.Definition(s.Number, s.Service), r.goal.Services[s.Service]
	if def == nil || ss == nil {
		return
	}
	if _, why := stage.Pick(name, needOf(ss.ID, def)); why != nil {
		refused[s.Service] = &refusal{slot: s.Slot, why: why}
	}
}

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/contract"
)

// maxScale bounds a service, so that a slip of a finger is caught.
const maxScale = 1_000_000

type actOnProjectInput struct {
	OfProject
	Body contract.Action
}

func (s *server) actOnProject(ctx context.Context, in *actOnProjectInput) (*document[contract.Changed], error) {
	return s.act(ctx, in.OfProject, in.Body, "")
}

type actOnServiceInput struct {
	OfService
	Body contract.Action
}

func (s *server) actOnService(ctx context.Context, in *actOnServiceInput) (*document[contract.Changed], error) {
	if len(in.Body.Services) > 0 {
		return nil, invalid("services: the path names the service already")
	}
	return s.act(ctx, in.OfProject, in.Body, in.Service)
}

// act changes the goal of a project, or of the one service that the path names.
func (s *server) act(ctx context.Context, in OfProject, a contract.Action, service string) (*document[contract.Changed], error) {
	if err := checkAction(a, service); err != nil {
		return nil, err
	}
	if a.Action == "revert" {
		return s.revert(ctx, in, a)
	}
	var build func(*edit) (*mariposa.TaskSpec, error)
	switch a.Action {
	case "start":
		build = func(e *edit) (*mariposa.TaskSpec, error) { return e.toGoal(mariposa.TaskStart, mariposa.GoalStarted) }
	case "stop":
		build = func(e *edit) (*mariposa.TaskSpec, error) { return e.toGoal(mariposa.TaskStop, mariposa.GoalStopped) }
	case "reprovision":
		rolling, err := readAmount("rolling", a.Rolling)
		if err != nil {
			return nil, err
		}
		build = func(e *edit) (*mariposa.TaskSpec, error) { return e.reprovision(a.Services, service, rolling) }
	case "scale":
		scales, err := readScales(a.Scale, service)
		if err != nil {
			return nil, err
		}
		build = func(e *edit) (*mariposa.TaskSpec, error) { return e.scale(scales) }
	default:
		return nil, notYet(a.Action)
	}
	return s.change(ctx, in, func(e *edit) (*change, error) {
		task, err := build(e)
		if err != nil || task == nil {
			return &e.change, err
		}
		if err := e.admit(task); err != nil {
			return nil, err
		}
		return e.done(task.Reason)
	})
}

// checkAction refuses what would be silently ignored otherwise.
func checkAction(a contract.Action, service string) error {
	switch {
	case len(a.Canary) > 0:
		return notYet("canary")
	case len(a.Filters) > 0:
		return notYet("filters")
	case a.Version != "" && a.Action != "revert":
		return notYet(a.Action + " to a version")
	case a.Action == "revert" && (service != "" || len(a.Services) > 0):
		return invalid("a revert brings a whole version back: services are not reverted one by one")
	case a.WithScale && a.Action != "revert":
		return invalid("with_scale: a %s has no use for it", a.Action)
	case len(a.Rolling) > 0 && a.Action != "reprovision" && a.Action != "revert":
		return invalid("rolling: a %s has no use for it", a.Action)
	case len(a.Scale) > 0 && a.Action != "scale":
		return invalid("scale: a %s has no use for it", a.Action)
	case (service != "" || len(a.Services) > 0) && (a.Action == "start" || a.Action == "stop"):
		return notYet(a.Action + " of a single service")
	case len(a.Services) > 0 && a.Action == "scale":
		return invalid("services: say scale as an object by service instead")
	}
	return nil
}

// toGoal starts or stops the whole. Where that is the goal already and nothing
// else is under way, there is nothing to do.
func (e *edit) toGoal(kind mariposa.TaskKind, goal mariposa.ProjectGoal) (*mariposa.TaskSpec, error) {
	if st := statusOf(e.record); st != nil && st.Goal == goal && e.idle(nil) {
		return nil, nil
	}
	return &mariposa.TaskSpec{
		Task: kind, Component: "project", Version: e.spec.Version,
		Reason: actor(e.ctx) + " asked for a " + string(kind), Patch: mariposa.Patch{Goal: goal},
	}, nil
}

// reprovision makes the instances of some services anew, or of all.
func (e *edit) reprovision(services []string, service string, rolling mariposa.Amount) (*mariposa.TaskSpec, error) {
	goals := e.goals()
	if service != "" {
		services = []string{service}
	}
	var names []string
	for _, ref := range services {
		name, err := e.findService(goals, ref)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	t := &mariposa.TaskSpec{
		Task: mariposa.TaskReprovision, Component: "project", Services: names, Version: e.spec.Version,
		Patch: mariposa.Patch{Reprovision: names, Rolling: rolling},
	}
	if len(names) == 0 {
		t.Patch.Reprovision = slices.Sorted(maps.Keys(goals))
	}
	if len(t.Patch.Reprovision) == 0 {
		return nil, nil
	}
	t.Reason = actor(e.ctx) + " asked to make " + strings.Join(t.Patch.Reprovision, ", ") + " anew"
	return t, nil
}

// goals are the services that can be acted on: those in force and not on their
// way out, and those of the newest manifest, whose task may still be waiting.
func (e *edit) goals() map[string]*mariposa.ServiceStatus {
	v := e.s.viewer(e.ctx)
	goals := v.goals(e.record)
	maps.DeleteFunc(goals, func(_ string, ss *mariposa.ServiceStatus) bool { return ss.Removed })
	for name, ss := range v.submitted(e.record) {
		if goals[name] == nil {
			goals[name] = ss
		}
	}
	return goals
}

func (e *edit) findService(goals map[string]*mariposa.ServiceStatus, ref string) (string, error) {
	if goals[ref] != nil {
		return ref, nil
	}
	for name, ss := range goals {
		if ss.ID == ref {
			return name, nil
		}
	}
	return "", notFound("project %s has no service %q", e.spec.Name, ref)
}

// scaling is what is asked of one service's scale: a number, or a difference.
type scaling struct {
	n  int
	by bool
}

func (c scaling) String() string {
	if c.by {
		return fmt.Sprintf("by %+d", c.n)
	}
	return fmt.Sprintf("to %d", c.n)
}

// scale changes the scales of services in one task.
func (e *edit) scale(scales map[string]scaling) (*mariposa.TaskSpec, error) {
	goals := e.goals()
	t := &mariposa.TaskSpec{Task: mariposa.TaskScale, Component: "project", Version: e.spec.Version}
	same, said := true, []string(nil)
	for _, ref := range slices.Sorted(maps.Keys(scales)) {
		name, err := e.findService(goals, ref)
		if err != nil {
			return nil, err
		}
		if slices.Contains(t.Services, name) {
			return nil, invalid("scale: %s is named twice", name)
		}
		ask, now := scales[ref], goals[name].Scale
		will := ask.n
		if ask.by {
			will += now
		}
		if will < 0 || will > maxScale {
			return nil, invalid("scale: %s would be scaled from %d to %d; it must stay between 0 and %d", name, now, will, maxScale)
		}
		ask.into(&t.Patch, name)
		t.Services, said, same = append(t.Services, name), append(said, name+" "+ask.String()), same && will == now
	}
	if same && e.idle(t.Services) {
		return nil, nil
	}
	t.Reason = actor(e.ctx) + " scaled " + strings.Join(said, ", ")
	return t, nil
}

func (c scaling) into(p *mariposa.Patch, service string) {
	at := &p.Scale
	if c.by {
		at = &p.ScaleBy
	}
	if *at == nil {
		*at = map[string]int{}
	}
	(*at)[service] = c.n
}

// readScales reads the scale of the service in the path, or an object of scales
// by service.
func readScales(raw json.RawMessage, service string) (map[string]scaling, error) {
	if service != "" {
		one, err := readScale(raw)
		return map[string]scaling{service: one}, err
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil || len(all) == 0 {
		return nil, invalid(`scale must be an object by service, like {"web": 5, "db": "+1"}`)
	}
	scales := map[string]scaling{}
	for name, raw := range all {
		one, err := readScale(raw)
		if err != nil {
			return nil, err
		}
		scales[name] = one
	}
	return scales, nil
}

// readScale reads 5, "5", "+1" or "-2".
func readScale(raw json.RawMessage) (scaling, error) {
	text := string(raw)
	var quoted string
	signed := false
	if json.Unmarshal(raw, &quoted) == nil && text != "null" {
		text = quoted
		signed = strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-")
	}
	n, err := strconv.Atoi(text)
	if err != nil || (n < 0 && !signed) || n < -maxScale || n > maxScale {
		return scaling{}, invalid(`scale must be a number from 0 to %d like 5, or a change like "+1" or "-2", not %s`, maxScale, shorten(string(raw)))
	}
	return scaling{n: n, by: signed}, nil
}

// readAmount reads 2, "2" or "25%".
func readAmount(field string, raw json.RawMessage) (mariposa.Amount, error) {
	text := string(raw)
	var quoted string
	if json.Unmarshal(raw, &quoted) == nil {
		text = quoted
	}
	return parseAmount(field, text)
}

func shorten(text string) string {
	if len(text) > 40 {
		return text[:40] + "…"
	}
	return text
}

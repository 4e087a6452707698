package api

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/change"
	"mariposa/contract"
)

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
	if in.Body.Services != nil {
		return nil, invalid("services: not allowed here, because the path already names the service")
	}
	return s.act(ctx, in.OfProject, in.Body, in.Service)
}

// act changes the desired state of a project, or of the service in the path.
func (s *server) act(ctx context.Context, in OfProject, body contract.Action, service string) (*document[contract.Changed], error) {
	if service != "" {
		body.Services = []string{service}
	}
	a, err := readAction(body, service)
	if err != nil {
		return nil, err
	}
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.Act(ctx, request(ctx), r.ID, a))
}

// readAction converts and checks an action.
func readAction(body contract.Action, service string) (a change.Action, err error) {
	if err := checkAction(body, service); err != nil {
		return a, err
	}
	a = change.Action{Action: body.Action, Services: body.Services, Version: body.Version, WithScale: body.WithScale, Message: body.Message, All: body.All, RescheduleNow: body.RescheduleNow}
	if a.Rolling, err = readAmount("rolling", body.Rolling); err != nil {
		return a, err
	}
	canary := body.Canary
	if len(canary) == 0 {
		canary = body.Count
	}
	if a.Canary, err = readAmount("canary", canary); err != nil {
		return a, err
	}
	if len(body.Scale) > 0 || body.Action == "scale" {
		a.Scale, err = readScales(body.Scale, service)
	}
	if body.Filters != nil && err == nil {
		a.Filter, err = readFilter(body.Filters)
	}
	return a, err
}

// fieldsOf lists the fields that each action uses, besides its name.
var fieldsOf = map[string]string{
	"start": "services version rolling canary", "stop": "services version", "scale": "scale",
	"reprovision": "services rolling canary filters all", "revert": "version rolling canary scale with_scale message",
	"freeze": "services", "thaw": "services", "pause": "services", "resume": "services", "converge": "services reschedule_now", "accept": "services",
}

// checkAction rejects fields that the action would silently ignore.
func checkAction(a contract.Action, service string) error {
	given := map[string]bool{
		"services": a.Services != nil, "version": a.Version != "", "rolling": len(a.Rolling) > 0, "canary": len(a.Canary) > 0 || len(a.Count) > 0,
		"filters": a.Filters != nil, "scale": len(a.Scale) > 0, "with_scale": a.WithScale, "all": a.All, "message": a.Message != "",
		"reschedule_now": a.RescheduleNow,
	}
	useful := strings.Fields(fieldsOf[a.Action])
	for _, field := range slices.Sorted(maps.Keys(given)) {
		switch {
		case !given[field] || slices.Contains(useful, field):
		case field == "services" && a.Action == "scale" && service != "":
		case field == "services" && a.Action == "scale":
			return invalid("services: not used by scale; set scale to an object by service instead")
		case field == "services" && a.Action == "revert":
			return invalid("services: not used by revert, which always restores a whole version")
		default:
			return invalid("%s: not used by %s", field, a.Action)
		}
	}
	if a.Action == "start" && a.Version == "" && (given["rolling"] || given["canary"]) {
		return invalid("rolling, canary: a start uses them only together with version")
	}
	if a.Services != nil && len(a.Services) == 0 { // as a script sends it that found none
		return invalid("services must name at least one service; leave it out for the whole project")
	}
	if len(a.Canary) > 0 && len(a.Count) > 0 {
		return invalid("count and canary mean the same: use only one of them")
	}
	return nil
}

// readFilter reads a filter: names are a string, or a list of strings.
func readFilter(f *contract.Filters) (*change.Filter, error) {
	var err error
	read := func(field string, raw json.RawMessage) (names []string) {
		var one string
		if len(raw) == 0 || err != nil {
			return nil
		}
		if json.Unmarshal(raw, &one) == nil {
			return []string{one}
		}
		switch {
		case json.Unmarshal(raw, &names) != nil:
			err = invalid("filters.%s must be a string or a list of strings, not %s", field, shortenText(string(raw)))
		case names != nil && len(names) == 0:
			err = invalid("filters.%[1]s must name at least one %[1]s; leave it out for every %[1]s", field)
		}
		return names
	}
	filter := &change.Filter{Services: read("service", f.Service), Instances: read("instance", f.Instance), Nodes: read("node", f.Node), Version: f.Version, Image: f.Image}
	if err == nil && len(filter.Services)+len(filter.Instances)+len(filter.Nodes) == 0 && filter.Version+filter.Image == "" {
		err = invalid("filters must contain at least one filter; leave it out for every instance")
	}
	return filter, err
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

// readScales reads the scale of the service in the path, or an object with scales by
// service.
func readScales(raw json.RawMessage, service string) (map[string]change.Scaling, error) {
	if service != "" {
		one, err := readScale(raw)
		return map[string]change.Scaling{service: one}, err
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil || len(all) == 0 {
		return nil, invalid(`scale must be an object by service, such as {"web": 5, "db": "+1"}`)
	}
	scales := map[string]change.Scaling{}
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
func readScale(raw json.RawMessage) (change.Scaling, error) {
	text := string(raw)
	var quoted string
	signed := false
	if json.Unmarshal(raw, &quoted) == nil && text != "null" {
		text = quoted
		signed = strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-")
	}
	n, err := strconv.Atoi(text)
	if err != nil || (n < 0 && !signed) || n < -change.MaxScale || n > change.MaxScale {
		return change.Scaling{}, invalid(`scale must be a number from 0 to %d, or a change such as "+1" or "-2", not %s`, change.MaxScale, shortenText(string(raw)))
	}
	return change.Scaling{N: n, By: signed}, nil
}

func shortenText(text string) string {
	if len(text) > 40 {
		return text[:40] + "…"
	}
	return text
}

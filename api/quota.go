package api

import (
	"context"
	"encoding/json"
	"math"

	"mariposa"
	"mariposa/change"
	"mariposa/contract"
)

func (s *server) getQuota(ctx context.Context, in *OfOrganization) (*document[contract.Quota], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	doc, err := s.change.Quota(ctx, r.ID, r.Spec())
	if err != nil {
		return nil, err
	}
	return answer(doc)
}

type putQuotaInput struct {
	OfOrganization
	RawBody []byte `contentType:"application/json"`
}

func (s *server) putQuota(ctx context.Context, in *putQuotaInput) (*document[contract.Quota], error) {
	fields, err := unmarshalKeys(in.RawBody, `the request body must be an object such as {"instances": 100, "memory": null}`)
	if err != nil {
		return nil, err
	}
	found, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetQuota(ctx, request(ctx), found.ID, func(q *mariposa.Quota) error { return readQuota(fields, q) }))
}

// readQuota sets the given limits.
func readQuota(fields map[string]json.RawMessage, q *mariposa.Quota) error {
	for name, raw := range fields {
		var err error
		switch name {
		case "projects":
			q.Projects, err = limit[int](name, raw)
		case "instances":
			q.Instances, err = limit[int](name, raw)
		case "memory":
			q.Memory, err = limit[int64](name, raw)
		case "stored_per_project":
			q.StoredPerProject, err = storedLimit(name, raw)
		case "cpu":
			var cores *float64
			if cores, err = limit[float64](name, raw); err == nil {
				q.MilliCPU = nil
				if cores != nil {
					n := int64(math.Round(*cores * 1000))
					q.MilliCPU = &n
				}
			}
		default:
			err = invalid("unknown limit %s: use projects, instances, cpu, memory or stored_per_project", shortenText(name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func limit[T int | int64 | float64](name string, raw json.RawMessage) (*T, error) {
	var n *T
	if json.Unmarshal(raw, &n) != nil || (n != nil && (*n < 0 || *n > 1<<53)) {
		return nil, invalid("%s must be a number of at least 0, or null for no limit, not %s", name, shortenText(string(raw)))
	}
	return n, nil
}

// storedLimit reads the storage limit of projects. A very low limit would reject every
// change of every project.
func storedLimit(name string, raw json.RawMessage) (*int64, error) {
	n, err := limit[int64](name, raw)
	if err == nil && n != nil && *n < mariposa.MinStoredPerProject {
		return nil, invalid("%s must be at least %d bytes (%dk), because projects must be able to store their newest version; use null for the default limit",
			name, mariposa.MinStoredPerProject, mariposa.MinStoredPerProject>>10)
	}
	return n, err
}

func (s *server) getPolicy(ctx context.Context, in *OfOrganization) (*document[contract.Policy], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return answer(change.PolicyOf(r.ID, r.Spec()))
}

type putPolicyInput struct {
	OfOrganization
	Body contract.PolicyChange
}

func (s *server) putPolicy(ctx context.Context, in *putPolicyInput) (*document[contract.Policy], error) {
	found, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetPolicy(ctx, request(ctx), found.ID, in.Body))
}

func (s *server) getSettings(context.Context, *struct{}) (*document[contract.Settings], error) {
	return answer(s.change.Settings())
}

type putSettingsInput struct {
	RawBody []byte `contentType:"application/json"`
}

func (s *server) putSettings(ctx context.Context, in *putSettingsInput) (*document[contract.Settings], error) {
	fields, err := unmarshalKeys(in.RawBody, `the request body must be an object such as {"quota": {"instances": 100}, "organizations_per_user": 3}`)
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetSettings(ctx, request(ctx), func(to *mariposa.SettingsSpec) error { return readSettings(fields, to) }))
}

// readSettings sets the given settings.
func readSettings(fields map[string]json.RawMessage, to *mariposa.SettingsSpec) (err error) {
	for name, raw := range fields {
		switch name {
		case "quota":
			var limits map[string]json.RawMessage
			if json.Unmarshal(raw, &limits) != nil {
				return invalid(`quota must be an object such as {"instances": 100, "memory": null}`)
			}
			err = readQuota(limits, &to.Quota)
			for name, set := range map[string]**int{"projects": &to.Quota.Projects, "instances": &to.Quota.Instances} {
				if _, given := limits[name]; given && *set == nil {
					*set = new(mariposa.Unlimited) // instead of the default
				}
			}
		case "organizations_per_user":
			if to.OrgsPerUser, err = limit[int](name, raw); to.OrgsPerUser == nil {
				to.OrgsPerUser = new(mariposa.Unlimited)
			}
		case "stored_per_project":
			to.StoredPerProject, err = storedLimit(name, raw)
		case "storm_breaker":
			if to.StormBreaker, err = limit[int](name, raw); err == nil && to.StormBreaker != nil && *to.StormBreaker > 100 {
				err = invalid("storm_breaker must be a percentage of nodes from 0 to 100")
			}
		default:
			err = invalid("unknown setting %s: use quota, organizations_per_user, stored_per_project or storm_breaker", shortenText(name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

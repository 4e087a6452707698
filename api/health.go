package api

import (
	"context"

	"mariposa"
	"mariposa/contract"
)

func (s *server) getHealthChecks(ctx context.Context, in *OfProject) (*document[contract.HealthChecks], error) {
	return s.healthChecks(ctx, *in, "")
}

func (s *server) getServiceHealthChecks(ctx context.Context, in *OfService) (*document[contract.HealthChecks], error) {
	return s.healthChecks(ctx, in.OfProject, in.Service)
}

// healthChecks shows the checks of all services of a project, or of one.
func (s *server) healthChecks(ctx context.Context, in OfProject, service string) (*document[contract.HealthChecks], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	st, _ := s.projectState(v, r.ID)
	if service != "" {
		all := st
		if st = narrowToService(st, service); len(st.Services) == 0 {
			return nil, unknownService(all, service)
		}
	}
	doc := contract.HealthChecks{Services: []contract.ServiceChecks{}}
	goals, at := v.goals(r), map[string]int{}
	for i, one := range st.Services {
		var def *mariposa.Service
		if ss := goals[one.Name]; ss != nil {
			def = v.definition(r.ID, ss.Number, one.Name)
		}
		at[one.Name] = i
		doc.Services = append(doc.Services, contract.ServiceChecks{
			Project: st.ID, ProjectName: st.Name, Service: one.ID, ServiceName: one.Name, Version: one.Version,
			Grace: graceOf(def), Ports: portsOf(def), HealthChecks: checksOf(def), Instances: []contract.InstanceHealth{},
		})
	}
	for _, i := range s.Picture.InstancesOf(r.ID) {
		n, listed := at[i.Spec().ServiceName]
		if listed && len(doc.Services[n].HealthChecks) > 0 && i.Spec().Managed {
			doc.Services[n].Instances = append(doc.Services[n].Instances, healthOf(v.instance(i), i.Status()))
		}
	}
	return answer(doc)
}

func healthOf(i contract.Instance, st *mariposa.InstanceStatus) contract.InstanceHealth {
	doc := contract.InstanceHealth{
		Instance: i.ID, InstanceName: i.Name, Slot: i.Slot, Node: i.Node, NodeName: i.NodeName, State: i.State, Health: i.Health,
		Addresses: i.Addresses, Checks: []contract.CheckResult{},
	}
	if st == nil {
		return doc
	}
	if st.Health == mariposa.HealthUnhealthy {
		doc.Reason = st.Reason
	}
	doc.Checks = append(doc.Checks, checkResults(st)...)
	return doc
}

func checkResults(st *mariposa.InstanceStatus) (all []contract.CheckResult) {
	for _, c := range st.Checks {
		all = append(all, contract.CheckResult{Name: c.Name, Health: c.Health, Reason: c.Reason, Since: c.Since})
	}
	return all
}

func graceOf(def *mariposa.Service) float64 {
	if def == nil {
		return 0
	}
	return def.Grace.Seconds()
}

func portsOf(def *mariposa.Service) []int {
	all := []int{}
	if def == nil {
		return all
	}
	for _, p := range def.Ports {
		all = append(all, p.Target)
	}
	return all
}

// checksOf returns the checks of a definition, which may be nil. Paths are shown as
// written, because each instance resolves them itself.
func checksOf(def *mariposa.Service) []contract.HealthCheck {
	all := []contract.HealthCheck{}
	if def == nil {
		return all
	}
	for _, h := range def.Checks() {
		doc := contract.HealthCheck{
			Type: h.Type, Name: h.Name(), Port: h.Port, Network: h.Network, Path: h.Path, Command: h.Command, User: h.User, Retries: h.Retries,
			Poll: h.Poll.Seconds(), UnhealthyPoll: h.UnhealthyPoll.Seconds(), Timeout: h.Timeout.Seconds(),
		}
		if h.Type == mariposa.CheckHTTPS {
			doc.Verify = new(!h.Insecure)
		}
		if h.IsHTTP() {
			doc.Expect = &contract.Expect{Body: h.ExpectBody}
			for _, r := range h.ExpectStatus {
				doc.Expect.Status = append(doc.Expect.Status, r.String())
			}
			for _, header := range h.ExpectHeaders {
				if doc.Expect.Headers == nil {
					doc.Expect.Headers = map[string]string{}
				}
				doc.Expect.Headers[header.Name] = header.Value
			}
		}
		all = append(all, doc)
	}
	return all
}

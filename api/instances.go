package api

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
	"mariposa/wire"
)

type listInstancesInput struct {
	InProject
	Service string         `query:"service" doc:"id or name of a service"`
	Node    string         `query:"node" doc:"id or name of a node"`
	State   mariposa.State `query:"state" enum:"pending,provisioning,running,draining,stopping,stopped,failed,unknown,destroyed"`
	Version string         `query:"version" doc:"hash of a version (or at least its first 7 characters); together with a project also a version number" maxLength:"40"`
	Usage   bool           `query:"usage" doc:"measure the usage of running instances; limits the page to 100 instances"`
	Limit   int            `query:"limit" minimum:"1" maximum:"10000" default:"1000"`
	Marker  string         `query:"marker" doc:"the marker of the previous page" maxLength:"255"`
}

func (s *server) listInstances(ctx context.Context, in *listInstancesInput) (*document[contract.Instances], error) {
	if err := s.checkMarker(mariposa.KindInstance, in.Marker); err != nil {
		return nil, err
	}
	records, err := s.candidates(ctx, in)
	if err != nil {
		return nil, err
	}
	if err := s.checkServiceFilter(ctx, in); err != nil {
		return nil, err
	}
	if in.Marker != "" {
		after, found := slices.BinarySearchFunc(records, in.Marker, func(r *store.Instance, id string) int {
			switch {
			case r.ID < id:
				return -1
			case r.ID > id:
				return 1
			}
			return 0
		})
		if found {
			after++
		}
		records = records[after:]
	}
	if in.Usage {
		in.Limit = min(in.Limit, maxMeasured)
	}
	v, page := s.viewer(ctx), contract.Instances{Instances: []contract.Instance{}}
	for _, r := range records {
		spec := r.Spec()
		if in.Service != "" && in.Service != spec.ServiceName && in.Service != spec.Service {
			continue
		}
		doc := v.instance(r)
		if (in.State != "" && doc.State != in.State) || (in.Version != "" && !v.isAt(in.Version, doc.Version, spec)) {
			continue
		}
		if len(page.Instances) == in.Limit {
			page.Marker = page.Instances[in.Limit-1].ID
			break
		}
		page.Instances = append(page.Instances, doc)
	}
	if in.Usage {
		s.measureAll(ctx, page.Instances)
	}
	return answer(page)
}

const (
	maxMeasured = 100 // instances that one request can measure
	measurers   = 16  // concurrent measurements of a request
)

// measureAll fills in the usage of running instances, if their nodes report it in time.
func (s *server) measureAll(ctx context.Context, all []contract.Instance) {
	ctx, cancel := context.WithTimeout(ctx, 2*measureTimeout)
	defer cancel()
	next := make(chan int)
	var work sync.WaitGroup
	for range min(measurers, len(all)) {
		work.Go(func() {
			for i := range next {
				all[i].Usage = s.measureUsage(ctx, all[i].Node, all[i].ID)
			}
		})
	}
	for i := range all {
		if all[i].State == mariposa.StateRunning {
			next <- i
		}
	}
	close(next)
	work.Wait()
}

// candidates uses the indexes to narrow down the records of a list.
func (s *server) candidates(ctx context.Context, in *listInstancesInput) ([]*store.Instance, error) {
	g := s.newVisibility(ctx, caller(ctx))
	node, err := s.resolveNodeFilter(g, in.Node)
	if err != nil {
		return nil, err
	}
	project, err := s.projectID(ctx, in.InProject)
	if err != nil {
		return nil, err
	}
	var found []*store.Instance
	switch {
	case project != "":
		found = s.Picture.InstancesOf(project)
	case !g.all || in.Organization != "":
		found, err = s.instancesFor(ctx, in.Organization)
	case node != "":
		return s.Picture.InstancesOn(node), nil
	default:
		found = s.Picture.Instances.All()
	}
	return slices.DeleteFunc(found, func(r *store.Instance) bool {
		return node != "" && r.Spec().Node != node
	}), err
}

// checkServiceFilter rejects a service that the project never had.
func (s *server) checkServiceFilter(ctx context.Context, in *listInstancesInput) error {
	project, err := s.projectID(ctx, in.InProject)
	if err == nil && project != "" {
		_, err = s.serviceNames(s.viewer(ctx), s.newVisibility(ctx, caller(ctx)), project, in.Service)
	}
	return err
}

// resolveNodeFilter resolves a filter by node. Callers other than installation admins know
// only the nodes of their own instances.
func (s *server) resolveNodeFilter(g *visibility, ref string) (string, error) {
	if ref == "" {
		return "", nil
	}
	r, err := s.findNode(ref)
	if err != nil {
		return "", err
	}
	mine := func(i *store.Instance) bool { return g.project(i.Spec().Project) }
	if !g.all && !slices.ContainsFunc(s.Picture.InstancesOn(r.ID), mine) {
		return "", notFound("there is no node %q", ref)
	}
	return r.ID, nil
}

// instancesFor lists the instances of the projects that the caller can see, by id.
func (s *server) instancesFor(ctx context.Context, organization string) ([]*store.Instance, error) {
	projects, err := s.projectsFor(ctx, organization)
	if err != nil {
		return nil, err
	}
	var all []*store.Instance
	for _, p := range projects {
		all = append(all, s.Picture.InstancesOf(p.ID)...)
	}
	slices.SortFunc(all, func(a, b *store.Instance) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// isAt reports whether an instance has the requested version, by the version that is shown
// for it. Numbers are per project.
func (v *viewer) isAt(ref, shown string, spec *mariposa.InstanceSpec) bool {
	if n, err := strconv.Atoi(ref); err == nil && len(ref) < 7 {
		return v.sha(spec.Project, n) == shown
	}
	return change.IsVersion(ref, shown, -1)
}

type ofInstance struct {
	Instance string `path:"instance" doc:"id of the instance, a prefix of the id, or its name" maxLength:"255"`
}

func (s *server) getInstance(ctx context.Context, in *ofInstance) (*document[contract.Instance], error) {
	r, err := s.findInstance(ctx, in.Instance)
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	doc := v.instance(r)
	if st := r.Status(); st != nil {
		doc.Details, doc.Checks = st.Details, checkResults(st)
	}
	spec := r.Spec()
	if doc.State == mariposa.StateRunning {
		doc.Usage = s.measureUsage(ctx, spec.Node, r.ID)
	}
	doc.Volumes, doc.Networks = spec.Mounts, spec.Networks
	if def := v.definitionOf(spec); def != nil {
		if w, err := manifest.Resolve(def, v.scope(r)); err == nil { // an instance that does not resolve does not run either
			doc.Command = append(slices.Clone(w.Entrypoint), w.Command...)
			for _, variable := range w.Environment {
				doc.Environment = append(doc.Environment, variable.Name+"="+variable.Value)
			}
		}
	}
	return answer(doc)
}

// measureTimeout limits how long a node can take to measure an instance.
const measureTimeout = time.Second

// measureUsage requests the usage of an instance from its node. The result is empty if the
// node does not respond in time.
func (s *server) measureUsage(ctx context.Context, node, id string) mariposa.Usage {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	u, err := s.Fleet.Usage(ctx, node, id)
	if err != nil {
		return mariposa.Usage{}
	}
	return u
}

// definitionOf returns the definition that an instance was created from; nil if it is lost.
func (v *viewer) definitionOf(spec *mariposa.InstanceSpec) *mariposa.Service {
	if spec.Managed {
		return v.definition(spec.Project, spec.Number, spec.ServiceName)
	}
	of := v.version(spec.Project, spec.Number)
	if of == nil {
		return nil
	}
	def, _ := manifest.ParseService(spec.Name, manifest.Modernize(spec.Definition), of.Manifest) // an unreadable definition does not run either
	return def
}

type actOnInstanceInput struct {
	Instance string `path:"instance" doc:"id of the instance, a prefix of the id, or its name" maxLength:"255"`
	Body     contract.InstanceAction
}

func (s *server) actOnInstance(ctx context.Context, in *actOnInstanceInput) (*document[contract.Changed], error) {
	r, err := s.findInstance(ctx, in.Instance)
	if err != nil {
		return nil, err
	}
	spec := r.Spec()
	switch in.Body.Action {
	case "crash", "sicken", "heal":
		if err := s.requireCapability(spec, func(c mariposa.Capabilities) bool { return c.Crash }, "crashing"); err != nil {
			return nil, err
		}
		crash := wire.Crash{Instance: r.ID, Health: map[string]mariposa.Health{"sicken": mariposa.HealthUnhealthy, "heal": mariposa.HealthHealthy}[in.Body.Action]}
		if err := s.Fleet.Crash(ctx, spec.Node, crash); err != nil {
			return nil, err
		}
		a, doc := s.auditOf(ctx, r), contract.Changed{ID: r.ID, Name: spec.Name}
		a.Reason = in.Body.Action
		s.recordAnswer(ctx, a, doc)
		return answer(doc)
	}
	return changed(s.change.ActOnInstance(ctx, request(ctx), r, in.Body.Action))
}

// requireCapability rejects an action that the compute type of an instance does not
// support, according to the driver of its node. If the driver has declared nothing, the
// node decides.
func (s *server) requireCapability(spec *mariposa.InstanceSpec, able func(mariposa.Capabilities) bool, action string) error {
	r := s.Picture.Nodes.Get(spec.Node)
	if r == nil {
		return nil
	}
	st := r.Status()
	if st == nil {
		return nil
	}
	if can, known := st.Capabilities[spec.Compute]; known && !able(can) {
		return conflict("instance %s has compute type %s, which does not support %s", spec.Name, spec.Compute, action)
	}
	return nil
}

type deleteInstanceInput struct {
	Instance string `path:"instance" doc:"id of the instance, a prefix of the id, or its name" maxLength:"255"`
	Force    bool   `query:"force" doc:"kill the instance instead of waiting for it to stop. With force, an instance that belongs to a service can be killed too if it is already stopping"`
}

func (s *server) deleteInstance(ctx context.Context, in *deleteInstanceInput) (*document[contract.Changed], error) {
	r, err := s.findInstance(ctx, in.Instance)
	if err != nil {
		return nil, err
	}
	return changed(s.change.RemoveInstance(ctx, request(ctx), r, in.Force))
}

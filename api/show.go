package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/reason"
	"mariposa/store"
)

// viewer converts records to documents. It is used for one request and caches lookups: a
// thousand instances of a project read its version once.
type viewer struct {
	s        *server
	ctx      context.Context //nolint:containedctx // a viewer lasts one request
	projects map[string]*store.Project
	gone     map[string]string // names of deleted projects
	nodes    map[string]*store.Node
	versions map[versionKey]*picture.Version
	mounted  map[string]map[string]*store.Instance   // by node and volume, its user
	joined   map[string]map[string][]*store.Instance // by project and network, its instances
	// at is the time of an event whose records are shown; zero: now. Documents of the past
	// contain no current data except names.
	at time.Time
	// live is set for events that are sent as they happen: a task that has not changed since
	// its event then shows what it is waiting for.
	live bool
	// operates says of which projects the caller is an operator, as far as it was asked.
	operates map[string]bool
}

// isPast reports whether records are shown as of an earlier time.
func (v *viewer) isPast() bool { return !v.at.IsZero() }

// now returns the time that documents refer to.
func (v *viewer) now() time.Time {
	if v.isPast() {
		return v.at
	}
	return v.s.Clock.Now()
}

type versionKey struct {
	project string
	number  int
}

func (s *server) viewer(ctx context.Context) *viewer {
	return &viewer{
		s: s, ctx: ctx, projects: map[string]*store.Project{}, gone: map[string]string{}, nodes: map[string]*store.Node{},
		versions: map[versionKey]*picture.Version{}, operates: map[string]bool{}, mounted: map[string]map[string]*store.Instance{}, joined: map[string]map[string][]*store.Instance{},
	}
}

func (v *viewer) projectRecord(id string) *store.Project {
	r, known := v.projects[id]
	if !known {
		r = v.s.Picture.Projects.Get(id)
		v.projects[id] = r
	}
	return r
}

// projectName returns the name of a project; for a deleted one, the name in its newest
// task.
func (v *viewer) projectName(id string) string {
	if r := v.projectRecord(id); r != nil {
		return r.Spec().Name
	}
	name, known := v.gone[id]
	if !known && id != "" {
		if tasks, err := v.s.Store.List(v.ctx, store.Query{Kind: mariposa.KindTask, Project: id, Limit: 1}); err == nil && len(tasks) > 0 { // do not fail for a missing name
			name = (*store.Task)(&tasks[0]).Spec().ProjectName
		}
		v.gone[id] = name
	}
	return name
}

// orgName returns the name of an organization.
func (v *viewer) orgName(id string) string {
	if r := v.s.Picture.Orgs.Get(id); r != nil {
		return r.Spec().Name
	}
	return ""
}

func (v *viewer) nodeRecord(id string) *store.Node {
	r, known := v.nodes[id]
	if !known {
		r = v.s.Picture.Nodes.Get(id)
		v.nodes[id] = r
	}
	return r
}

func (v *viewer) nodeName(id string) string {
	if r := v.nodeRecord(id); r != nil {
		return r.Spec().Name
	}
	return ""
}

// unreachable reports whether the state of a node's instances may be stale. For the
// past, this is not known.
func (v *viewer) unreachable(node string) bool {
	if node == "" || v.isPast() {
		return false
	}
	r := v.nodeRecord(node)
	if r == nil {
		return true
	}
	st := r.Status()
	return st == nil || st.State.IsAway()
}

// version returns a version; nil if it is lost, which is reported elsewhere.
func (v *viewer) version(project string, number int) *picture.Version {
	key := versionKey{project, number}
	found, known := v.versions[key]
	if !known && number > 0 {
		found, _ = v.s.Cache.Version(v.ctx, project, number)
		v.versions[key] = found
	}
	return found
}

func (v *viewer) sha(project string, number int) string {
	if found := v.version(project, number); found != nil {
		return found.Spec.Version
	}
	return ""
}

// definition returns a version's definition of a service; nil if it has none.
func (v *viewer) definition(project string, number int, service string) *mariposa.Service {
	if found := v.version(project, number); found != nil {
		return found.Services[service]
	}
	return nil
}

// services lists the services of a project's newest manifest.
func (v *viewer) services(r *store.Project) []string {
	spec := r.Spec()
	names := []string{}
	if st := r.Status(); st != nil && st.Number == spec.Number && st.Services != nil {
		for name, ss := range st.Services {
			if !ss.Removed {
				names = append(names, name)
			}
		}
	} else if found := v.version(r.ID, spec.Number); found != nil {
		names = slices.AppendSeq(names, maps.Keys(found.Manifest.ByName))
	}
	slices.Sort(names)
	return names
}

func (v *viewer) project(r *store.Project) contract.Project {
	spec := r.Spec()
	doc := contract.Project{
		ID: r.ID, Name: spec.Name, Organization: spec.Organization, OrganizationName: v.orgName(spec.Organization),
		Version: spec.Version, Number: spec.Number, Created: spec.Created, Author: spec.Author, Services: v.services(r),
	}
	goal, status, why := v.projectStatus(r)
	doc.Goal, doc.Status = goal, status
	doc.Reason, doc.ReasonCode = v.sentenceIn(r.ID, why)
	return doc
}

// projectStatus returns the status of a whole project; before the first plan, it is
// converging. If there is no other reason, the reason is that the newest version waits
// for an approval.
func (v *viewer) projectStatus(r *store.Project) (goal mariposa.ProjectGoal, status mariposa.Status, why *mariposa.Reason) {
	goal, status = mariposa.GoalStarted, mariposa.StatusConverging
	if st := r.Status(); st != nil {
		goal, status, why = cmp.Or(st.Goal, goal), cmp.Or(st.Status, status), st.Reason
	}
	if r.Spec().Deleting && goal != mariposa.GoalDeleted {
		goal, status = mariposa.GoalDeleted, mariposa.StatusConverging
	}
	why = v.awaitsThaw(r).addToProject(r, why)
	if st := r.Status(); why == nil && (st == nil || st.Number != r.Spec().Number) {
		why = v.awaitedApproval(r, r.Spec().Number)
	}
	return goal, status, why
}

// sentence returns the text and the code of a reason.
func (v *viewer) sentence(why *mariposa.Reason) (string, mariposa.ReasonCode) {
	return reason.At(why, v.now()), codeOf(why)
}

// sentenceIn is sentence for a reason about a project: it suggests only what the caller may
// do there.
func (v *viewer) sentenceIn(project string, why *mariposa.Reason) (string, mariposa.ReasonCode) {
	return v.wording(project)(why, v.now()), codeOf(why)
}

// wording returns how to put reasons about a project into words for the caller.
func (v *viewer) wording(project string) func(*mariposa.Reason, time.Time) string {
	if v.mayOperate(project) {
		return reason.At
	}
	return reason.ForMember
}

// mayOperate reports whether the caller is an operator of a project.
func (v *viewer) mayOperate(project string) bool {
	may, known := v.operates[project]
	if !known {
		p, asked := v.projectRecord(project), caller(v.ctx)
		may = p == nil || v.s.directory.May(asked, auth.Operate, p.Record()) == auth.Allowed
		v.operates[project] = may
	}
	return may
}

func codeOf(why *mariposa.Reason) mariposa.ReasonCode {
	if why == nil {
		return ""
	}
	return why.Code
}

// unreachableNode returns the reason for objects on a node that cannot be reached.
func (v *viewer) unreachableNode(id string) *mariposa.Reason {
	return &mariposa.Reason{Code: mariposa.ReasonUnreachable, Node: cmp.Or(v.nodeName(id), id)}
}

func (v *viewer) versionDoc(r *store.Version) contract.Version {
	spec, st := r.Spec(), r.Status()
	doc := contract.Version{
		Version: spec.Version, Number: spec.Number, Created: spec.Created, Author: spec.Author, Message: spec.Message,
		Tags: []string{}, ServicesChanged: neverNil(spec.Changed), Completed: st != nil && !st.Completed.IsZero(),
		Cause: cmp.Or(spec.Cause, mariposa.CauseManifest), MetadataChanged: neverNil(spec.Keys), Images: contract.ImagesOf(spec.Images),
	}
	if v.isPast() {
		return doc
	}
	if p := v.projectRecord(spec.Project); p != nil {
		for tag, number := range change.Tags(p) {
			if number == spec.Number {
				doc.Tags = append(doc.Tags, tag)
			}
		}
	}
	slices.Sort(doc.Tags)
	v.showApproval(&doc, spec)
	return doc
}

// showApproval adds the protected secrets that a version uses, and its approval. Most
// projects have no protected secrets; their versions are not read for this.
func (v *viewer) showApproval(doc *contract.Version, spec *mariposa.VersionSpec) {
	p := v.projectRecord(spec.Project)
	if p == nil || len(p.Spec().Protected) == 0 {
		return
	}
	found := v.version(spec.Project, spec.Number)
	if found == nil {
		return
	}
	uses, by := found.Approval(p.Spec())
	if by == nil {
		doc.NeedsApproval = uses
		return
	}
	doc.Approval = &contract.Approval{By: by.By, At: by.At, Number: by.Number}
}

// awaitedApproval returns the approval that a version waits for; nil: none.
func (v *viewer) awaitedApproval(p *store.Project, number int) *mariposa.Reason {
	if p == nil || len(p.Spec().Protected) == 0 || number == 0 {
		return nil
	}
	found := v.version(p.ID, number)
	if found == nil {
		return nil
	}
	if uses := found.NeedsApproval(p.Spec()); len(uses) > 0 {
		return mariposa.AwaitsApproval(number, uses)
	}
	return nil
}

func (v *viewer) node(r *store.Node) contract.Node {
	spec := r.Spec()
	doc := contract.Node{
		ID: r.ID, Name: spec.Name, Rack: spec.Rack, DC: spec.DC, Traits: spec.Traits, Status: mariposa.NodeUnknown,
		Instances: v.s.Picture.CountOn(r.ID), Reserved: v.s.Used(r.ID), Dummy: spec.Dummy,
		Drivers: []mariposa.ComputeType{}, Offers: map[mariposa.ComputeType]mariposa.Offer{}, Quarantined: []mariposa.Quarantined{},
		Fingerprint: mariposa.Fingerprint(spec.KeyHash), Tokenless: spec.Tokenless,
	}
	if !spec.RotateKey.IsZero() {
		doc.KeyRotation = new(spec.RotateKey)
	}
	if doc.Traits == nil {
		doc.Traits = map[string]string{}
	}
	if st := r.Status(); st != nil {
		doc.Status, doc.Capacity, doc.Replica, doc.LastHeartbeat = st.State, st.Capacity, st.Replica, &st.Since
		doc.Reason, doc.ReasonCode = v.sentence(cmp.Or(v.nameTaken(r), st.Reason))
		doc.Address = st.Address
		if st.Copy != nil && v.now().Sub(st.Copy.At) < mariposa.CopyLifetime {
			doc.CopyRefused = st.Copy
		}
		doc.Drivers, doc.Quarantined, doc.QuarantinedCount = neverNil(st.Drivers), withoutProofs(st.Quarantined), st.CountQuarantined()
		if st.Offers != nil {
			doc.Offers = st.Offers
		}
		if (st.State.IsAway() || spec.Tokenless) && !st.LastSeen.IsZero() { // the state was set later than the last heartbeat
			doc.LastHeartbeat = &st.LastSeen
		}
		if !v.isPast() { // the store only has the times of changes
			doc.LastHeartbeat = v.s.Fleet.LastHeartbeat(r, *doc.LastHeartbeat)
		}
	}
	v.showEligibility(r, &doc)
	return doc
}

// nameTaken returns that a pending node cannot be accepted, because another one has its name;
// nil: none has.
func (v *viewer) nameTaken(r *store.Node) *mariposa.Reason {
	if r.Spec().Approval != mariposa.ApprovalPending || v.isPast() {
		return nil
	}
	for _, o := range v.s.Picture.Nodes.All() {
		if o.ID != r.ID && o.Spec().Name == r.Spec().Name && o.Spec().OwnsName() {
			return &mariposa.Reason{Code: mariposa.ReasonNameTaken, Subject: r.Spec().Name, IDs: []string{o.ID, r.ID}}
		}
	}
	return nil
}

func (v *viewer) instance(r *store.Instance) contract.Instance {
	spec, st := r.Spec(), r.Status()
	doc := contract.Instance{
		ID: r.ID, Name: spec.Name, Slot: slotOf(spec),
		Project: spec.Project, ProjectName: v.projectName(spec.Project), Service: spec.Service, ServiceName: spec.ServiceName,
		ComputeType: spec.Compute, Node: spec.Node, NodeName: v.nodeName(spec.Node),
		State: mariposa.StateOf(spec, st), Health: mariposa.HealthUnknown, Goal: spec.Goal, Addresses: []string{},
		Created: spec.Created, Managed: spec.Managed,
	}
	doc.Version, doc.Number = v.instanceVersion(spec)
	why := spec.Reason
	if st != nil {
		doc.Health, doc.PhysicalID, doc.Addresses = cmp.Or(st.Health, mariposa.HealthUnknown), st.PhysicalID, neverNil(st.Addresses)
		doc.Started, doc.Finished, doc.ExitCode, doc.Restarts = optionalTime(st.Started), optionalTime(st.Finished), st.ExitCode, st.Restarts
		why = cmp.Or(mariposa.Reported(st.Reason), why)
	}
	if doc.State != mariposa.StateDestroyed && v.unreachable(spec.Node) {
		doc.State, doc.Health = mariposa.StateUnknown, mariposa.HealthUnknown
		why = v.unreachableNode(spec.Node)
	}
	doc.Reason, doc.ReasonCode = v.sentence(why)
	return doc
}

// slotOf returns the name of an instance's slot; empty if it is unmanaged.
func slotOf(spec *mariposa.InstanceSpec) string {
	if !spec.Managed {
		return ""
	}
	return fmt.Sprintf("%s.%d", spec.ServiceName, spec.Slot)
}

// instanceVersion returns the hash and number of the version in force if it defines this
// instance identically, or else of the version that the instance was created from. For the
// past, it is not known which version was in force.
func (v *viewer) instanceVersion(spec *mariposa.InstanceSpec) (hash string, number int) {
	if v.isPast() {
		return v.sha(spec.Project, spec.Number), spec.Number
	}
	if st := v.projectRecord(spec.Project).Status(); st != nil && st.Services[spec.ServiceName] != nil {
		number := st.Services[spec.ServiceName].Number
		if def := v.definition(spec.Project, number, spec.ServiceName); def != nil && def.Digest == spec.Digest {
			return v.sha(spec.Project, number), number
		}
	}
	return v.sha(spec.Project, spec.Number), spec.Number
}

// scope returns the values for the interpolations of an instance.
func (v *viewer) scope(r *store.Instance) manifest.Scope {
	var sc manifest.Scope
	spec := r.Spec()
	sha := v.sha(spec.Project, spec.Number)
	if of := v.version(spec.Project, spec.Number); of != nil {
		sc.Meta, sc.HasService = v.maskedValues(spec.Project, of), of.HasService
		if def := of.Services[spec.ServiceName]; def != nil {
			sc.Package = of.Spec.Packages[def.Package]
		}
	}
	if p := v.projectRecord(spec.Project); p != nil {
		sc.Organization = v.orgName(p.Spec().Organization)
	}
	sc.Domain = v.s.Domain
	sc.Project = manifest.Identity{Name: v.projectName(spec.Project), UUID: spec.Project, Version: sha}
	sc.Service = manifest.Identity{Name: spec.ServiceName, UUID: spec.Service, Version: sha}
	if st := v.projectRecord(spec.Project).Status(); st != nil && st.Services[spec.ServiceName] != nil {
		sc.Scale = st.Services[spec.ServiceName].Scale
	}
	sc.Instance = manifest.Instance{Name: spec.Name, UUID: r.ID}
	if st := r.Status(); st != nil && len(st.Addresses) > 0 {
		_, sc.Instance.Port = mariposa.SplitAddress(st.Addresses[0])
	}
	sc.Placement.CN = spec.Node
	if n := v.nodeRecord(spec.Node); n != nil {
		sc.Placement.Rack, sc.Placement.DC = n.Spec().Rack, n.Spec().DC
	}
	sc.Other = manifest.Others(spec.Bindings, func(service string, to mariposa.Binding, name string) (string, bool) {
		return v.variable(spec.Project, service, to, name)
	})
	return sc
}

// variable returns an environment variable of an instance that other instances refer
// to, even if that instance no longer exists.
func (v *viewer) variable(project, service string, to mariposa.Binding, name string) (string, bool) {
	def := v.definition(project, to.Number, service)
	if def == nil {
		return "", false
	}
	sc := v.scope(&store.Instance{ID: to.Instance, Halves: store.Halves{Spec: &mariposa.InstanceSpec{
		Name: to.Name, Project: project, ServiceName: service, Service: v.serviceID(project, service), Number: to.Number, Node: to.Node, Managed: true, Bindings: to.Of,
	}}})
	sc.Instance.Port = to.Values["port"]
	return manifest.ResolveVariable(def, name, sc)
}

func (v *viewer) serviceID(project, service string) string {
	if r := v.projectRecord(project); r != nil {
		return r.Spec().Services[service]
	}
	return ""
}

// maskedValues returns the values of a version with every secret masked.
func (v *viewer) maskedValues(project string, of *picture.Version) func(string) (string, bool) {
	values := v.maskLaterSecrets(project, of.Values.WithSecretsMarked(of.Manifest))
	return func(key string) (string, bool) {
		if value, set := values.Get(key); set && value.Secret {
			return manifest.Mask, true
		}
		return of.Manifest.Value(values, key)
	}
}

// maskLaterSecrets marks older values as secret if their keys are secret now: the value
// may be unchanged. If the newest values cannot be read, it marks all values.
func (v *viewer) maskLaterSecrets(project string, values *manifest.Values) *manifest.Values {
	if values == nil {
		return nil
	}
	secret := func(string) bool { return true }
	if p := v.projectRecord(project); p != nil {
		if now, declared, err := v.s.Cache.NewestValues(v.ctx, p.ID, p.Spec()); err == nil {
			secret = func(key string) bool {
				value, _ := now.Get(key)
				return value.Secret || declared.IsSecret(key)
			}
		}
	}
	hushed := *values
	hushed.ByKey = maps.Clone(values.ByKey)
	for key, value := range hushed.ByKey {
		value.Secret = value.Secret || secret(key)
		hushed.ByKey[key] = value
	}
	return &hushed
}

// optionalTime returns nil for a zero time.
func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// neverNil returns an empty slice for nil, which would be null in JSON.
func neverNil[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

package change

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/store"
)

// ComputeTypes are the compute types that a policy can name.
var ComputeTypes = []mariposa.ComputeType{
	mariposa.ComputeDocker, mariposa.ComputeInfrastructure, mariposa.ComputeKVM, mariposa.ComputeProcess, mariposa.ComputeBalancer, mariposa.ComputeDummy,
}

// newPolicy returns the policy of a new organization. Host ports are shared with
// everything else on a node, so they must be allowed explicitly.
func newPolicy() *mariposa.Policy { return &mariposa.Policy{} }

// SetPolicy changes what the manifests of an organization may use. Running instances are
// not affected.
func (c *Changer) SetPolicy(ctx context.Context, req *Request, org string, to contract.PolicyChange) (*contract.Policy, error) {
	return commit(ctx, c, req, org, func() (*store.Unit, contract.Policy, error) {
		unit, spec, err := c.editOrganization(req, org)
		if err != nil {
			return nil, contract.Policy{}, err
		}
		next := mariposa.Policy{HostPorts: true, LowPorts: true}
		if spec.Policy != nil {
			next = *spec.Policy
		}
		if to.ComputeTypes != nil {
			if next.ComputeTypes, err = readComputeTypes(*to.ComputeTypes); err != nil {
				return nil, contract.Policy{}, err
			}
		}
		if err := setPorts(&next, to); err != nil {
			return nil, contract.Policy{}, err
		}
		setIfGiven(&next.DefaultPackage, to.DefaultPackage)
		if name := next.DefaultPackage; name != "" {
			r := c.Picture.Packages.Get(name)
			if r == nil {
				return nil, contract.Policy{}, invalid("default_package: no package named %s%s", shorten(name), c.packageNames())
			}
			unit.Exists(mariposa.KindPackage, name)
		}
		spec.Policy = &next
		unit.Put(orgWrite(req, org, spec))
		unit.Audit[0].Object, unit.Audit[0].ObjectName, unit.Audit[0].Reason = org, spec.Name, describePolicy(&next)
		return unit, PolicyOf(org, spec), nil
	})
}

// setPorts changes which host ports are allowed. Ports below 1024 are only allowed
// together with the others.
func setPorts(p *mariposa.Policy, to contract.PolicyChange) error {
	low := to.LowPorts != nil && *to.LowPorts
	switch {
	case to.HostPorts != nil && !*to.HostPorts && low:
		return invalid("low_ports: true requires host_ports: true; allow both or neither")
	case to.HostPorts != nil && !*to.HostPorts:
		p.HostPorts, p.LowPorts = false, false
	case to.HostPorts != nil || low:
		p.HostPorts = true
	}
	setIfGiven(&p.LowPorts, to.LowPorts)
	return nil
}

func readComputeTypes(names []string) ([]mariposa.ComputeType, error) {
	var all []mariposa.ComputeType
	for _, name := range names {
		t := mariposa.ComputeType(name)
		if !slices.Contains(ComputeTypes, t) {
			return nil, invalid("compute_types: unknown compute type %q; use %s", shorten(name), join(ComputeTypes))
		}
		all = append(all, t)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func join[T ~string](all []T) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = string(one)
	}
	return strings.Join(texts, ", ")
}

// PolicyOf returns the policy of an organization for the API.
func PolicyOf(id string, spec *mariposa.OrganizationSpec) contract.Policy {
	doc := contract.Policy{Organization: id, OrganizationName: spec.Name, ComputeTypes: ComputeTypes, HostPorts: true, LowPorts: true}
	if p := spec.Policy; p != nil {
		doc.HostPorts, doc.LowPorts, doc.DefaultPackage = p.HostPorts, p.HostPorts && p.LowPorts, p.DefaultPackage
		if len(p.ComputeTypes) > 0 {
			doc.ComputeTypes = p.ComputeTypes
		}
	}
	return doc
}

// describePolicy describes a policy in words.
func describePolicy(p *mariposa.Policy) string {
	text := "all compute types"
	if len(p.ComputeTypes) > 0 {
		text = "compute types " + join(p.ComputeTypes)
	}
	switch {
	case !p.HostPorts:
		text += ", no host ports"
	case !p.LowPorts:
		text += fmt.Sprintf(", host ports from %d", mariposa.FirstHighPort)
	default:
		text += ", all host ports"
	}
	if p.DefaultPackage != "" {
		text += ", default package " + p.DefaultPackage
	}
	return text
}

// requireAllowed refuses a manifest that uses something its organization does not allow,
// or that omits a size that a quota needs. A change of values alone is not checked
// again. If the policy or the quota changes concurrently, the check is repeated.
func (e *edit) requireAllowed(doc []byte, services converge.Definitions) error {
	org := e.c.Picture.Orgs.Get(e.spec.Organization)
	if org == nil {
		return nil
	}
	e.unit.Unchanged(org)
	return refuseFaults(policyFaults(org.Spec(), doc, services))
}

func refuseFaults(faults []mariposa.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	return &mariposa.Error{Code: mariposa.InvalidArgument, Message: faults[0].String(), Faults: faults}
}

// policyFaults lists everything that a manifest uses and its organization does not
// allow.
func policyFaults(org *mariposa.OrganizationSpec, doc []byte, services converge.Definitions) []mariposa.Fault {
	var all []mariposa.Fault
	for _, name := range slices.Sorted(maps.Keys(services)) {
		for _, f := range serviceFaults(org, services[name]) {
			f.fault.Line = manifest.LineOf(doc, name, f.key, f.item)
			section := "services."
			if services[name].Balancer != nil {
				section = "load_balancers."
			}
			f.fault.Field = section + name + "." + f.fault.Field
			all = append(all, f.fault)
		}
	}
	return all
}

// singleFaults does the same for the definition of a single instance.
func singleFaults(org *mariposa.OrganizationSpec, doc []byte, def *mariposa.Service) []mariposa.Fault {
	var all []mariposa.Fault
	for _, f := range serviceFaults(org, def) {
		f.fault.Line = manifest.LineOf(doc, "", f.key, f.item)
		all = append(all, f.fault)
	}
	return all
}

// keyFault is a fault of a key of a service, or of an entry of its list.
type keyFault struct {
	key   string
	item  int // -1: the whole
	fault mariposa.Fault
}

func serviceFaults(org *mariposa.OrganizationSpec, def *mariposa.Service) []keyFault {
	var all []keyFault
	add := func(key string, item int, code mariposa.FaultCode, format string, args ...any) {
		field := key
		if item >= 0 {
			field = fmt.Sprintf("%s[%d]", key, item)
		}
		all = append(all, keyFault{key, item, mariposa.Fault{Field: field, Code: code, Message: fmt.Sprintf(format, args...)}})
	}
	p := org.Policy
	if !p.Allows(def.Compute) {
		add("compute_type", -1, mariposa.FaultNotAllowed, "%s is not allowed by the policy of organization %s: use one of %s, or ask an installation admin to allow it",
			def.Compute, org.Name, join(p.ComputeTypes))
	}
	for i, port := range def.Ports {
		switch {
		case port.Host == 0 || p.AllowsPort(port.Host):
		case def.Balancer != nil:
			add("listen", -1, mariposa.FaultNotAllowed, "uses port %d of its node, and the policy of organization %s does not allow that: ask an installation admin to allow host ports%s", port.Host, org.Name, lowPortHint(p, port.Host))
		case !p.HostPorts:
			add("ports", i, mariposa.FaultNotAllowed, "uses host port %d, and the policy of organization %s allows no host ports: write %d alone to get any free port, or ask an installation admin to allow it",
				port.Host, org.Name, port.Target)
		default:
			add("ports", i, mariposa.FaultNotAllowed, "uses host port %d, and the policy of organization %s allows only host ports from %d: use one of these, or ask an installation admin to allow it",
				port.Host, org.Name, mariposa.FirstHighPort)
		}
	}
	if b := def.Balancer; b != nil && b.Address != "" && p != nil && !p.HostPorts {
		add("address", -1, mariposa.FaultNotAllowed, "uses an external balancer, and the policy of organization %s does not allow that: ask an installation admin to allow host ports", org.Name)
	}
	for _, missing := range missingSizes(org.Quota, def) {
		add(missing, -1, mariposa.FaultMissing, "service %s sets no %s, and organization %s has a %s quota: add %s: %s or a package, or ask an installation admin to set a default package",
			def.Name, missing, org.Name, missing, missing, exampleSize(missing))
	}
	return all
}

// lowPortHint says how a port becomes one that a policy allows.
func lowPortHint(p *mariposa.Policy, port int) string {
	if p.HostPorts && port < mariposa.FirstHighPort {
		return fmt.Sprintf(", or use one from %d", mariposa.FirstHighPort)
	}
	return ""
}

// missingSizes lists the sizes that a quota requires and a service does not set.
func missingSizes(q mariposa.Quota, def *mariposa.Service) []string {
	var missing []string
	if q.Memory != nil && def.Memory == 0 {
		missing = append(missing, "memory")
	}
	if q.MilliCPU != nil && def.MilliCPU == 0 {
		missing = append(missing, "cpu")
	}
	return missing
}

func exampleSize(of string) string {
	if of == "memory" {
		return "256m"
	}
	return "0.5"
}

// refuseGrowth refuses more instances of a service whose version the organization no
// longer allows: existing instances keep running, but additional or restarted ones would
// escape the policy or the quota.
func (e *edit) refuseGrowth(after *mariposa.ProjectStatus) error {
	org := e.c.Picture.Orgs.Get(e.spec.Organization)
	if org == nil || after == nil {
		return nil
	}
	var before *mariposa.ProjectStatus
	for _, name := range slices.Sorted(maps.Keys(after.Services)) {
		ss := after.Services[name]
		if after.RunningScale(name) == 0 {
			continue
		}
		defs, err := e.definitions(ss.Number)
		if err != nil {
			return err
		}
		if defs[name] == nil {
			continue
		}
		faults := serviceFaults(org.Spec(), defs[name])
		if len(faults) == 0 {
			continue
		}
		if before == nil {
			if before, err = e.goalWithout(nil, nil); err != nil {
				return err
			}
		}
		if was := before.RunningScale(name); after.RunningScale(name) > was {
			return e.errGrowth(org.Spec(), defs[name], was, faults[0].fault)
		}
	}
	return nil
}

// errGrowth returns the error for a service that cannot be scaled up.
func (e *edit) errGrowth(org *mariposa.OrganizationSpec, def *mariposa.Service, was int, first mariposa.Fault) error {
	if missing := missingSizes(org.Quota, def); len(missing) > 0 && first.Code == mariposa.FaultMissing {
		return mariposa.Errorf(mariposa.QuotaExceeded, "service %s sets no %s, and organization %s has a %s quota: it keeps its %d instances; to scale up, add %s: or a package to its manifest",
			def.Name, missing[0], org.Name, missing[0], was, missing[0])
	}
	return conflict("service %s keeps its %d instances and cannot be scaled up: %s", def.Name, was, first)
}

// requireWaitingAllowed refuses versions that have been waiting since before a change of
// the policy or the quota and are no longer allowed.
func (e *edit) requireWaitingAllowed() error {
	for _, t := range e.tasks {
		if t.State() != mariposa.TaskQueued || t.Spec.Patch.Number == 0 || e.ended[t.ID] {
			continue
		}
		v, err := e.readVersion(t.Spec.Patch.Number)
		if err != nil {
			return err
		}
		if v == nil {
			continue
		}
		if err := e.requireAdmissible(v, "terminate its task first (`mariposa queue terminate "+t.ID+"`)"); err != nil {
			return err
		}
	}
	return nil
}

// requireAdmissible refuses a version that the organization no longer allows.
func (e *edit) requireAdmissible(v *picture.Version, remedy string) error {
	org := e.c.Picture.Orgs.Get(e.spec.Organization)
	if org == nil {
		return nil
	}
	e.unit.Unchanged(org)
	faults := policyFaults(org.Spec(), v.Spec.Manifest, v.Services)
	if len(faults) == 0 {
		return nil
	}
	return &mariposa.Error{Code: mariposa.Conflict, Faults: faults, Message: fmt.Sprintf(
		"organization %s no longer allows version %d of %s: %s; %s", org.Spec().Name, v.Spec.Number, e.spec.Name, faults[0], remedy)}
}

// fitsPolicy refuses to move a project to an organization that does not allow what it
// runs or is about to run: the newest version, those in force or waiting, and its single
// instances.
func (e *edit) fitsPolicy(org *store.Organization) error {
	e.unit.Unchanged(org)
	numbers := map[int]bool{e.spec.Number: true}
	for _, t := range e.tasks {
		numbers[t.Spec.Patch.Number] = true
	}
	if st := e.record.Status(); st != nil {
		for _, ss := range st.Services {
			numbers[ss.Number] = true
		}
	}
	e.c.Picture.EachInstanceOf(e.record.ID, func(r *store.Instance) bool {
		if spec := r.Spec(); spec.Managed && spec.Goal != mariposa.GoalGone {
			numbers[spec.Number] = true
		}
		return true
	})
	delete(numbers, 0)
	for _, n := range slices.Sorted(maps.Keys(numbers)) {
		v, err := e.readVersion(n)
		if err != nil {
			return err
		}
		if v == nil {
			continue
		}
		if err := errNotAdmitted(org, fmt.Sprintf("version %d of %s", n, e.spec.Name), policyFaults(org.Spec(), v.Spec.Manifest, v.Services)); err != nil {
			return err
		}
	}
	return e.singlesFitPolicy(org)
}

func (e *edit) singlesFitPolicy(org *store.Organization) (err error) {
	e.c.Picture.EachInstanceOf(e.record.ID, func(r *store.Instance) bool {
		spec := r.Spec()
		if spec.Managed || spec.Goal == mariposa.GoalGone {
			return true
		}
		err = errNotAdmitted(org, "the single instance "+spec.Name, faultsOfSingle(org.Spec(), spec))
		return err == nil
	})
	return err
}

// faultsOfSingle lists what a single instance uses and its organization does not allow.
func faultsOfSingle(org *mariposa.OrganizationSpec, spec *mariposa.InstanceSpec) []mariposa.Fault {
	def := &mariposa.Service{Name: spec.Name, Compute: spec.Compute, Memory: spec.Memory, MilliCPU: spec.MilliCPU}
	for _, port := range spec.Ports {
		def.Ports = append(def.Ports, mariposa.Port{Host: port, Target: port})
	}
	return singleFaults(org, spec.Definition, def)
}

func errNotAdmitted(org *store.Organization, what string, faults []mariposa.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	return &mariposa.Error{Code: mariposa.Conflict, Faults: faults, Message: fmt.Sprintf("organization %s does not allow %s: %s", org.Spec().Name, what, faults[0])}
}

// defaultPackage returns the size of services that set none; nil if there is no default.
// A change of values keeps the size of the previous version.
func (e *edit) defaultPackage(d draft, was map[string]mariposa.PackageSpec) *mariposa.PackageSpec {
	if d.cause == mariposa.CauseMetadata {
		if p, had := was[""]; had {
			return &p
		}
		return nil
	}
	return e.c.defaultPackageOf(e.spec.Organization)
}

func (c *Changer) defaultPackageOf(org string) *mariposa.PackageSpec {
	r := c.Picture.Orgs.Get(org)
	if r == nil || r.Spec().Policy == nil || r.Spec().Policy.DefaultPackage == "" {
		return nil
	}
	p := c.Picture.Packages.Get(r.Spec().Policy.DefaultPackage)
	if p == nil {
		return nil
	}
	spec := *p.Spec()
	spec.Disk, spec.Family = 0, "" // a service gets these by naming the package
	return &spec
}

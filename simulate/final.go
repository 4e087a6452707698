package simulate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"mariposa"
)

// atRest returns what is not yet in its desired state; empty: everything is.
func (c *checker) atRest() string {
	want := 0
	for id, r := range c.projects {
		st, spec := r.Status(), r.Spec()
		if spec.Deleting {
			return spec.Name + " is being deleted"
		}
		if st == nil || st.Number != spec.Number || st.Status != mariposa.StatusConverged {
			b, _ := json.Marshal(st)
			return fmt.Sprintf("%s is not converged: %s", spec.Name, b)
		}
		for name, ss := range st.Services {
			if n := c.countRunning(id, name); n != ss.Scale {
				return fmt.Sprintf("%s/%s has %d running of %d", spec.Name, name, n, ss.Scale)
			}
			want += ss.Scale
		}
	}
	if n := len(c.instances) - c.kept(); want != n {
		return fmt.Sprintf("%d instances are in the store, want %d", n, want)
	}
	for id, r := range c.tasks {
		if st := r.Status(); !mariposa.StateOfTask(st).Ended() {
			return "task " + id + " is open"
		}
	}
	if why := cmp.Or(c.unhealthyAtRest(), c.unbalanced(), c.networks.leftover(c), c.leftToGo(), c.unpurged()); why != "" {
		return why
	}
	return c.unquarantined() // it needs that all nodes are known
}

// kept counts the ended instances that are kept.
func (c *checker) kept() int {
	n := 0
	for _, r := range c.instances {
		if r.Spec().Kept {
			n++
		}
	}
	return n
}

func (c *checker) countRunning(project, service string) int {
	n := 0
	for _, r := range c.instances {
		spec, status := r.Spec(), r.Status()
		if spec.Project == project && spec.ServiceName == service && spec.Goal == mariposa.GoalRunning && mariposa.StateOf(spec, status) == mariposa.StateRunning {
			n++
		}
	}
	return n
}

// final compares the machines with the store at rest: they run exactly the desired
// instances, at the current version, one per slot, and the ledger agrees.
func (c *checker) final() {
	c.checkLedger()
	for _, id := range c.sorted() {
		if spec := c.instances[id].Spec(); !spec.Kept {
			c.upToDate(id, spec)
			if why := c.networks.lacks(spec); why != "" {
				c.w.fail("%s runs, but %s", spec.Name, why)
			}
		}
	}
}

// checkLedger compares the store and the ledger with what really runs.
func (c *checker) checkLedger() {
	running := map[string]bool{}
	for _, n := range c.w.nodes {
		for _, id := range n.ids() {
			running[id] = true
		}
	}
	for id := range running {
		if _, ok := c.instances[id]; !ok && !c.lost.known[id] {
			c.w.fail("%s runs but is not in the store", id)
		}
	}
	for _, n := range c.w.nodes {
		c.w.seen["quarantined at rest"] += len(c.strays(n))
	}
	slots := map[string]string{}
	used := map[string]int{}
	for _, id := range c.sorted() {
		r := c.instances[id]
		spec := r.Spec()
		if spec.Kept { // an instance that could not be created has only a record
			c.w.seen["kept at rest"]++
			continue
		}
		if !running[id] {
			c.w.fail("%s is running in the store but does not run", spec.Name)
		}
		key := fmt.Sprintf("%s/%s.%d", spec.Project, spec.ServiceName, spec.Slot)
		if other := slots[key]; other != "" {
			c.w.fail("%s and %s are in the same slot", other, spec.Name)
		}
		slots[key] = spec.Name
		used[spec.Node]++
	}
	ledger, err := c.w.store.Ledger(c.w.ctx)
	if err != nil {
		c.w.fail("read the ledger: %v", err)
	}
	for _, n := range c.w.nodes {
		if ledger[n.name].Instances != used[n.name] {
			c.w.fail("the ledger counts %d instances on %s, but there are %d", ledger[n.name].Instances, n.name, used[n.name])
		}
	}
	c.checkQuota(ledger)
}

// checkQuota checks that the organization's account matches the reservations of its
// projects.
func (c *checker) checkQuota(ledger map[string]mariposa.Resources) {
	var sum mariposa.Resources
	for _, r := range c.projects {
		sum = sum.Plus(r.Spec().Demand)
	}
	account, projects := mariposa.LedgerOf(organization)
	if ledger[account] != sum || ledger[projects].Instances != len(c.projects) {
		c.w.fail("the organization's account is %+v for %d projects, but %d projects have reserved %+v", ledger[account], ledger[projects].Instances, len(c.projects), sum)
	}
}

func (c *checker) sorted() []string {
	ids := make([]string, 0, len(c.instances))
	for id := range c.instances {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (c *checker) upToDate(id string, spec *mariposa.InstanceSpec) {
	st := c.projects[spec.Project].Status()
	def, err := c.w.definition(spec.Project, st.Services[spec.ServiceName].Number, spec.ServiceName)
	if err != nil || def == nil {
		c.w.fail("%s has no definition: %v", spec.Name, err)
	}
	if mariposa.FormOf(def.Digest) != mariposa.FormOf(spec.Digest) || def.Live != spec.Live {
		c.w.fail("%s is outdated at rest", spec.Name)
	}
	for _, n := range c.w.nodes {
		for _, o := range n.list() {
			if prop := o.Details["update_in_place_prop"]; o.ID == id && def.Dummy != nil && prop != def.Dummy.UpdateInPlaceProp {
				c.w.fail("%s runs with %q instead of %q", spec.Name, prop, def.Dummy.UpdateInPlaceProp)
			}
		}
	}
	for _, ref := range def.Refs {
		c.checkReferenceRuns(spec, ref)
	}
}

// checkReferenceRuns checks that an instance at rest is bound to a running instance.
func (c *checker) checkReferenceRuns(spec *mariposa.InstanceSpec, ref mariposa.Ref) {
	to, ok := spec.Bindings.Get(ref.Service)
	if !ok {
		c.w.fail("%s is not bound to an instance of %s", spec.Name, ref.Service)
		return
	}
	running := map[string]bool{}
	for _, r := range c.instances {
		other := r.Spec()
		status := r.Status()
		if other.Project == spec.Project && other.ServiceName == ref.Service && other.Goal == mariposa.GoalRunning && status != nil && status.State == mariposa.StateRunning {
			running[status.PhysicalID] = true
			running[status.Addresses[0]] = true
		}
	}
	for _, value := range strings.Split(to.Values[ref.Field], ",") {
		if !running[value] {
			c.w.fail("%s refers to %s of %s as %q, which is not running", spec.Name, ref.Field, ref.Service, value)
		}
	}
	c.w.seen["referred at rest"]++
}

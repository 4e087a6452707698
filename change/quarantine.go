package change

import (
	"context"
	"fmt"
	"slices"

	"mariposa"
	"mariposa/reason"
	"mariposa/store"
)

// allQuarantined returns the quarantined instances of a node. The status of a node has only
// some of many: the others are asked for.
func (c *Changer) allQuarantined(ctx context.Context, r *store.Node) ([]mariposa.Quarantined, error) {
	st := r.Status()
	if st == nil {
		return nil, nil
	}
	if c.Quarantine == nil || st.CountQuarantined() == len(st.Quarantined) {
		return st.Quarantined, nil
	}
	all, err := c.Quarantine(ctx, r.ID)
	if err == nil && len(all) == 0 {
		err = mariposa.Errorf(mariposa.Unavailable, "node %s has just connected and has not reported its quarantine yet: try again", r.Spec().Name)
	}
	return all, err
}

// findQuarantined returns the quarantined instances of a node that a request names, by id, by
// name or by slot; all of them if it names none.
func (c *Changer) findQuarantined(ctx context.Context, r *store.Node, named []string) ([]mariposa.Quarantined, error) {
	all, err := c.allQuarantined(ctx, r)
	if err != nil || named == nil {
		return all, err
	}
	var some []mariposa.Quarantined
	for _, name := range named {
		i := slices.IndexFunc(all, func(q mariposa.Quarantined) bool { return q.ID == name || q.Name == name })
		if i < 0 {
			i = slices.IndexFunc(all, func(q mariposa.Quarantined) bool { return q.Origin != nil && slotName(q.Origin) == name })
		}
		if i < 0 {
			return nil, notFound("node %s has no instance %q in quarantine", r.Spec().Name, name)
		}
		some = append(some, all[i])
	}
	return some, nil
}

func slotName(o *mariposa.Provenance) string { return fmt.Sprintf("%s.%d", o.ServiceName, o.Slot) }

// purge marks quarantined instances for removal, and says what becomes of them. It drops
// earlier marks of instances that the node no longer reports.
func (c *Changer) purge(ctx context.Context, r *store.Node, spec *mariposa.NodeSpec, only []string) (says string, err error) {
	all, err := c.allQuarantined(ctx, r)
	if err != nil {
		return "", err
	}
	there, ids := map[string]bool{}, make([]string, 0, len(all))
	for _, q := range all {
		there[q.ID] = true
		ids = append(ids, q.ID)
	}
	marked := slices.DeleteFunc(slices.Clone(spec.Purge), func(id string) bool { return !there[id] })
	if only == nil {
		only = ids
	}
	for _, id := range only {
		if !there[id] {
			return "", notFound("node %s has no instance %q in quarantine", spec.Name, id)
		}
		marked = append(marked, id)
	}
	slices.Sort(marked)
	spec.Purge = slices.Compact(marked)
	if len(spec.Purge) == 0 {
		return "the node has no quarantined instances", nil
	}
	says = reason.Many(len(spec.Purge), "quarantined instance") + " will be removed"
	if st := r.Status(); len(only) == len(ids) && st.CountQuarantined() > len(ids) {
		says += fmt.Sprintf("; the node has %d more: purge it again after that", st.CountQuarantined()-len(ids))
	}
	return says, nil
}

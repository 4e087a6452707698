package converge

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/manifest"
)

// resolve returns the binding to an instance, with the requested fields.
func (v *View) resolve(d *facts, i *Instance, fields []string) mariposa.Binding {
	b := mariposa.Binding{Instance: i.ID, Name: i.Spec.Name, Node: i.Spec.Node, Number: i.Spec.Number, Values: map[string]string{}}
	def := v.Definition(i.Spec.Number, d.name)
	for _, f := range fields {
		value, ok := "", true
		switch f {
		case "id":
			value = physicalID(i)
		case "address":
			value, _ = addressOf(i, def)
			ok = value != ""
		case "port":
			_, value = addressOf(i, def)
			ok = value != ""
		case "ids":
			value = joinValues(d, func(i *Instance) []string { return []string{physicalID(i)} })
		case "addresses":
			value = joinValues(d, func(i *Instance) []string { return i.Status.Addresses[:min(1, len(i.Status.Addresses))] })
		default:
			var m variableMark
			if m, ok = markVariable(i, def, f); m.hasReferences {
				b.Of = i.Spec.Bindings
			}
			if m.port != "" {
				b.Values["port"] = m.port
			}
			value = m.value
		}
		if ok {
			b.Values[f] = value
		}
	}
	return b
}

func physicalID(i *Instance) string {
	if i.Status == nil {
		return i.ID
	}
	return cmp.Or(i.Status.PhysicalID, i.ID)
}

// addressOf returns the first address of an instance, and its port.
func addressOf(i *Instance, def *mariposa.Service) (host, port string) {
	if def != nil && len(def.Ports) > 0 {
		port = strconv.Itoa(cmp.Or(def.Ports[0].Host, def.Ports[0].Target))
	}
	if i.Status == nil || len(i.Status.Addresses) == 0 {
		return "", port
	}
	host, at := mariposa.SplitAddress(i.Status.Addresses[0])
	return host, cmp.Or(at, port)
}

// joinValues joins the values of all serving instances, in the order of slots. During a
// rollout only the new instances count; before there is one, those that do not yield.
func joinValues(d *facts, of func(*Instance) []string) string {
	var all []*Instance
	for _, c := range upClasses {
		if c == outdatedRunning && d.isRolling && d.current > 0 {
			continue
		}
		d.each(c, func(i *Instance) bool {
			if c != outdatedRunning || !d.isRolling || !d.isYielding(i.ID) {
				all = append(all, i)
			}
			return true
		})
	}
	slices.SortFunc(all, func(a, b *Instance) int {
		return cmp.Or(cmp.Compare(a.Spec.Slot, b.Spec.Slot), cmp.Compare(a.ID, b.ID))
	})
	var out []string
	for _, i := range all {
		out = append(out, of(i)...)
	}
	return strings.Join(out, ",")
}

// variableMark represents a variable of an instance's environment.
type variableMark struct {
	value         string // changes whenever the value of the variable changes
	hasReferences bool   // to other services
	port          string // the instance's port, if the variable contains it
}

// markVariable returns the mark of a variable. It returns false if the variable does not
// exist or its value is not known yet.
func markVariable(i *Instance, def *mariposa.Service, field string) (m variableMark, ok bool) {
	if def == nil {
		return m, false
	}
	text, ok := manifest.Variable(def, strings.TrimPrefix(field, "environment."))
	if !ok {
		return m, false
	}
	parts := []string{text}
	for _, scope := range manifest.Sources(text) {
		switch scope {
		case "meta", "package":
			parts = append(parts, i.Spec.Digest)
		case "instance", "placement":
			parts = append(parts, i.ID)
		case "services":
			m.hasReferences = true
			parts = append(parts, i.Spec.Bound)
		}
	}
	if manifest.HoldsPort(text) {
		if i.Status == nil || len(i.Status.Addresses) == 0 {
			return variableMark{}, false
		}
		_, m.port = addressOf(i, def)
		parts = append(parts, m.port)
	}
	m.value = digestOf(parts)
	return m, true
}

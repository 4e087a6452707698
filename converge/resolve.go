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
			var of bool
			if value, of, ok = variableMark(i, def, f); of {
				b.Of = i.Spec.Bindings
			}
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

// addressOf returns where an instance is reached: its first address, and its
// port.
func addressOf(i *Instance, def *mariposa.Service) (host, port string) {
	if def != nil && len(def.Ports) > 0 {
		port = strconv.Itoa(cmp.Or(def.Ports[0].Host, def.Ports[0].Target))
	}
	if i.Status == nil || len(i.Status.Addresses) == 0 {
		return "", port
	}
	host = i.Status.Addresses[0]
	if at := strings.LastIndexByte(host, ':'); at > 0 && (strings.IndexByte(host, ':') == at || host[at-1] == ']') {
		return strings.Trim(host[:at], "[]"), host[at+1:]
	}
	return host, port
}

// joinValues joins the values of all serving instances, in the order of slots.
// During a rollout only the new ones count; before there is one, those that do
// not yield.
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

// variableMark stands for a variable of an instance's environment: it differs
// if the value does. It reports whether the variable holds references of its
// own.
func variableMark(i *Instance, def *mariposa.Service, field string) (value string, of, ok bool) {
	if def == nil {
		return "", false, false
	}
	text, ok := manifest.Variable(def, strings.TrimPrefix(field, "environment."))
	if !ok {
		return "", false, false
	}
	parts := []string{text}
	for _, scope := range manifest.Sources(text) {
		switch scope {
		case "meta", "package":
			parts = append(parts, i.Spec.Digest)
		case "instance", "placement":
			parts = append(parts, i.ID)
		case "services":
			of = true
			parts = append(parts, i.Spec.Bound)
		}
	}
	return digestOf(parts), of, true
}

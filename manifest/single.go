package manifest

import (
	"slices"

	"go.yaml.in/yaml/v3"

	"mariposa"
)

// serviceOnlyKeys are the keys of a service that are about several instances, about
// slots, or about what services share.
var serviceOnlyKeys = []string{"scale", "update", "depends_on", "reschedule", "schedule", "volumes", "networks"}

// ParseService reads the definition of a single instance that no service of the
// manifest manages: a mapping of the keys of a service. Its references are
// checked against a project; with nil, there is nothing to refer to.
func ParseService(name string, doc []byte, of *Project) (*mariposa.Service, error) {
	if len(doc) > MaxBytes {
		return nil, mariposa.Errorf(mariposa.TooLarge, "the definition has %s; the limit is %s", mariposa.SizeUp(int64(len(doc))), mariposa.SizeUp(MaxBytes))
	}
	root, faults := read(doc)
	c := &checker{subject: "the definition", faults: faults, single: true}
	if root == nil {
		return nil, c.err()
	}
	at := rootSpot(root)
	at.key = name
	rest := *root
	rest.Content = nil
	for key, value := range entriesOf(root) {
		if slices.Contains(serviceOnlyKeys, key.Value) && kindOf(value) != kindNull {
			c.invalid(at.entry(key, value), "is not allowed for a single instance; remove it")
			continue
		}
		rest.Content = append(rest.Content, key, value)
	}
	if root.Kind == yaml.MappingNode {
		at.node = &rest
	}
	d := c.service(at)
	c.references(surroundings(of, d))
	if err := c.err(); err != nil {
		return nil, err
	}
	return d.finish(), nil
}

// surroundings are the parts of a project together with one definition, which
// is not among the services that it may name.
func surroundings(of *Project, d *draft) *parts {
	p := &parts{drafts: []*draft{d}, byName: map[string]*draft{}}
	if of != nil {
		p.Project = *of
		for _, s := range of.Services {
			p.byName[s.Name] = &draft{Service: s}
		}
	}
	return p
}

package change

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"mariposa"
)

// checkText refuses text that not every store can keep.
func checkText(field, text string) error {
	if !isText(text) {
		return invalid("%s must be UTF-8 text without NUL bytes", field)
	}
	return nil
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// reachable reports whether a node is in contact, so the states of its instances are
// current.
func (c *Changer) reachable(node string) bool {
	r := c.Picture.Nodes.Get(node)
	return r.Status() != nil && !r.Status().State.IsAway()
}

// name returns the name of a project, organization, node or instance; empty when it is
// gone.
func (c *Changer) name(kind mariposa.Kind, id string) string {
	if r := c.Picture.Get(kind, id); r != nil {
		switch spec := r.Spec.(type) {
		case *mariposa.ProjectSpec:
			return spec.Name
		case *mariposa.OrganizationSpec:
			return spec.Name
		case *mariposa.NodeSpec:
			return spec.Name
		case *mariposa.InstanceSpec:
			return spec.Name
		}
	}
	return ""
}

// listNames lists the names of a few of many objects.
func (c *Changer) listNames(kind mariposa.Kind, ids []string) string {
	var names []string
	for _, id := range ids {
		names = append(names, cmp.Or(c.name(kind, id), id))
	}
	return listSome(names)
}

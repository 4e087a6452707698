package change

import (
	"cmp"
	"regexp"
	"strings"
	"unicode/utf8"

	"mariposa"
)

var (
	namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	idPattern   = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// checkName checks the name of a project, user or organization. A name that looks like
// an id would make paths ambiguous.
func checkName(what, name string) error {
	const rule = "must be 1 to 63 lower-case letters, digits and hyphens, with no hyphen at either end"
	field := func(code mariposa.FaultCode, message string) error {
		return &mariposa.Error{
			Code: mariposa.InvalidArgument, Message: "the name of the " + what + " " + message,
			Faults: []mariposa.Fault{{Field: "name", Code: code, Message: message}},
		}
	}
	switch {
	case name == "":
		return field(mariposa.FaultMissing, "is missing")
	case !namePattern.MatchString(name):
		return field(mariposa.FaultInvalid, rule)
	case idPattern.MatchString(name):
		return field(mariposa.FaultInvalid, "must not look like an id")
	}
	return nil
}

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
	return r.Status() != nil && r.Status().State != mariposa.NodeUnknown
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

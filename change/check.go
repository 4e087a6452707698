package change

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"mariposa"
)

var (
	label  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	likeID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// checkName says whether a project, user or organization can have a name. One that
// looks like an id would make paths ambiguous.
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
	case !label.MatchString(name):
		return field(mariposa.FaultInvalid, rule)
	case likeID.MatchString(name):
		return field(mariposa.FaultInvalid, "must not look like an id")
	}
	return nil
}

// checkText refuses what not every store could keep.
func checkText(field, text string) error {
	if !isText(text) {
		return invalid("%s must be text", field)
	}
	return nil
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

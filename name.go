package mariposa

import "regexp"

var (
	namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	idPattern   = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// CheckName checks the name of a project, user or organization. A name that looks like
// an id would make paths ambiguous.
func CheckName(what, name string) error {
	const rule = "must be 1 to 63 lower-case letters, digits and hyphens, with no hyphen at either end"
	field := func(code FaultCode, message string) error {
		return &Error{
			Code: InvalidArgument, Message: "the name of the " + what + " " + message,
			Faults: []Fault{{Field: "name", Code: code, Message: message}},
		}
	}
	switch {
	case name == "":
		return field(FaultMissing, "is missing")
	case !namePattern.MatchString(name):
		return field(FaultInvalid, rule)
	case idPattern.MatchString(name):
		return field(FaultInvalid, "must not look like an id")
	}
	return nil
}

package api

import (
	"cmp"
	"strings"

	"github.com/danielgtaylor/huma/v2/validation"

	"mariposa"
)

// rewordChecks replaces the validation messages of huma. Each message follows the name
// of its field. Huma keeps them in global variables, so this is done once for all
// servers.
func rewordChecks() {
	validation.MsgUnexpectedProperty = unknownField
	validation.MsgExpectedRequiredProperty = "%s" + missingField
	validation.MsgExpectedBoolean = "must be true or false"
	validation.MsgExpectedNumber = "must be a number"
	validation.MsgExpectedInteger = "must be a whole number"
	validation.MsgExpectedString = "must be a string"
	validation.MsgExpectedArray = "must be a list"
	validation.MsgExpectedObject = "must be an object"
	validation.MsgExpectedArrayItemsUnique = "must not contain duplicates"
	validation.MsgExpectedOneOf = "must be one of %s"
	validation.MsgExpectedMinimumNumber = "must be a number of at least %v"
	validation.MsgExpectedExclusiveMinimumNumber = "must be a number above %v"
	validation.MsgExpectedMaximumNumber = "must be a number of at most %v"
	validation.MsgExpectedExclusiveMaximumNumber = "must be a number below %v"
	validation.MsgExpectedNumberBeMultipleOf = "must be a multiple of %v"
	validation.MsgExpectedMinLength = tooShort + "%d characters are required"
	validation.MsgExpectedMaxLength = "is too long: at most %d characters are allowed"
	validation.MsgExpectedBePattern = "must contain only %s"
	validation.MsgExpectedMatchPattern = "must match %s"
	validation.MsgExpectedMinItems = "is too short: at least %d items are required"
	validation.MsgExpectedMaxItems = "is too long: at most %d items are allowed"
	validation.MsgExpectedMinProperties = "must have at least %d keys"
	validation.MsgExpectedMaxProperties = "must have at most %d keys"
	validation.MsgExpectedRFC3339DateTime = "must be a time such as 2027-01-31T00:00:00Z"
	validation.MsgExpectedBase64String = "must be base64"
}

const (
	unknownField = "is unknown: remove it"
	missingField = " is missing"
	tooShort     = "is too short: at least "
)

// reworded replaces messages that huma does not keep in variables, by prefix.
var reworded = map[string]string{
	"unknown query parameter":         unknownField,
	"invalid integer":                 "must be a whole number",
	"invalid float":                   "must be a number",
	"invalid floating value":          "must be a number",
	"invalid boolean":                 "must be true or false",
	"expected at most one value, but": "is given more than once",
	"unexpected end of JSON input":    "is incomplete JSON",
	"invalid character":               "is not valid JSON",
	"json: ":                          "has the wrong type",
	"unmarshal":                       "has the wrong type",
	tooShort + "1 ":                   "must not be empty",
}

// reword replaces a message of huma, and sets the field and the code of the fault.
func reword(f mariposa.Fault) mariposa.Fault {
	f.Field = strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(f.Field, "body."), "query."), "path.")
	for theirs, ours := range reworded {
		if strings.HasPrefix(f.Message, theirs) {
			f.Message = ours
			break
		}
	}
	name, missing := strings.CutSuffix(f.Message, missingField)
	twice, repeated := strings.CutSuffix(f.Message, repeatedKey)
	where, garbled := strings.CutSuffix(f.Message, notText)
	switch {
	case garbled && f.Field == "body":
		f.Field, f.Message = cmp.Or(where, f.Field), strings.TrimSpace(notText)
	case repeated && f.Field == "body":
		f.Field, f.Message = twice, strings.TrimSpace(repeatedKey)
	case f.Message == unknownField:
		f.Code = mariposa.FaultUnknown
	case missing && name != "":
		f.Code, f.Message = mariposa.FaultMissing, strings.TrimSpace(missingField)
		if f.Field == "body" || f.Field == "" {
			f.Field = name
		} else {
			f.Field += "." + name
		}
	case strings.HasPrefix(f.Message, "required "):
		f.Code, f.Message = mariposa.FaultMissing, strings.TrimSpace(missingField)
	case f.Field == "body":
		f.Code = mariposa.FaultSyntax
	}
	return f
}

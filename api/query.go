package api

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
)

// checkRepeated refuses query parameters that are given more than once, except lists: only
// the first value would count.
func checkRepeated(op *huma.Operation, q url.Values) *Error {
	var faults []mariposa.Fault
	for _, name := range slices.Sorted(maps.Keys(q)) {
		isList := slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool {
			return p.In == "query" && p.Name == name && p.Explode != nil && *p.Explode
		})
		if len(q[name]) > 1 && !isList {
			faults = append(faults, mariposa.Fault{Field: name, Code: mariposa.FaultInvalid, Message: strings.TrimSpace(repeatedKey)})
		}
	}
	return invalidQuery(faults)
}

// refuseQuery refuses any query parameter.
func refuseQuery(q url.Values) *Error {
	var faults []mariposa.Fault
	for _, name := range slices.Sorted(maps.Keys(q)) {
		faults = append(faults, mariposa.Fault{Field: name, Code: mariposa.FaultUnknown, Message: unknownField})
	}
	return invalidQuery(faults)
}

// invalidQuery returns the error for faults of query parameters; nil if there are none.
func invalidQuery(faults []mariposa.Fault) *Error {
	if len(faults) == 0 {
		return nil
	}
	return newError(mariposa.InvalidArgument, invalidRequest(faults), faults)
}

// accepts reports whether a client asks for a media type by name. Types are not
// case-sensitive, and a weight of 0 means that the client does not want it.
func accepts(accept []string, kind string) bool {
	for one := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, parameters, _ := strings.Cut(one, ";")
		if strings.EqualFold(strings.TrimSpace(name), kind) && !isUnwanted(parameters) {
			return true
		}
	}
	return false
}

// isUnwanted reports whether the parameters of a media type include a weight of 0.
func isUnwanted(parameters string) bool {
	for one := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(one, "=")
		if weight, err := strconv.ParseFloat(strings.TrimSpace(value), 64); strings.EqualFold(strings.TrimSpace(name), "q") && err == nil && weight <= 0 {
			return true
		}
	}
	return false
}

// acceptsHTML reports whether a client, such as a browser, asks for HTML.
func acceptsHTML(r *http.Request) bool { return accepts(r.Header.Values("Accept"), "text/html") }

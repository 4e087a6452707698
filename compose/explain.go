package compose

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mariposa"
)

func isNotFound(err error) bool { return errors.Is(err, fs.ErrNotExist) }

var (
	// preamble matches how compose-go begins its messages, which the user sees in other words.
	preamble = regexp.MustCompile(`^(validating \S+?: |failed to parse \S+?: |error while interpolating |(yaml: )?(unmarshal|construct) errors:|yaml: )+`)
	// fieldPath matches a path that a message begins with.
	fieldPath = regexp.MustCompile(`^((?:services|networks|volumes|secrets|configs|include|jobs|models)(?:\.[^\s:]+)*):? `)
	// additional matches the message for an unknown key.
	additional = regexp.MustCompile(`^Additional property (\S+) is not allowed$`)
	// serviceName matches the service that a message is about.
	serviceName = regexp.MustCompile(`\bservice "([^"]+)"`)
)

// explain turns an error of compose-go into faults with lines.
func explain(err error, in Input, src *source) error {
	var known *mariposa.Error
	if errors.As(err, &known) {
		return known
	}
	var faults []mariposa.Fault
	for line := range strings.Lines(err.Error()) {
		if f := explainLine(strings.TrimSpace(line), in, src); f.Message != "" {
			faults = append(faults, f)
		}
	}
	slices.SortStableFunc(faults, func(a, b mariposa.Fault) int { return a.Line - b.Line })
	if len(faults) == 0 {
		faults = append(faults, mariposa.Fault{Code: mariposa.FaultInvalid, Message: "cannot be read"})
	}
	return fault(faults...)
}

func explainLine(message string, in Input, src *source) mariposa.Fault {
	message = strings.ReplaceAll(message, strings.TrimSuffix(in.Dir, "/")+"/", "")
	message = strings.TrimSpace(strings.TrimSuffix(preamble.ReplaceAllString(message, ""), ": invalid compose project"))
	f := mariposa.Fault{Code: mariposa.FaultInvalid, Message: message}
	if m := lineNumber.FindStringSubmatch(message); m != nil {
		f.Line, _ = strconv.Atoi(m[1])
		f.Message = strings.TrimPrefix(lineNumber.ReplaceAllString(message, ""), "yaml: ")
		return f
	}
	if m := fieldPath.FindStringSubmatch(message); m != nil {
		f.Field, f.Message = m[1], strings.TrimPrefix(message, m[0])
		if name := additional.FindStringSubmatch(f.Message); name != nil {
			f.Field += "." + name[1]
			f.Code, f.Message = mariposa.FaultUnknown, "is not a key of Compose files"
			f.Line = src.find(strings.Split(strings.ReplaceAll(f.Field, "[", ".["), ".")...).line
			return f
		}
		if f.Message == "false schema" || strings.HasPrefix(f.Message, "additional properties ") {
			f.Code, f.Message = mariposa.FaultUnknown, "is not a key of Compose files"
		}
		f.Line = src.find(strings.Split(strings.ReplaceAll(m[1], "[", ".["), ".")...).line
	} else if m := serviceName.FindStringSubmatch(message); m != nil {
		f.Field = "services." + m[1]
		f.Line = src.find("services", m[1]).line
	}
	return f
}

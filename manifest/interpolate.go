package manifest

import (
	"fmt"
	"strings"
)

// Reference is one interpolation in a text: {{ .a.b }} has the path a.b.
type Reference struct {
	Path string
}

// maxInterpolation bounds the length of one interpolation, so that the search
// for its end never costs more than that.
const maxInterpolation = 256

// References lists the interpolations of a text in order. Only dotted paths
// exist: no functions, no pipes, no conditions, and no way to write a bare {{.
func References(text string) ([]Reference, error) {
	if !strings.Contains(text, "{{") { // the common case
		return nil, nil
	}
	var refs []Reference
	_, err := expand(text, func(path string) (string, error) {
		refs = append(refs, Reference{Path: path})
		return "", nil
	})
	if err != nil {
		return nil, err
	}
	return refs, nil
}

// expand replaces every interpolation of a text by its value.
func expand(text string, value func(path string) (string, error)) (string, error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{{")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		n := interpolationLen("{{" + rest[:min(len(rest), maxInterpolation)])
		if n == 0 {
			return "", fmt.Errorf("contains %s, an interpolation that is not closed; write {{ .scope.name }}", quoteText("{{"+rest))
		}
		path, ok := parsePath(rest[:n-4])
		if !ok {
			return "", fmt.Errorf("contains %s, which is not a valid interpolation; write {{ .scope.name }}", quoteText("{{"+rest[:n-2]))
		}
		v, err := value(path)
		if err != nil {
			return "", err
		}
		out.WriteString(v)
		text = rest[n-2:]
	}
}

// parsePath reads ".a.b" with optional spaces around it.
func parsePath(s string) (string, bool) {
	path, ok := strings.CutPrefix(strings.Trim(s, " \t"), ".")
	if !ok {
		return "", false
	}
	for part := range strings.SplitSeq(path, ".") {
		if part == "" || strings.IndexFunc(part, func(c rune) bool { return !pathChar(c) }) >= 0 {
			return "", false
		}
	}
	return path, true
}

func pathChar(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// interpolationLen is the length of the interpolation a text begins with, or 0.
func interpolationLen(s string) int {
	if !strings.HasPrefix(s, "{{") {
		return 0
	}
	end := strings.Index(s[2:min(len(s), maxInterpolation)], "}}")
	if end < 0 {
		return 0
	}
	return end + 4
}

package manifest

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Each check below returns what a text must be; empty if the text is valid.

func dnsLabel(s string) string {
	const rule = "must be 1 to 63 lower-case letters, digits and hyphens, with no hyphen at either end"
	if len(s) < 1 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return rule
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return rule
		}
	}
	return ""
}

func variableName(s string) string {
	bad := strings.IndexFunc(s, func(c rune) bool { return !pathChar(c) && c != '.' }) >= 0
	if s == "" || bad || ('0' <= s[0] && s[0] <= '9') {
		return "must have a name of letters, digits, _, - and . that does not begin with a digit"
	}
	return ""
}

func anyName(s string) string {
	bad := strings.IndexFunc(s, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) || c == '{' || c == '=' }) >= 0
	if s == "" || len(s) > 255 || bad {
		return "must have a name of 1 to 255 characters with no spaces, = or {"
	}
	return ""
}

func metadataName(s string) string {
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || len(s) > 255 || strings.IndexFunc(part, func(c rune) bool { return !pathChar(c) }) >= 0 {
			return "must consist of letters, digits, _ and -, with single dots between them, so that {{ .meta.name }} can refer to it"
		}
	}
	return ""
}

// filePath accepts only one spelling of each path, so that two paths that look
// different are different.
func filePath(s string) string {
	const rule = "must be an absolute path such as /run/secrets/db, without . or .. segments"
	rest, absolute := strings.CutPrefix(s, "/")
	if !absolute || len(s) > 4095 || strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return rule
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == "" || part == "." || part == ".." || len(part) > 255 {
			return rule
		}
	}
	return ""
}

// mdataName accepts what can be the name of a file and part of a URL.
func mdataName(s string) string {
	bad := strings.IndexFunc(s, func(c rune) bool { return !pathChar(c) && c != '.' && c != ':' }) >= 0
	if s == "" || len(s) > 128 || bad || strings.IndexByte("._:-", s[0]) >= 0 {
		return "must have a name of 1 to 128 letters, digits, ., _, : and -, beginning with a letter or digit"
	}
	return ""
}

func mount(s string) string {
	const rule = "must be a volume and a path such as data:/var/lib/data; add :ro for read-only"
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 || dnsLabel(parts[0]) != "" || filePath(parts[1]) != "" {
		return rule
	}
	if len(parts) == 3 && parts[2] != "ro" && parts[2] != "rw" {
		return rule
	}
	return ""
}

func domainName(s string) string {
	if len(s) > 253 {
		return "must be a domain name of at most 253 characters"
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if dnsLabel(strings.ToLower(label)) != "" {
			return "must be a domain name like my.example.com"
		}
	}
	return ""
}

// ipAddress is implemented here because this package imports no network package, not even
// for parsing.
func ipAddress(s string) string {
	const rule = "must be an IP address like 10.0.0.2"
	if strings.Contains(s, ":") {
		groups := strings.Split(s, ":")
		if len(groups) < 3 || len(groups) > 8 || strings.Contains(s, ":::") || strings.Count(s, "::") > 1 || (len(groups) < 8 && !strings.Contains(s, "::")) {
			return rule
		}
		for _, g := range groups {
			if _, err := strconv.ParseUint(cmp.Or(g, "0"), 16, 16); err != nil || len(g) > 4 {
				return rule
			}
		}
		return ""
	}
	parts := strings.Split(s, ".")
	for _, p := range parts {
		if n, err := strconv.ParseUint(p, 10, 8); err != nil || len(parts) != 4 || strconv.FormatUint(n, 10) != p {
			return rule
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

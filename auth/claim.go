package auth

import "strings"

// NameFromClaim returns the name of the user that a provider of sign-ins names. An address becomes
// the part before the @, and what names cannot contain becomes a hyphen.
func NameFromClaim(claim string) string {
	name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(claim)), "@")
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, name)
	return strings.Trim(name[:min(len(name), 63)], "-")
}

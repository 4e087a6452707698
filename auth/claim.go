package auth

import "strings"

// NameFromClaim returns the name of the user that an identity provider names. An address becomes
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

// IsNameInClaim reports whether a claim says exactly this name, apart from capital letters. Several
// other claims may become the same name.
func IsNameInClaim(name, claim string) bool { return lowerASCII(strings.TrimSpace(claim)) == name }

// IsAddressInClaim reports whether a claim is this address of mail.
func IsAddressInClaim(address, claim string) bool {
	return strings.Contains(address, "@") && lowerASCII(strings.TrimSpace(claim)) == lowerASCII(strings.TrimSpace(address))
}

// lowerASCII changes only letters that names can contain: some other letters have the same small one.
func lowerASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}

package auth_test

import (
	"testing"

	"mariposa"
	"mariposa/auth"
)

func TestClaimsBecomeNamesOfUsers(t *testing.T) {
	t.Parallel()
	for claim, want := range map[string]string{
		"ann": "ann", "Ann": "ann", " ann ": "ann", "Bob.Smith@example.com": "bob-smith", "ünal": "nal", "a_b": "a-b", "@example.com": "", "": "", "--": "",
		"0123456789012345678901234567890123456789012345678901234567890123456789": "012345678901234567890123456789012345678901234567890123456789012",
	} {
		got := auth.NameFromClaim(claim)
		if got != want || got != "" && mariposa.CheckName("user", got) != nil {
			t.Errorf("%q becomes %q, not %q", claim, got, want)
		}
	}
}

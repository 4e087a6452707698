package auth_test

import (
	"strings"
	"testing"

	"mariposa"
	"mariposa/auth"
)

func TestOnlyThePasswordMatchesItsHash(t *testing.T) {
	t.Parallel()
	hash := auth.HashPassword("correct horse battery")
	if strings.Contains(hash, "correct") || !strings.HasPrefix(hash, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Errorf("the hash is %s", hash)
	}
	if again := auth.HashPassword("correct horse battery"); again == hash {
		t.Error("two hashes of a password are the same: they have no salt")
	}
	for password, want := range map[string]bool{"correct horse battery": true, "correct horse batter": false, "": false, strings.Repeat("x", 1<<20): false} {
		if got := auth.MatchPassword(hash, password); got != want {
			t.Errorf("matching %.30q: %v", password, got)
		}
	}
	// A hash that is damaged, or that would cost too much, matches nothing.
	for _, hash := range []string{
		"", "x", "$argon2id$v=19$m=19456,t=2,p=1$AAAA", "$argon2i$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",
		"$argon2id$v=19$m=999999999,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA", "$argon2id$v=19$m=19456,t=0,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",
	} {
		if auth.MatchPassword(hash, "correct horse battery") {
			t.Errorf("%q is matched", hash)
		}
	}
}

func TestWeakPasswordsAreRefused(t *testing.T) {
	t.Parallel()
	for password, want := range map[string]string{
		"short": "too short", "aaaaaaaaaaaaaaaa": "too easy", "annannannann": "too easy", strings.Repeat("ab", 200): "too long", "twelve chars\xff": "not valid",
		"correct horse battery": "", "äöüäöüäöüäöü": "",
	} {
		err := auth.CheckPassword(password, "ann")
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || mariposa.CodeOf(err) != mariposa.InvalidArgument) {
			t.Errorf("%.30q: %v", password, err)
		}
	}
}

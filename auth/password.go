package auth

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"mariposa"
)

// The cost of a password's hash, as OWASP recommends for Argon2id. A hash contains its own
// cost, so this can grow without making old hashes invalid.
const (
	hashPasses = 2
	hashMemory = 19 << 10 // KiB
	hashLanes  = 1
	hashSalt   = 16 // bytes
	hashKey    = 32 // bytes
)

// Lengths of passwords, in characters. Longer ones are refused instead of being cut.
const (
	MinPassword = 12
	MaxPassword = 256
)

// CheckPassword checks that a new password is acceptable. Length is the only rule: rules about
// characters make passwords predictable.
func CheckPassword(password, user string) error {
	n := utf8.RuneCountInString(password)
	switch {
	case !utf8.ValidString(password):
		return mariposa.Errorf(mariposa.InvalidArgument, "the password is not valid UTF-8 text")
	case n < MinPassword:
		return mariposa.Errorf(mariposa.InvalidArgument, "the password is too short: use at least %d characters, for example four random words", MinPassword)
	case n > MaxPassword:
		return mariposa.Errorf(mariposa.InvalidArgument, "the password is too long: use at most %d characters", MaxPassword)
	case strings.Count(password, password[:1]) == len(password), strings.ReplaceAll(strings.ToLower(password), strings.ToLower(user), "") == "":
		return mariposa.Errorf(mariposa.InvalidArgument, "the password is too easy to guess: use for example four random words")
	}
	return nil
}

// HashPassword returns what is stored of a password.
func HashPassword(password string) string {
	salt := make([]byte, hashSalt)
	_, _ = rand.Read(salt) // never fails
	key := argon2.IDKey([]byte(password), salt, hashPasses, hashMemory, hashLanes, hashKey)
	text := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, hashMemory, hashPasses, hashLanes, text(salt), text(key))
}

// nobody is a hash that no password matches.
var nobody = fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, hashMemory, hashPasses, hashLanes, strings.Repeat("A", 22), strings.Repeat("A", 43))

// MatchPassword reports whether a password matches a hash. It takes the same time if there is no
// hash, so the time does not reveal which users have a password.
func MatchPassword(hash, password string) bool {
	known := hash != ""
	if !known {
		hash = nobody
	}
	salt, key, passes, memory, lanes, ok := parseHash(hash)
	if !ok || len(password) > 4*MaxPassword {
		return false
	}
	same := subtle.ConstantTimeCompare(argon2.IDKey([]byte(password), salt, passes, memory, lanes, uint32(len(key))), key) == 1
	return known && same
}

// parseHash reads a hash. It refuses costs that would exhaust the server.
func parseHash(hash string) (salt, key []byte, passes, memory uint32, lanes uint8, ok bool) {
	parts := strings.Split(hash, "$")
	if len(parts) != 6 || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return nil, nil, 0, 0, 0, false
	}
	if n, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &memory, &passes, &lanes); n != 3 || err != nil ||
		memory < 8 || memory > 1<<20 || passes < 1 || passes > 100 || lanes < 1 {
		return nil, nil, 0, 0, 0, false
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[4])
	if err != nil {
		return nil, nil, 0, 0, 0, false
	}
	key, err = base64.RawStdEncoding.DecodeString(parts[5])
	return salt, key, passes, memory, lanes, err == nil && len(key) >= 16 && len(key) <= 64
}

package mariposa

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// TokenSpec is a secret that lets somebody in, as the store keeps it: its hash,
// never the secret.
type TokenSpec struct {
	Use     TokenUse  `json:"use"`
	Hash    string    `json:"hash"`
	Created time.Time `json:"created"`
}

// TokenStatus is empty so far.
type TokenStatus struct{}

// TokenUse says what a token is good for.
type TokenUse string

const (
	TokenAdmin TokenUse = "admin" // everything
	TokenJoin  TokenUse = "join"  // a node may connect
)

// HashToken is what is kept of a token. Tokens are long and random, so a plain
// hash cannot be guessed backwards.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

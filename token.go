package mariposa

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/google/uuid"
)

// TokenSpec is a secret that grants access, as the store keeps it: its hash,
// never the secret. It grants the rights of its user, within its bounds.
type TokenSpec struct {
	Use          TokenUse  `json:"use"`
	Hash         string    `json:"hash"`
	Name         string    `json:"name,omitempty"`
	User         string    `json:"user,omitempty"`         // its owner
	Organization string    `json:"organization,omitempty"` // only in this one
	Project      string    `json:"project,omitempty"`      // only in this one
	Role         Role      `json:"role,omitempty"`         // at most this role
	Parent       string    `json:"parent,omitempty"`       // the bounded token that made it: they end together
	Expires      time.Time `json:"expires,omitzero"`
	Created      time.Time `json:"created"`
	Author       string    `json:"author,omitempty"`
	Revoked      time.Time `json:"revoked,omitzero"` // it is archived then, and grants no access
}

// TokenStatus says when a token was last used, to the minute or so.
type TokenStatus struct {
	Used time.Time `json:"used,omitzero"`
	From string    `json:"from,omitempty"`
}

// TokenUse says what a token is for.
type TokenUse string

const (
	TokenAdmin TokenUse = "admin" // everything, as the first user
	TokenUser  TokenUse = "user"  // the rights of its user
	TokenJoin  TokenUse = "join"  // a node may connect
)

// HashToken returns what is stored of a token. Tokens are long and random, so a
// plain hash cannot be reversed by guessing.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// TokenID returns the id of the token with a hash, so that a token is found
// without a search.
func TokenID(hash string) string { return uuid.NewSHA1(uuid.Nil, []byte("token "+hash)).String() }

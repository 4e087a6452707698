package mariposa

import (
	"crypto/sha256"
	"encoding/hex"
)

// Identity is who a user is at an identity provider (OpenID Connect). The subject never changes
// there; names and addresses may.
type Identity struct {
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
}

// NameID is the id of the name that makes an identity belong to one user only.
func (i Identity) NameID() string {
	sum := sha256.Sum256([]byte(i.Issuer + "\n" + i.Subject))
	return NameID("oidc", hex.EncodeToString(sum[:]))
}

// Package relay connects the replicas of a control plane. It knows where the replicas are,
// how one proves to another that it belongs to the installation, and keeps the links over
// which one asks another.
//
// The package owns addresses, proofs and links. What is asked, and who may ask for it, is
// up to its callers.
package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"mariposa"
	"mariposa/store"
)

// Replica is what a replica publishes about itself with its lease.
type Replica struct {
	Name    string    `json:"-"`
	URL     string    `json:"url,omitempty"` // where the other replicas and agents reach it; empty if it did not say
	Pin     string    `json:"pin,omitempty"` // of the certificate that it serves; empty if it serves none
	Version string    `json:"version,omitempty"`
	Since   time.Time `json:"since,omitzero"` // when it started
}

// Pin identifies a certificate by the SHA-256 of its bytes.
func Pin(certificate []byte) string {
	sum := sha256.Sum256(certificate)
	return hex.EncodeToString(sum[:])
}

// Note returns the note for the replica's lease.
func (r Replica) Note() string {
	b, _ := json.Marshal(r) // never fails
	return string(b)
}

// fromLease reads what a replica has published. A replica of an earlier release has
// published nothing.
func fromLease(l store.Lease) Replica {
	r := Replica{}
	if json.Unmarshal([]byte(l.Note), &r) != nil || CheckURL(r.URL) != nil {
		r = Replica{}
	}
	r.Name = strings.TrimPrefix(l.Name, store.ReplicaPrefix)
	return r
}

// FromLeases reads what the replicas with these leases have published.
func FromLeases(leases []store.Lease) []Replica {
	all := make([]Replica, 0, len(leases))
	for _, l := range leases {
		all = append(all, fromLease(l))
	}
	return all
}

// LeaseReader reads leases.
type LeaseReader interface {
	Leases(ctx context.Context, prefix string) ([]store.Lease, error)
}

// List reads which replicas are alive.
func List(ctx context.Context, from LeaseReader) ([]Replica, error) {
	leases, err := from.Leases(ctx, store.ReplicaPrefix)
	return FromLeases(leases), err
}

// maxURL bounds the length of an address.
const maxURL = 500

// CheckURL validates the address of a replica.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURL || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		(u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "" {
		return mariposa.Errorf(mariposa.InvalidArgument, "invalid address %q: use a URL such as https://10.0.0.1:8080", text)
	}
	return nil
}

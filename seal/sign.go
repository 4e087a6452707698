package seal

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// Sign proves that its caller has a key of the ring: it returns a signature of the parts
// for one use, by each key. Processes with the same key file can verify it. Nobody can
// derive a key from it, or use it for anything else.
func (r *Ring) Sign(use string, parts ...string) string {
	var all []string
	for _, k := range r.keys() {
		all = append(all, k.name+"="+base64.RawURLEncoding.EncodeToString(k.sign(use, parts)))
	}
	return strings.Join(all, ",")
}

// maxSignatures bounds how many are checked: a ring has more than two keys only if
// rotations were interrupted.
const maxSignatures = 8

// Verify reports whether one of the keys has signed the parts for this use. If it has
// none of the keys, it reads them again: another process may have rotated them.
func (r *Ring) Verify(signature, use string, parts ...string) bool {
	set := r.keys()
	verified, known := set.verify(signature, use, parts)
	if !known {
		if set, err := r.reload(); err == nil {
			verified, _ = set.verify(signature, use, parts)
		}
	}
	return verified
}

// Reload reads the keys again: another process may have rotated them.
func (r *Ring) Reload() error {
	_, err := r.reload()
	return err
}

func (s keySet) verify(signature, use string, parts []string) (verified, known bool) {
	all := strings.SplitN(signature, ",", maxSignatures+1)
	for _, one := range all[:min(len(all), maxSignatures)] {
		name, text, _ := strings.Cut(one, "=")
		k, there := s.find(name)
		if !there {
			continue
		}
		known = true
		sum, err := base64.RawURLEncoding.DecodeString(text)
		if err == nil && hmac.Equal(sum, k.sign(use, parts)) {
			return true, true
		}
	}
	return false, known
}

func (o outer) sign(use string, parts []string) []byte {
	mac := hmac.New(sha256.New, derive(o.key, "sign "+use))
	mac.Write(lengthPrefixed(parts...))
	return mac.Sum(nil)
}
